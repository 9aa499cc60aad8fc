# A stamp belongs to one model and one size of blocks; each is changed alone [snapshot-side-unfit].
make_cache() { # NAME KEY VALUE: our schema, one layer, one head of 4, two tokens
	python3 - "$@" <<'END'
import json, struct, sys
name, changed, value = sys.argv[1:]
metadata = {"kvc.schema": "cache 1", "kvc.model": "m1", "kvc.tokenizer": "t1", "kvc.block_size": "64",
            "kvc.rope.base": "10000", "kvc.rope.style": "neox"}
metadata[changed] = value
shape, one = [1, 1, 2, 4], struct.pack("<8f", *range(1, 9))
header = json.dumps({"__metadata__": metadata} | {
    f"layers.0.{t}": {"dtype": "F32", "shape": shape, "data_offsets": [i * 32, i * 32 + 32]}
    for i, t in enumerate("kv")}).encode()
open(name, "wb").write(struct.pack("<Q", len(header)) + header + one + one)
END
}
make_cache cache.safetensors kvc.model m1
kvcanary stamp cache.safetensors -o side.safetensors; echo "exit $?"
kvcanary check cache.safetensors side.safetensors > out; echo "exit $?"; head -1 out
for pair in kvc.model=m2 kvc.tokenizer=t2 kvc.block_size=128 kvc.rope.base=500000 kvc.rope.style=interleaved; do
	make_cache cache.safetensors "${pair%=*}" "${pair#*=}"
	kvcanary check cache.safetensors side.safetensors 2> out; echo "exit $?"; head -1 out
done
