# One clear line each, exit 2, nothing on standard output.
cd "$KVC_SOURCE/data/llamacpp" || exit 3
try() { kvcanary info "$@"; echo "exit $?"; }
try                                        # snapshot-no-file
try missing.bin                            # cli-input-unreadable
kvcanary diff . .; echo "exit $?"          # snapshot-format-unknown: no directory of one cache
try README.md
try tl-seq-f16.bin --as gguf 2>&1 | cut -d, -f1-2  # the list of formats grows
try tl-seq-f16.bin --layout page_first     # of no use for this format, and no layout
try tl-seq-f16.bin --as llamacpp-blob
try README.md --as llamacpp
try tl-seq-f16.bin --heads 5               # snapshot-value
try tl-seq-f16.bin --heads none
try tl-blob-f16.bin --tokens 1,x,2
try tl-blob-f16.bin --tokens missing.txt
try tl-blob-f16.bin --nonsense
try tl-seq-f16.magic.bin
try tl-seq-f16.version.bin
try tl-seq-f16.ncell.bin                   # snapshot-count
try tl-seq-f16.vtrans2.bin
try tl-seq-f16.ktype-f32.bin               # snapshot-type
try tl-seq-f16.vtrans.bin                  # snapshot-structure
try tl-seq-f16.extra.bin                   # snapshot-trailing-bytes
try tl-seq-f16.cut-k.bin                   # snapshot-truncated
