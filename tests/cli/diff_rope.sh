# A row of K that was rotated for position 2 instead of 5, by a base that nobody has and by yarn: a changed
# row, unless --rope or --rope-from tells the rotation.
cat > make.py <<'END'
import json, math, random, struct
D, T, draw = 16, 12, random.Random(3)

def yarn(base, factor, old):  # Peng et al., as transformers has it
    place = lambda turns: D * math.log(old / (2 * math.pi * turns)) / (2 * math.log(base))
    low, high = max(math.floor(place(32)), 0), min(math.ceil(place(1)), D - 1)
    out = []
    for i in range(D // 2):
        f, ramp = base ** (-2 * i / D), min(max((i - low) / (high - low), 0), 1)
        out.append(f / factor * ramp + f * (1 - ramp))
    return out

def turn(row, by, frequencies):  # halves i, i + D/2
    out = list(row)
    for i, f in enumerate(frequencies):
        c, s = math.cos(by * f), math.sin(by * f)
        out[i], out[i + D // 2] = row[i] * c - row[i + D // 2] * s, row[i] * s + row[i + D // 2] * c
    return out

def save(name, tensors):
    header, data = {}, b""
    for key, rows in tensors.items():
        packed = b"".join(struct.pack(f"<{D}f", *row) for row in rows)
        header[key] = {"dtype": "F32", "shape": [1, 1, T, D], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data)

for name, frequencies in (("base", [7777 ** (-2 * i / D) for i in range(D // 2)]), ("yarn", yarn(1e4, 8, 64))):
    plain = {f"layers.{l}.{x}": [[draw.gauss(0, 1) for _ in range(D)] for _ in range(T)] for l in range(2) for x in "kv"}
    k = {key: [turn(row, p, frequencies) for p, row in enumerate(rows)] if key[-1] == "k" else rows
         for key, rows in plain.items()}
    save(f"{name}.a", k)
    k["layers.1.k"][5] = turn(plain["layers.1.k"][5], 2, frequencies)
    save(f"{name}.b", k)
json.dump({"num_attention_heads": 1, "head_dim": D, "rope_theta": 1e4, "rope_scaling":
           {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 64}}, open("config.json", "w"))
END
python3 make.py
try() { kvcanary diff "$@" | grep -E '^[a-z_]+: |^  (rotation|row_changed) '; echo "exit ${PIPESTATUS[0]}"; }
try base.a base.b --as safetensors
try base.a base.b --as safetensors --rope 7777,half
try base.a base.b --as safetensors --rope 7777,auto
try base.a base.b --as safetensors --rope 7777,norm   # another style: no rotation
try yarn.a yarn.b --as safetensors
try yarn.a yarn.b --as safetensors --rope-from config.json
kvcanary diff base.a base.b --rope 7777; echo "exit $?"
kvcanary diff base.a base.b --rope-from make.py; echo "exit $?"
