# snapshot-row-too-large: a sparse file whose rows no cache has; and one of 4 GB of holes, whose zeros
# are found in little memory.
wide() { # layers rows dim
	python3 - "$@" <<'END'
import json, struct, sys
layers, rows, dim = map(int, sys.argv[1:])
bytes_, at, header = rows * dim * 2, 0, {}
for layer in range(layers):
    for t in "kv":
        header[f"layers.{layer}.{t}"] = {"dtype": "F16", "shape": [1, 1, rows, dim],
                                         "data_offsets": [at, at + bytes_]}
        at += bytes_
text = json.dumps(header).encode()
with open("wide.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + at)
END
}
wide 1 1 16000000
kvcanary check wide.safetensors; echo "exit $?"
kvcanary stamp wide.safetensors -o side; echo "exit $?"; ls
wide 4 65536 512
# Sanitizers reserve more than any limit.
([ -n "${UBSAN_OPTIONS:-}${TSAN_OPTIONS:-}" ] || ulimit -v 1000000; kvcanary check wide.safetensors --jobs 2 | head -n 2)
