# A tiny clean replay: everything that is printed, times aside.
for i in 0 1 2; do
	echo "{\"timestamp\": $i, \"input_length\": 700, \"output_length\": 64, \"hash_ids\": [7, $i]}"
done > trace.jsonl
kvcanary replay trace.jsonl --block-tokens 32 --pool-slots 1024 --abort-every 0 |
	sed -E 's/in [0-9.]+ s: .*/in T s/; s/[0-9.]+ s( of [0-9.]+ \([0-9]+ %\))?( |$)/T s /g'
echo "exit ${PIPESTATUS[0]}"
