#!/bin/bash
# examples/fleet: GNU parallel over a folder, interrupted, resumed, reported.
# usage: check_saved_fleet.sh COMMAND
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
command -v parallel >/dev/null || { echo "SKIP: GNU parallel is not here"; exit $((${KVC_REQUIRE_ALL:-0} ? 1 : 77)); }
PATH="$(cd "$(dirname "$1")" && pwd):$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p "caches/a b"
for i in $(seq 40); do
	cp "$source/data/safetensors/tr-hf.safetensors" "caches/a b/$i.safetensors"
done
cp "$source"/data/safetensors/{tr-hf.nan,st-cut1}.safetensors caches

expect() { # what, wanted
	[ "$1" = "$2" ] || { echo "got '$1', expected '$2'"; exit 1; }
}
run() {
	local code=0
	"$source/examples/fleet/check_parallel.sh" caches log 2 > out 2> errors || code=$?
	expect "$code $(tail -n 1 out)" "$1"
}
run "1 42 files: 40 sound, 1 damaged, 1 not checked"
expect "$(wc -l < log)" 42
head -n 10 log > torn # a run that was interrupted
printf '{"file": "cach' >> torn
mv torn log
run "1 42 files: 40 sound, 1 damaged, 1 not checked"
rm caches/tr-hf.nan.safetensors caches/st-cut1.safetensors log
run "0 40 files: 40 sound, 0 damaged, 0 not checked"
expect "$(grep -c '"verdict"' log)" 40
run "0 40 files: 40 sound, 0 damaged, 0 not checked"
expect "$(grep -c '"verdict"' log)" 40 # nothing was looked at again
"$source/examples/fleet/fleet_report.py" log --html page.html > /dev/null
grep -q "40 files: 40 sound" page.html
echo "fleet: good"
