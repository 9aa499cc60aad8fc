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
