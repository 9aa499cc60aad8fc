# Each finding with its place; [snapshot-values-damaged], snapshot-cells-inconsistent.
cd "$KVC_SOURCE/data/safetensors" || exit
kvcanary check tr-hf.nan.safetensors; echo "exit $?"
kvcanary check mlx-0.32.2-kv.zero.safetensors; echo "exit $?"
kvcanary check st-token-count.safetensors; echo "exit $?"
kvcanary check tr-hf.nan.safetensors --json | grep -v modified
kvcanary check st-cut1.safetensors 2>/dev/null; echo "exit $?"
