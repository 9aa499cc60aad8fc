# Numbers that a file may state and no cache has; each was once read past something.
make_cache() { # NAME {tensor: [dtype, shape, bytes in hex]}
	python3 - "$@" <<'END'
import json, struct, sys
header, data = {}, b""
for name, (dtype, shape, content) in json.loads(sys.argv[2]).items():
    content = bytes.fromhex(content)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
    data += content
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
END
}
least=0000000000000080
most=ffffffffffffff7f
row=$(printf '0000803f%.0s' {1..4})
echo "--- token ids of the longest kind"
make_cache a "{\"layers.0.k\": [\"F32\", [1, 1, 1, 1], \"0000803f\"], \"tokens\": [\"I64\", [20], \"$(printf "$least%.0s" {1..20})\"]}"
kvcanary info a | tail -n +4
echo "--- a layer without bytes and 2^64 - 1 rows"
make_cache b '{"layers.0.k": ["F32", [0, 1, 18446744073709551615, 1], ""], "layers.1.k": ["F32", [1, 1, 4, 1], "'"$row"'"], "positions": ["I64", [0], ""]}'
kvcanary info b; echo "exit $?"
echo "--- positions at the end of int64"
make_cache c '{"layers.0.k": ["F32", [1, 1, 4, 1], "'"$row"'"], "positions": ["I64", [4], "'"0000000000000000$most$most$least"'"]}'
make_cache d '{"layers.0.k": ["F32", [1, 1, 4, 1], "'"$row"'"]}'
kvcanary check c; echo "exit $?"
kvcanary diff c d; echo "exit $?"
echo "--- no tensor where one is wanted"
make_cache e '{}'
kvcanary info --as safetensors-vllm e; echo "exit $?"
echo "--- more rows than are described"
make_cache f '{"layers.0.k": ["F8_E4M3", [1, 1, 4194305, 1], ""]}'
sed -i '1s/\[0, 0\]/[0, 4194305]/' f
python3 -c '
import struct
data = open("f", "rb").read()
n = data.index(b"}}") + 2
open("f", "wb").write(struct.pack("<Q", n - 8) + data[8:n] + bytes(4194305))'
kvcanary check f; echo "exit $?"
echo "--- V of unknown meaning beside K that can be compared"
make_cache g '{"layers.0.k": ["F32", [1, 1, 4, 2], "'"$row$row"'"], "layers.0.v": ["U8", [1, 1, 4, 2], "0102030405060708"], "tokens": ["I64", [4], "'"$(printf '0700000000000000%.0s' {1..4})"'"]}'
kvcanary check g --rope 10000,half > out; echo "exit $?"; grep -c 'layer 0 V' out
echo "--- links that lead back"
mkdir loop && cp a loop/a.safetensors && ln -s . loop/b && ln -s . loop/c
kvcanary check loop; echo "exit $?"
