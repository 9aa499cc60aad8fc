# Every changed row is named: snapshot-changed-since-stamp; snapshot-side-damaged, snapshot-side-unfit.
data="$KVC_SOURCE/data/safetensors"
cp "$data"/{tr-hf*,st-ok}.safetensors .
kvcanary stamp tr-hf.safetensors -o side.safetensors
kvcanary check tr-hf.safetensors side.safetensors; echo "exit $?"
for fault in flip swap-rows swap-layers swap-kv token nan zero; do
	kvcanary check tr-hf.$fault.safetensors side.safetensors; echo "exit $?"
done
kvcanary check st-ok.safetensors side.safetensors; echo "exit $?"
kvcanary check tr-hf.safetensors --side st-ok.safetensors; echo "exit $?"
printf x | dd of=side.safetensors bs=1 seek=100 conv=notrunc status=none # a letter of the metadata
kvcanary check tr-hf.safetensors side.safetensors 2>&1 | sed 's/0x[0-9a-f]*/0x/g; s/at offset [0-9]*/at offset N/'
