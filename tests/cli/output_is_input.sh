# What is read is never written over [cli-output-is-input]; stamps and logs lie beside caches unharmed.
mkdir caches
cp "$KVC_SOURCE/data/safetensors/st-ok.safetensors" caches/a.safetensors
cp "$KVC_SOURCE/data/safetensors/tr-hf.safetensors" caches/b.safetensors
ln -s caches/a.safetensors link
kvcanary stamp caches/a.safetensors -o ./caches/a.safetensors; echo "exit $?"
kvcanary stamp caches/a.safetensors -o link; echo "exit $?"
kvcanary stamp caches -o caches/b.safetensors; echo "exit $?"
kvcanary diff caches/a.safetensors caches/b.safetensors --html caches/b.safetensors; echo "exit $?"
cp "$KVC_SOURCE/data/mooncake_conversation_trace.jsonl" trace.jsonl
kvcanary replay trace.jsonl --requests 1 --html trace.jsonl; echo "exit $?"
cmp caches/a.safetensors "$KVC_SOURCE/data/safetensors/st-ok.safetensors"
cmp caches/b.safetensors "$KVC_SOURCE/data/safetensors/tr-hf.safetensors"
cmp trace.jsonl "$KVC_SOURCE/data/mooncake_conversation_trace.jsonl"
# A stamp and a log in the folder of the caches, twice [snapshot-nothing-found for an empty one].
kvcanary stamp caches -o caches/side.safetensors; echo "exit $?"
kvcanary stamp caches -o caches/side.safetensors | tail -2
kvcanary check caches --side caches/side.safetensors; echo "exit $?"
kvcanary check caches --side caches/side.safetensors --jsonl > log; cp log caches/log
kvcanary check caches --side caches/side.safetensors --jsonl --resume caches/log; echo "exit $?"
mkdir none
kvcanary check none; echo "exit $?"
kvcanary stamp none -o side; echo "exit $?"
# Nor is anything else but a stamp or a page [snapshot-not-written, report-not-written]: pages of a cache
# that is a directory, its manifest, token ids, a cache whose name is that of a stamp.
mkdir raw; printf '%064d' 0 > raw/page; echo 1,2 > tokens; : > empty
echo '{"kvc.pages":1,"layout":"layer_first","dtype":"F32","head_dim":4,"page_rows":2,"pages":["page"]}' > raw/manifest
cp caches/a.safetensors "caches/b.safetensors.stamp.safetensors"
sum() { sha256sum raw/* tokens caches/b.safetensors.stamp.safetensors; }
sum > before
for output in raw/page raw/manifest tokens; do
	kvcanary stamp raw --manifest raw/manifest --tokens tokens -o $output; echo "exit $?"
	kvcanary diff raw/manifest raw/manifest --html $output; echo "exit $?"
done
kvcanary stamp caches/b.safetensors --beside; echo "exit $?"
sum | cmp - before
kvcanary stamp caches/b.safetensors -o empty; kvcanary stamp caches/b.safetensors -o empty | tail -1
# A link that leads nowhere stays one.
ln -s nowhere dangling
kvcanary stamp caches/b.safetensors -o dangling; echo "exit $?"
kvcanary diff caches/b.safetensors caches/b.safetensors --html dangling; echo "exit $?"
readlink dangling
