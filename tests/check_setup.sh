#!/bin/bash
# tools/setup.sh on a machine that has nothing: a person without rights gets the exact command and
# exit code 2; root gets apt-get called with it, update first, and exit code 2 if that fails.
# The machine is a PATH with a few tools, an 'id' and an 'apt-get' of our own.
# usage: check_setup.sh SOURCE_DIR
set -euo pipefail
setup=$(realpath "$1")/tools/setup.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in bash sed sort mktemp rm ls tail cat; do
	ln -s "$(command -v "$tool")" "$work/bin/$tool"
done
user=1000
packages='cmake gcc libc6-dev libjansson-dev libxxhash-dev libzstd-dev make pkg-config python3'
fail() {
	echo "setup: $*" >&2
	cat "$work/out" >&2
	exit 1
}

# run_setup ARGUMENT...: its output in $work/out, its exit code in $code.
run_setup() {
	printf '#!/bin/bash\necho %s\n' "$user" >"$work/bin/id"
	chmod +x "$work/bin/id"
	code=0
	PATH=$work/bin bash "$setup" "$@" >"$work/out" 2>&1 || code=$?
}

run_setup build
[ "$code" -eq 2 ] || fail "exit code $code without rights, not 2"
command_line="sudo apt-get update && sudo apt-get install -y --no-install-recommends $packages"
grep -qFx "  $command_line" "$work/out" || fail "the command is not '$command_line'"

user=0
run_setup build
[ "$code" -eq 2 ] || fail "exit code $code as root where there is no apt-get, not 2"

cat >"$work/bin/apt-get" <<END
#!/bin/bash
echo "\$DEBIAN_FRONTEND \${*:3}" >>"$work/calls"
[ ! -e "$work/apt-fails" ]
END
chmod +x "$work/bin/apt-get"
run_setup build
[ "$code" -eq 2 ] || fail "exit code $code though nothing was installed, not 2"
grep -q 'still not usable: cmake gcc' "$work/out" || fail "what is still missing is not named"
printf 'noninteractive %s\n' update "install -y --no-install-recommends $packages" |
	diff - "$work/calls" || fail "apt-get was called in another way"

touch "$work/apt-fails"
run_setup build
[ "$code" -eq 2 ] || fail "exit code $code though apt-get failed, not 2"
grep -q 'did not work' "$work/out" || fail "that apt-get failed is not said"

run_setup nonsense
[ "$code" -eq 2 ] || fail "exit code $code for an unknown group, not 2"
echo "setup: 5 cases"
