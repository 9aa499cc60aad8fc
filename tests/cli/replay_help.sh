# The help of replay and its list of faults.
kvcanary replay --help
kvcanary replay --list-faults
