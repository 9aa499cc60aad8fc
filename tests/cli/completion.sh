# What bash offers after a few beginnings; the files are those of the folder.
# shellcheck disable=SC1091
. "$KVC_SOURCE/tools/completion/kvcanary.bash" 2>/dev/null  # no complete in a shell for scripts
touch a.bin b.bin
offer() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	_kvcanary
	echo "$*: $(printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ')"
}
offer kvcanary e
offer kvcanary help inf
offer kvcanary info --j
offer kvcanary info a
offer kvcanary info --manifest b
offer kvcanary info --heads ''
offer kvcanary replay --canary ''
offer kvcanary cpu x
