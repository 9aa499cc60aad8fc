#!/bin/bash
# Each public header stands alone and is clean as C99 and C++17; the tensor is DLPack's; and the
# library builds with one plain compiler line: no build system, no flags for an instruction set.
# usage: check_header.sh SOURCE_DIR GENERATED_DIR LIBKVCANARY.A
set -euo pipefail
source_dir=$(realpath "$1")
generated_dir=$(realpath "$2")
library=$(realpath "$3")
cc=${CC:-cc}
cxx=${CXX:-c++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

strict=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I "$source_dir/include")
# -pedantic-errors rejects what the standard forbids and -Wpedantic alone would only mention.
"$cc" -std=c99 -pedantic-errors "${strict[@]}" "$source_dir/tests/header.c" -c -o "$work/header.o"
"$cxx" -x c++ -std=c++17 -pedantic-errors "${strict[@]}" "$source_dir/tests/header.c" -c \
	-o "$work/header_cpp.o"
for header in "$source_dir"/include/*.h; do
	echo "#include \"${header##*/}\"" >"$work/alone.c"
	"$cc" -std=c99 -pedantic-errors "${strict[@]}" -fsyntax-only "$work/alone.c"
	"$cxx" -x c++ -std=c++17 -pedantic-errors "${strict[@]}" -fsyntax-only "$work/alone.c"
done
echo "header: clean as C99 and C++17"

"$cc" "$work/header.o" "$library" -pthread -lm -o "$work/header"
"$work/header"
"$cxx" "$work/header_cpp.o" "$library" -pthread -lm -o "$work/header_cpp"
"$work/header_cpp"
echo "header: a C and a C++ program link and run"

if echo '#include <dlpack/dlpack.h>' | "$cc" -E - >"$work/dlpack.i" 2>&1; then
	"$cc" -std=c99 "${strict[@]}" -DKVC_TEST_DLPACK "$source_dir/tests/header.c" -c -o "$work/d.o"
	echo "header: kvc_tensor has the layout of DLTensor"
elif [ -n "${KVC_REQUIRE_ALL:-}" ]; then
	echo "header: dlpack/dlpack.h is not there (Debian: libdlpack-dev)" >&2
	exit 1
else
	echo "SKIP dlpack: dlpack/dlpack.h is not there (Debian: libdlpack-dev)"
fi

mapfile -t sources < <(find "$source_dir/src" -name '*.c' | sort)
"$cc" -D_GNU_SOURCE -Werror=implicit-function-declaration -shared -fPIC -Wl,--no-undefined \
	-I "$source_dir/include" -I "$source_dir/src" -I "$generated_dir" "${sources[@]}" \
	"$generated_dir/catalog_table.c" -pthread -lm -o "$work/plain.so"
echo "header: ${#sources[@]} files and the catalogue's table build with one plain '$cc' line"
