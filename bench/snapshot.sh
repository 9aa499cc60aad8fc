#!/bin/bash
# Saved caches: speed of check, stamp and diff (of two equal files, then with one byte changed) beside
# 'cat FILE > /dev/null' (all warm), and peak memory with a sparse file of 20 GB. A stamp is a new file
# each time: what a file system takes to free an old one is not the command's. Files go to a folder in TMPDIR
# and are removed.
# usage: bench/snapshot.sh [KVCANARY [MEGABYTES [ROUNDS]]]
set -euo pipefail
cd "$(dirname "$0")/.."
kvcanary=${1:-build/kvcanary}
megabytes=${2:-1024}
rounds=${3:-5}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# make NAME LAYERS HEADS TOKENS DIM SEED: a cache of BF16, [1, H, T, D] per tensor as transformers has
# it; with a seed the rows are noise, without one a hole.
make() {
	python3 - "$@" <<'END'
import json, random, struct, sys
name, layers, heads, tokens, dim, seed = sys.argv[1], *map(int, sys.argv[2:7])
size = 2 * heads * tokens * dim
header = {"__metadata__": {"kvc.schema": "cache 1"}}
for i in range(layers):
    for j, which in enumerate("kv"):
        at = (2 * i + j) * size
        header[f"layers.{i}.{which}"] = {"dtype": "BF16", "shape": [1, heads, tokens, dim],
                                         "data_offsets": [at, at + size]}
text = json.dumps(header).encode()
with open(name, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    if not seed:
        file.truncate(8 + len(text) + 2 * layers * size)
        sys.exit()
    # Two bytes of a BF16 below 4 in size, never zero, NaN or infinite.
    noise = bytearray(random.Random(seed).randbytes(1 << 22))
    for k in range(1, len(noise), 2):
        noise[k] = 0x3c + (noise[k] & 3) | noise[k] & 0x80
    for k in range(2 * layers):
        left = size
        while left:
            begin = random.Random(seed + k + left).randrange(0, 1 << 20) & ~1
            part = noise[begin:begin + min(left, 1 << 21)]
            file.write(part)
            left -= len(part)
END
}

# seconds COMMAND...: the least wall time of the rounds.
seconds() {
	local least=
	for ((i = 0; i < rounds; i++)); do
		local begin end
		rm -f "$folder/side.safetensors"
		begin=$(date +%s%N)
		"$@" >/dev/null || [ $? -eq 1 ]
		end=$(date +%s%N)
		if [ -z "$least" ] || ((end - begin < least)); then least=$((end - begin)); fi
	done
	echo "$least"
}

# peak COMMAND...: its peak memory in KB.
peak() {
	python3 - "$@" <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
END
}

tokens=$((megabytes * 1024 * 1024 / (16 * 2 * 8 * 128 * 2)))
make "$folder/cache.safetensors" 16 8 "$tokens" 128 1
bytes=$(stat -c %s "$folder/cache.safetensors")
cat "$folder/cache.safetensors" >/dev/null
echo "load: $(cut -d ' ' -f 1-3 /proc/loadavg); $bytes bytes; least of $rounds rounds"
read_ns=$(seconds cat "$folder/cache.safetensors")
printf '%-8s %8.2f GB/s\n' cat "$(echo "$bytes / $read_ns" | bc -l)"

# report FILES COMMAND...: its speed over the bytes of so many files.
report() {
	local files=$1 own_ns
	shift
	own_ns=$(seconds "$kvcanary" "$@")
	printf '%-8s %8.2f GB/s, %3.0f %% of cat, peak %d MB\n' "$1" \
		"$(echo "$files * $bytes / $own_ns" | bc -l)" \
		"$(echo "100 * $files * $read_ns / $own_ns" | bc -l)" \
		$(($(peak "$kvcanary" "$@") / 1024))
}
report 1 check "$folder/cache.safetensors"
report 1 stamp "$folder/cache.safetensors" -o "$folder/side.safetensors"
cp "$folder/cache.safetensors" "$folder/copy.safetensors"
report 2 diff "$folder/cache.safetensors" "$folder/copy.safetensors"
printf '\1' | dd of="$folder/copy.safetensors" bs=1 seek=$((bytes / 2 & ~1)) conv=notrunc status=none
report 2 diff "$folder/cache.safetensors" "$folder/copy.safetensors"
rm "$folder/cache.safetensors" "$folder/copy.safetensors"

if [ "${SPARSE:-1}" = 1 ]; then
	make "$folder/sparse.safetensors" 32 8 $((20 * 1024 * 1024 * 1024 / (32 * 2 * 8 * 128 * 2))) 128 0
	printf 'sparse file of %s bytes: check peak %d MB\n' \
		"$(stat -c %s "$folder/sparse.safetensors")" \
		$(($(peak "$kvcanary" check "$folder/sparse.safetensors") / 1024))
fi
