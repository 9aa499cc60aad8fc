# A row copied over another one of its layer (snapshot-rows-repeated); in layer 0 nothing is said.
cp "$KVC_SOURCE/data/safetensors/tr-hf.safetensors" cache.safetensors
copy() {
	dd if=cache.safetensors of=row bs=1 skip="$1" count=16 status=none
	dd if=row of=cache.safetensors bs=1 seek="$2" conv=notrunc status=none
}
copy 456 488 # layer 0, K, head 0: token 2 over 4
kvcanary check cache.safetensors; echo "exit $?"
copy 840 872 # layer 1, K, head 0: token 2 over 4
kvcanary check cache.safetensors; echo "exit $?"
copy 936 968 # and head 1: now the whole row
kvcanary check cache.safetensors; echo "exit $?"
