#!/bin/bash
# Checks all files below a folder with GNU parallel, 32 a process, into a log of JSON lines.
# usage: check_parallel.sh FOLDER LOG [JOBS]
set -euo pipefail
shopt -s lastpipe

[ $# -ge 2 ] || { sed -n 2,3p "$0" >&2; exit 2; }
folder=$1
log=$2
jobs=${3:-$(nproc)}
here=$(dirname "$0")
touch "$log"
# A line that an interruption cut off must not swallow the next one.
[ -z "$(tail -c 1 "$log")" ] || echo >> "$log"
# What this run adds goes beside the log, so that all processes read the same one.
new=$(mktemp "$log.XXXXXX")
trap 'cat "$new" >> "$log"; rm -f "$new"' EXIT

# Words of KVCANARY_CHECK are options; names of files go through as they are, newlines apart.
find "$folder" -type f ! -name '.*' ! -name '*.stamp.safetensors' -print0 | sort -z |
	parallel --null --jobs "$jobs" --max-args 32 --keep-order --line-buffer \
		"kvcanary check --jsonl --jobs 1 ${KVCANARY_CHECK:-} --resume $(printf %q "$log") -- {}; true" \
		> "$new"
cat "$new" >> "$log"
: > "$new"
"$here/fleet_report.py" "$log"
