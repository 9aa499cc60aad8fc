# Usage errors of replay: one clear line each, exit 2, nothing on standard output.
echo '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}' > trace.jsonl
try() { kvcanary replay "$@"; echo "exit $?"; }
try                                              # replay-one-trace
try trace.jsonl other.jsonl
try missing.jsonl
try trace.jsonl --nonsense
try trace.jsonl --requests
try trace.jsonl --requests 0
try trace.jsonl --requests few
try trace.jsonl --layers 129
try trace.jsonl --head-dim 60
try trace.jsonl --dtype int8
try trace.jsonl --verify most
try trace.jsonl --canary maybe
try trace.jsonl --speed -1
try trace.jsonl --speed fast
try trace.jsonl --block-tokens 100
try trace.jsonl --pool-slots 1000
try trace.jsonl --chunk 8
try trace.jsonl --seed -1
try trace.jsonl --threads 2000
try trace.jsonl --fault bitflip-k                # replay-unknown-fault
try trace.jsonl --fault 'bit-flip-k, lost-write'
try trace.jsonl --pool-slots 128                 # replay-pool-too-small
try trace.jsonl --pool-slots 1073741824 --layers 128 --heads 1024 --head-dim 512 # replay-no-memory
try trace.jsonl --html /nowhere/report.html
