# Usage errors of diff: one clear line each, exit 2, nothing on standard output.
data="$KVC_SOURCE/data/safetensors"
try() { kvcanary diff "$@"; echo "exit $?"; }
try                                                        # diff-two-files
try "$data/mlx-0.28.4-kv.safetensors"
try a b c
cd "$data" || exit
try missing.bin mlx-0.28.4-kv.safetensors
try mlx-0.28.4-kv.safetensors tr-hf.pt
try mlx-0.28.4-kv.safetensors st-ok.safetensors --html /nowhere/report.html
try mlx-0.28.4-kv.safetensors mlx-0.28.4-kv.safetensors --html
try mlx-0.28.4-kv.safetensors mlx-0.28.4-kv.safetensors --nonsense
