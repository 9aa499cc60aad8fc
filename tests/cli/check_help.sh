kvcanary check --help
kvcanary stamp --help
