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
# What cannot be read does not stop the rest; a full disk does, and is said with its reason.
ln -s nowhere caches/broken.bin; ln -s .. caches/sub/up; mkfifo caches/fifo
kvcanary check caches 2>&1 | sed "s/: .*snapshot-malformed.*/: (why)/"; rm caches/broken.bin
kvcanary check caches --jsonl > /dev/full; echo "exit $?"
mapfile -t many < <(yes caches/tr-hf.safetensors | head -99)
kvcanary info "${many[@]}" --json > /dev/full; echo "exit $?"
# A log that cannot be read is no empty one; lists and token ids are text to their end.
kvcanary check caches/tr-hf.safetensors --resume caches; echo "exit $?"
printf 'caches/tr-hf.safetensors\0caches/st-ok.safetensors\n' | kvcanary check --from-file -; echo "exit $?"
printf '1 2\0 3' > ids; kvcanary info caches/tr-hf.safetensors --tokens ids; echo "exit $?"
# Names that are no UTF-8 or speak to the terminal.
mkdir names; cp caches/tr-hf.safetensors "$(printf 'names/a\033[31m\nb\377.safetensors')"
cp caches/tr-hf.safetensors "$(printf 'names/\376.safetensors')"
kvcanary stamp names -o side | LC_ALL=C cat -v; kvcanary check names --side side | LC_ALL=C cat -v
kvcanary check names/a* side | LC_ALL=C cat -v; kvcanary diff names/* | LC_ALL=C grep -a '^  [AB]' | LC_ALL=C cat -v
# What a file says of its model does not speak to the terminal either.
for model in 1 2; do
	printf '\206\0\0\0\0\0\0\0%-134sabcdefghijklmnop' \
		'{"__metadata__":{"kvc.model":"\u001b[31m'$model'\nA"},"layers.0.k":{"dtype":"F32","shape":[1,1,1,4],"data_offsets":[0,16]}}' > m$model
done
kvcanary diff m1 m2 | LC_ALL=C grep -a identity | LC_ALL=C cat -v
# What has no end is no list and no log.
kvcanary check --from-file /dev/zero; echo "exit $?"
yes '' | kvcanary check --from-file -; echo "exit ${PIPESTATUS[1]}"
kvcanary stamp caches --beside --resume /dev/zero; echo "exit $?"
