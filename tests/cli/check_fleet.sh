# Many files: a line each in the order given, the same for any --jobs; lists, resuming, exit codes.
mkdir -p caches/sub
cp "$KVC_SOURCE"/data/safetensors/{tr-hf,tr-hf.nan,st-ok,st-cut1}.safetensors caches
cp "$KVC_SOURCE/data/safetensors/mlx-0.28.4-kv.safetensors" caches/sub
kvcanary check caches > all; echo "exit $?"
sed "s/: .*snapshot-malformed.*/: (why)/" all
kvcanary check caches --jobs 1 > one; kvcanary check caches --jobs 4 | cmp - one && echo same
printf "%s\n" caches/tr*.safetensors | kvcanary check --from-file -; echo "exit $?"
kvcanary check caches/st-ok.safetensors caches/st-cut1.safetensors > two; echo "exit $?"
: | kvcanary check --from-file -; echo "exit $?"
kvcanary check caches --jsonl > log; echo "exit $?"
sed 's/"modified": *[0-9.]*/"modified": 0/' log | cut -c -110
# A run that was interrupted within its third line; then all is known but what could not be read.
head -n 2 log > torn; printf '{"file": "cac' >> torn
kvcanary check caches --jsonl --resume torn > rest; echo "exit $?"
cat rest >> torn; grep -c '"verdict"' torn
kvcanary check caches --jsonl --resume torn | grep -o '"file": *"[^"]*"'
touch -d 2001-01-01 caches/st-ok.safetensors
kvcanary check caches --jsonl --resume torn | grep -o '"file": *"[^"]*"'
kvcanary check no-such-file; echo "exit $?"
kvcanary stamp caches/tr-hf.safetensors caches/sub -o side; echo "exit $?"
kvcanary check caches/tr-hf.safetensors caches/sub --side side; echo "exit $?"
