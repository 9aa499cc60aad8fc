kvcanary check
kvcanary stamp
kvcanary stamp "$KVC_SOURCE/data/safetensors/st-ok.safetensors"
kvcanary check --rop 1
kvcanary check --jobs -1 x
