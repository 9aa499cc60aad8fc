# Stamps beside each cache: written, found, missing, resumed, damaged, of a directory that is one cache.
mkdir -p caches/001/vllm
cp "$KVC_SOURCE"/data/safetensors/{tr-hf,st-ok,st-cut1}.safetensors caches
cp "$KVC_SOURCE"/data/safetensors/st-vllm-new-model.layers.0.self_attn.attn.safetensors \
	caches/001/vllm/model.layers.0.self_attn.attn.safetensors
echo "-- written; what cannot be read does not stop the others"
kvcanary stamp caches --beside 2>&1 | sed 's/: field.*/: (why)/'; echo "exit ${PIPESTATUS[0]}"
find caches -name '*.stamp*' | sort
echo "-- found, though stamps lie among the caches"
rm caches/st-cut1.safetensors
kvcanary check caches --beside; echo "exit $?"
kvcanary check caches; echo "exit $?"
kvcanary info caches | grep '^caches'
echo "-- a changed row, and a cache that was saved since"
printf '\1' | dd of=caches/tr-hf.safetensors bs=1 seek=600 conv=notrunc status=none
cp "$KVC_SOURCE/data/safetensors/mlx-0.32.2-kv.safetensors" caches
kvcanary check caches --beside; echo "exit $?"
kvcanary check caches/mlx-0.32.2-kv.safetensors --beside; echo "exit $?"
echo "-- resumed after three lines: the rest; nothing; one whose stamp is lost; one with a changed layer"
cp "$KVC_SOURCE/data/safetensors/tr-hf.safetensors" caches
log() { sed 's/"modified": *[0-9.]*/"modified": 0/'; }
kvcanary stamp caches --beside --jsonl | head -n 3 > log
printf '{"file":"cach' >> log
kvcanary stamp caches --beside --jsonl --resume log | log; kvcanary stamp caches --beside --jsonl --resume log > later
cat later >> log
kvcanary stamp caches --beside --jsonl --resume log; echo "exit $?"
rm caches/st-ok.safetensors.stamp.safetensors
kvcanary stamp caches --beside --jsonl --resume log | log
touch -d 2001-01-01 caches/001/vllm/*; kvcanary check caches --jsonl > log
touch -d 2099-01-01 caches/001/vllm/*; kvcanary check caches --jsonl --resume log | log | grep -o '^.*"exit":[0-9]*'
echo "-- a stamp is no cache: snapshot-is-stamp"
kvcanary check caches/st-ok.safetensors.stamp.safetensors; echo "exit $?"
kvcanary diff caches/st-ok.safetensors caches/st-ok.safetensors.stamp.safetensors; echo "exit $?"
echo "-- a damaged stamp is not damage to its cache"
printf '\1' | dd of=caches/st-ok.safetensors.stamp.safetensors bs=1 seek=900 conv=notrunc status=none
kvcanary check caches/st-ok.safetensors --beside > out 2>&1; echo "exit $?"; grep -o '\[snapshot.*\]' out
echo "-- options that exclude one another"
kvcanary stamp caches --beside -o side; kvcanary stamp caches -o side --resume log
kvcanary check caches --beside --side side; echo "exit $?"
echo "-- with standard output closed nothing is printed into a stamp that is being written"
cp caches/tr-hf.safetensors caches/another; cp caches/tr-hf.safetensors caches/third
for _ in {1..40}; do
	rm -f caches/*.stamp.safetensors; kvcanary stamp caches --beside --jobs 3 >&- 2>&-
	grep -las '^stamped' caches/*.stamp.safetensors
done; kvcanary stamp caches --beside >&-; echo "exit $?"
