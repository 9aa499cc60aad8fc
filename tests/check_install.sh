#!/bin/bash
# Installs the build into a folder, moves it (an installed tree must not know where it was made),
# and lets outside programs in C and C++ use it through pkg-config and through find_package, with
# the shared and with the static library. DESTDIR and other prefixes are checked too.
# usage: check_install.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
outside=$(realpath "$1")/tests/install
build_dir=$(realpath "$2")
cc=${CC:-cc}
cxx=${CXX:-c++}
for tool in "$cc" "$cxx" cmake pkg-config; do
	command -v "$tool" >/dev/null && continue
	echo "SKIP install: $tool is not there"
	[ -z "${KVC_REQUIRE_ALL:-}" ] && exit 77
	exit 1
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DESTDIR
fail() {
	echo "install: $*" >&2
	exit 1
}

cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
pc_file=$(find "$work/moved" -name kvcanary.pc)
lib_dir=$(dirname "$(dirname "$pc_file")")
export PKG_CONFIG_PATH=${pc_file%/*}
[ "$(pkg-config --modversion kvcanary)" = \
	"$("$work/moved/bin/kvcanary" --version | sed 's/^kvcanary //')" ] ||
	fail "kvcanary.pc and the command differ in their version"

for file in doc/kvcanary/snapshots.md doc/kvcanary/errors/README.md man/man1/kvcanary.1 bash-completion/completions/kvcanary zsh/site-functions/_kvcanary; do
	[ -s "$work/moved/share/$file" ] || fail "share/$file is not there"
done

# pkg-config answers several words: they are split on purpose.
read -ra shared_flags <<<"$(pkg-config --cflags --libs kvcanary)"
read -ra static_flags <<<"$(pkg-config --static --cflags --libs kvcanary)"
"$cc" "$outside/outside.c" "${shared_flags[@]}" -o "$work/c_shared"
"$cxx" "$outside/outside.cpp" "${shared_flags[@]}" -o "$work/cpp_shared"
"$cc" "$outside/outside.c" -static "${static_flags[@]}" -o "$work/c_static"
"$cxx" "$outside/outside.cpp" -static "${static_flags[@]}" -o "$work/cpp_static"
for program in c_shared cpp_shared c_static cpp_static; do
	echo "pkg-config $program: $(LD_LIBRARY_PATH=$lib_dir "$work/$program")"
done

cmake -S "$outside" -B "$work/outside" -DCMAKE_PREFIX_PATH="$work/moved" \
	-DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$work/configure.log" ||
	{ cat "$work/configure.log"; fail "find_package did not find it"; }
cmake --build "$work/outside" >"$work/build.log" ||
	{ cat "$work/build.log"; fail "the outside project does not build"; }
for program in c_shared cpp_shared c_static cpp_static; do
	echo "find_package $program: $("$work/outside/outside_$program")"
done

# The version file says no to another minor version.
mkdir "$work/newer"
cat >"$work/newer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(newer LANGUAGES C)
find_package(kvcanary 99.0 QUIET)
if(kvcanary_FOUND)
  message(FATAL_ERROR "version 99.0 was found")
endif()
END
cmake -S "$work/newer" -B "$work/newer/build" -DCMAKE_PREFIX_PATH="$work/moved" \
	-DCMAKE_C_COMPILER="$cc" >"$work/newer.log" || { cat "$work/newer.log"; exit 1; }

DESTDIR=$work/stage cmake --install "$build_dir" --prefix /opt/kvcanary >"$work/stage.log"
[ -x "$work/stage/opt/kvcanary/bin/kvcanary" ] || fail "DESTDIR and prefix are not honoured"
if grep -rlI -e "$work/first" -e "$build_dir" "$work/moved" --include='*.pc' --include='*.cmake'; then
	fail "an installed file names the folder that it was built in"
fi
echo "install: 8 outside programs ran; DESTDIR, prefix and version are honoured"
