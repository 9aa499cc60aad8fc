# What a person sees of diff: the verdict first, then the files, the layers, what was found.
cd "$KVC_SOURCE/data/safetensors"
try() { kvcanary diff "$@"; echo "exit $?"; echo; }
try mlx-0.28.4-kv.safetensors mlx-0.32.2-kv.safetensors
try mlx-0.28.4-kv.safetensors mlx-0.28.4-trimmed.safetensors
try tr-hf.safetensors tr-hf-f32.safetensors
try tr-hf.safetensors tr-hf.flip.safetensors
try tr-hf.safetensors tr-hf.swap-kv.safetensors
try tr-hf.safetensors mlx-0.28.4-kv.safetensors
