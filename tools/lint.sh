#!/bin/bash
# cppcheck and clang-tidy over the library, the command and the examples. Needs build/ configured
# and its catalogue generated ('make lint' sees to both).
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(find src cli bench examples -name '*.c' | sort)

# Style findings of cppcheck contradict the house style here and there; what stays is what can be a
# bug. varFuncNullUB is about a NULL that is the integer 0; here it is a pointer.
cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability \
	--inline-suppr --suppress=missingIncludeSystem --suppress=varFuncNullUB -I include -I src -I build/generated \
	"${files[@]}"
echo "cppcheck: ${#files[@]} files, nothing found"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p build \
	>"$log" 2>&1; then
	grep -v -e 'warnings\? generated' -e '^Suppressed' -e '^Use ' "$log" >&2
	exit 1
fi
echo "clang-tidy: ${#files[@]} files, nothing found"
