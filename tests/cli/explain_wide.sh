# Wrapping.
kvcanary explain --width 40 null-argument | awk 'length > 60' | head
kvcanary explain --width 40 null-argument | sed -n 5,20p
