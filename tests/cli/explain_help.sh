# Three ways to the same help.
kvcanary explain --help
kvcanary help explain | cmp - <(kvcanary explain -h) && echo same
