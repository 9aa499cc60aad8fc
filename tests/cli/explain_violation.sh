# A violation with two reasons: both entries, and the fields of the line.
kvcanary explain 'E kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=verify_chain_hash+verify_position slot_idx=17 position=42 stored_token=111 expected_token=0 stored_chain_hash=0x1111111111111111 expected_aux=0x2222222222222222'
