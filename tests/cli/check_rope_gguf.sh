# Base, heads and scaling out of a GGUF header; the style is found out. Damaged headers are refused.
data="$KVC_SOURCE/data/llamacpp"
gguf() { # file, architecture, then key=type:value
	python3 - "$@" <<'END'
import struct, sys
def text(s):
    return struct.pack("<Q", len(s)) + s.encode()
path, architecture, *pairs = sys.argv[1:]
body = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
for pair in pairs:
    key, value = pair.split("=")
    kind, value = value.split(":")
    body += text(f"{architecture}.{key}")
    if kind == "f":
        body += struct.pack("<If", 6, float(value))
    elif kind == "u":
        body += struct.pack("<II", 4, int(value))
    elif kind == "s":
        body += struct.pack("<I", 8) + text(value)
    else:  # an array of numbers
        numbers = [int(n) for n in value.split(",")]
        body += struct.pack("<IIQ", 9, 4, len(numbers)) + struct.pack(f"<{len(numbers)}I", *numbers)
names = ["<s>", "a", "b" * 300]
body += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(names))
body += b"".join(text(name) for name in names)
header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs) + 2) + body
header += text("rope_freqs.weight") + struct.pack("<IQIQ", 1, 16, 0, 0)
header += b"\0" * (-len(header) % 32)
with open(path, "wb") as file:
    file.write(header + struct.pack("<16f", *[1.0] * 16))
END
}
gguf llama.gguf llama rope.freq_base=f:10000 attention.head_count=u:4 attention.head_count_kv=a:0,2,2 \
	rope.dimension_count=u:32 attention.key_length=u:32 embedding_length=u:128
kvcanary check "$data/tl-seq-f16.bin" --rope-from llama.gguf | tail -n +2
kvcanary check "$data/tl-seq-f16.rope.bin" --rope-from llama.gguf | tail -n +2
gguf mla.gguf deepseek2 rope.freq_base=f:10000 attention.head_count=u:4 rope.dimension_count=u:16 \
	attention.kv_lora_rank=u:32
kvcanary check "$data/tl-seq-mla.bin" --rope-from mla.gguf | tail -n +2
gguf wrong.gguf llama rope.freq_base=f:1000000 attention.head_count_kv=u:2
kvcanary check "$data/tl-seq-f16.bin" --rope-from wrong.gguf | tail -n +2
kvcanary check "$data/tl-seq-f16.bin" --rope 10000,norm | tail -n +2
for cut in 3 10 30 100 $(($(stat -c %s llama.gguf) - 1)); do
	head -c $cut llama.gguf > cut.gguf
	kvcanary check "$data/tl-seq-f16.bin" --rope-from cut.gguf; echo "exit $?"
done
printf '\x01' | dd of=llama.gguf bs=1 seek=4 conv=notrunc status=none # version 1
kvcanary check "$data/tl-seq-f16.bin" --rope-from llama.gguf
