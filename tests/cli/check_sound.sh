# Sound files: what was looked at, and what cannot be seen without a stamp.
cd "$KVC_SOURCE/data/safetensors" || exit
kvcanary check tr-hf.safetensors
kvcanary check mlx-0.32.2-kv.flip-unused.safetensors
kvcanary check tr-hf.safetensors --rope 10000,auto
kvcanary check tr-hf.safetensors --json | grep -v modified
