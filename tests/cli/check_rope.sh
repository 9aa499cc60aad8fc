# Contents of layer 0: snapshot-content-disagrees, snapshot-not-compared, snapshot-rope-unknown.
data="$KVC_SOURCE/data/safetensors"
kvcanary check "$data/tr-hf.swap-layers.safetensors" --rope 10000,half | tail -n +2
kvcanary check "$data/tr-hf.safetensors" --rope 10000,interleaved | tail -n +2
kvcanary check "$data/mlx-0.28.4-kv.safetensors" --rope 10000,half | tail -n +2
kvcanary check "$data/mlx-0.28.4-kv.safetensors" --rope 10000,auto --tokens 5,17,5,42,9,17 | tail -n +2
echo '{"rope_theta": 10000.0, "num_key_value_heads": 2, "num_attention_heads": 4}' > config.json
kvcanary check "$data/tr-hf.safetensors" --rope-from config.json | tail -n +2
echo '{"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2}}' > dynamic.json
kvcanary check "$data/tr-hf.safetensors" --rope-from dynamic.json
echo nothing > none.json
kvcanary check "$data/tr-hf.safetensors" --rope-from none.json
kvcanary check "$data/tr-hf.safetensors" --rope 10000
kvcanary check "$data/tr-hf.safetensors" --rope 10000,half,3
