#!/bin/bash
# Brings the Debian packages that an action needs: installs what is missing when it may (root),
# else prints the command that does and exits 2. What is there already, from Debian or elsewhere, is
# left alone: each package is looked for by what it provides.
# usage: tools/setup.sh GROUP...   (build, test, python, peers, browser, sanitize, fuzz, lint, format)
set -euo pipefail

missing=()

# need PACKAGE COMMAND...: PACKAGE is missing unless the command succeeds.
need() {
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || missing+=("$package")
}

# The compiler finds this header.
has_header() {
	echo "#include <$1>" | "${CC:-cc}" -E -
}

# clang has the runtime library of its sanitizers and of libFuzzer.
clang_has_runtimes() {
	local runtimes
	runtimes=$(clang -print-runtime-dir)
	ls "$runtimes"/libclang_rt.tsan*.a "$runtimes"/libclang_rt.fuzzer*.a
}

need_group() {
	case $1 in
	build)
		need cmake command -v cmake
		need make command -v make
		need gcc command -v "${CC:-cc}"
		need libc6-dev has_header stdio.h
		need pkg-config command -v pkg-config
		need python3 python3 -c 'import tomllib'
		need libxxhash-dev has_header xxhash.h
		need libjansson-dev pkg-config --exists jansson
		need libzstd-dev pkg-config --exists libzstd
		;;
	test)
		need_group build
		need g++ command -v "${CXX:-c++}"
		need libcmocka-dev pkg-config --exists cmocka
		need libdlpack-dev has_header dlpack/dlpack.h
		need parallel command -v parallel
		;;
	peers)
		need_group build
		need g++ command -v "${CXX:-c++}"
		need python3-venv python3 -c 'import ensurepip, venv'
		;;
	python)
		need_group build
		need python3-venv /usr/bin/python3 -c 'import ensurepip, venv'
		need python3-torch /usr/bin/python3 -c 'import importlib.util as u; assert u.find_spec("torch")'
		;;
	browser)
		need chromium command -v chromium
		;;
	neon)
		need_group test
		need gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
		need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
		need qemu-user-static command -v qemu-aarch64-static
		for library in cmocka jansson; do
			need "lib$library-dev:arm64" test -e \
				"/usr/lib/aarch64-linux-gnu/pkgconfig/$library.pc"
		done
		;;
	sanitize)
		need_group test
		need clang command -v clang
		need libclang-rt-14-dev clang_has_runtimes
		;;
	fuzz)
		need_group build
		need clang command -v clang
		need libclang-rt-14-dev clang_has_runtimes
		;;
	format)
		need clang-format command -v clang-format
		;;
	lint)
		need_group test
		need clang-tidy command -v clang-tidy
		need cppcheck command -v cppcheck
		need shellcheck command -v shellcheck
		;;
	*)
		echo "setup: no group '$1'" >&2
		exit 2
		;;
	esac
}

look() {
	missing=()
	for group in "${groups[@]}"; do
		need_group "$group"
	done
	mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sed '/^$/d' | sort -u)
}

groups=("$@")
look
[ ${#missing[@]} -eq 0 ] && exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "setup: missing: ${missing[*]}" >&2
	echo "setup: on Debian 12 this brings them:" >&2
	echo "  sudo apt-get update && sudo ${install[*]}" >&2
	exit 2
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
case " ${missing[*]}" in
*:arm64*) dpkg --add-architecture arm64 ;;
esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get -o DPkg::Lock::Timeout=300 update &&
	apt-get -o DPkg::Lock::Timeout=300 "${install[@]:1}"; } >"$log" 2>&1; then
	tail -20 "$log" >&2
	echo "setup: 'apt-get update && ${install[*]}' did not work" >&2
	exit 2
fi
look
if [ ${#missing[@]} -ne 0 ]; then
	echo "setup: installed, and still not usable: ${missing[*]}" >&2
	exit 2
fi
