# The violations only: a list that other entries do not change.
kvcanary explain --list 'kv_canary violation:'
