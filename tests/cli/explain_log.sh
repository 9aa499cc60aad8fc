# A log on standard input: each entry once, lines that say nothing are passed over.
printf '%s\n' 'step 1 ok' 'q is NULL' 'k is NULL' '' \
	'kv_canary violation: launch_tag=STEP_READ fail_reason=never_stamped slot_idx=3' \
	'pools is in CUDA memory, and this build of kvcanary has no CUDA' |
	kvcanary explain - | grep -E '^[a-z-]+ \(|^---|name|slot_idx'
