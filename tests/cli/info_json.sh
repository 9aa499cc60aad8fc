# All that is known of a cache, one object a line; a file that cannot be read does not stop the rest.
cd "$KVC_SOURCE/data/llamacpp" || exit 3
kvcanary info --json tl-ctx-2seq.bin tl-seq-f16.cut1.bin tl-seq-mrope.bin
echo "exit $?"
kvcanary info --json --heads 2 --tokens '5,17,5,42,9,17,5,63' tl-blob-f16.bin
kvcanary info --json tl-seq-jamba.bin
