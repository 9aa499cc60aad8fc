# What people see: formats, parts, layers' numbers, ranges of positions, what is missing.
cd "$KVC_SOURCE/data/llamacpp" || exit 3
kvcanary info smol-seq-f16.bin --heads 3
kvcanary info tl-ctx-swa.bin tl-seq-2stream-s1.bin tl-seq-hole.bin tl-seq-reordered.bin tl-seq-onemore.bin
kvcanary info tl-b5129-seq.bin tl-blob-f16.bin tl-seq-q8k-f16v-vt.bin smol-seq-q8.bin --as llamacpp
kvcanary info tl-seq-mla.bin tl-seq-mamba.bin tl-seq-jamba.bin
echo "exit $?"
