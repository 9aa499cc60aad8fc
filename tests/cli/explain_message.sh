# A pasted message: the numbers of the line are shown with the entry.
kvcanary explain 'ValueError: v_pool shape must match k_pool shape, got (31, 1, 8) vs (32, 1, 8)'
