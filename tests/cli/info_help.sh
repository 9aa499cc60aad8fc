# The options of info, and those that all commands on saved caches share.
kvcanary info --help
