# Safetensors of every schema, a directory of layers, pages; then each refusal in one line, exit 2.
cp -r "$KVC_SOURCE/data/safetensors" data && cd data || exit 3
kvcanary info tr-hf.safetensors mlx-0.28.4-q8.safetensors mlx-0.32.2-kv.safetensors mlx-0.32.2-rotating.safetensors
mkdir layers
for i in 0 1; do cp st-vllm-new-model.layers.$i.self_attn.attn.safetensors layers/model.layers.$i.self_attn.attn.safetensors; done
kvcanary info layers
kvcanary info --heads 2 st-vllm-old-model.layers.0.self_attn.attn.safetensors
kvcanary info st-token-count.safetensors
kvcanary info --json mlx-0.28.4-kv.safetensors
mkdir -p pages fs/0a1/b2_g0
for i in 0 1; do head -c 768 /dev/zero > pages/0123456789abcde${i}_org-model_0_2.bin; done
touch pages/0123456789abcde2_org-model_0_2.bin.tmp.1.2.3
printf 12345678 > fs/0a1/b2_g0/0a1b2c.bin
printf 12345678 > fs/0a1/b2_g0/0a1b2d.bin
printf 1234 > fs/0a1/b2_g0/0a1b3d.bin
kvcanary info pages fs
cat > manifest.json <<'END'
{"kvc.pages": 1, "what": "SGLang HiCache", "model": "org/model", "dtype": "F32", "layers": 3,
 "kv_heads": 2, "head_dim": 4, "page_rows": 4, "layout": "page_head",
 "pages": ["0123456789abcde1_org-model_0_2.bin", "0123456789abcde0_org-model_0_2.bin"],
 "tokens": [1, 2, 3, 4, 5, 6, 7, 8]}
END
kvcanary info --manifest manifest.json pages
try() { kvcanary info "$@"; echo "exit $?"; }
try st-n-past-end.safetensors              # snapshot-malformed
try st-overlap.safetensors st-v-missing.safetensors
try st-ok-empty.safetensors                # snapshot-no-cache
try tr-hf.safetensors --as safetensors-mlx
try tr-hf.pt                               # snapshot-pickle
try --as pages pages                       # snapshot-no-manifest
printf '\50\265\57\375\0' > cut.zst
try cut.zst                                # snapshot-bad-compression
# A writer's name that would colour the terminal.
printf '\156\0\0\0\0\0\0\0{"__metadata__":{"source":"a\\u001b[31mb"},"layers.0.k":{"dtype":"F16","shape":[1,1,1,1],"data_offsets":[0,2]}}\0<' > escape.safetensors
kvcanary info escape.safetensors
