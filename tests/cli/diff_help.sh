kvcanary diff --help
