# What a person sees of diff: the verdict first, then the files, the layers, what was found.
cd "$KVC_SOURCE/data" || exit
try() { kvcanary diff "$@"; echo "exit $?"; echo; }
try safetensors/mlx-0.28.4-kv.safetensors safetensors/mlx-0.32.2-kv.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf-f32.safetensors
# One for each page of the catalogue.
try safetensors/mlx-0.28.4-kv.safetensors safetensors/mlx-0.28.4-trimmed.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf.flip.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf.swap-kv.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf.swap-rows.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf.zero.safetensors
try safetensors/tr-hf.safetensors safetensors/tr-hf.token.safetensors
try safetensors/tr-hf.safetensors safetensors/mlx-0.28.4-kv.safetensors
try llamacpp/tl-seq-f16.bin llamacpp/tl-seq-f16.rope.bin --heads 2
try llamacpp/tl-seq-f16.bin llamacpp/tl-seq-f16.pos.bin
try llamacpp/tl-seq-hole.bin llamacpp/tl-seq-shift.bin
try llamacpp/tl-seq-f16.bin llamacpp/tl-seq-q8.bin
