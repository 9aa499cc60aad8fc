#!/bin/bash
# Brings SGLang's kv-canary and what it imports, from PyPI, into BUILD/sglang-venv and
# BUILD/sglang-package; never into the system. SGLang comes as its wheel alone: of its dependencies
# kv-canary needs torch and triton, which torch brings (with its CUDA libraries, some 5 GB).
# usage: tools/sglang.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
venv=$build/sglang-venv
package=$build/sglang-package
version=0.5.23

mkdir -p "$build"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
if ! "$venv/bin/python" -c 'import torch, triton, numpy, pytest' 2>/dev/null; then
	# The torch that this SGLang asks for.
	"$venv/bin/pip" install --quiet torch==2.14.1 numpy pytest
fi

if [ ! -d "$package/sglang-$version.dist-info" ]; then
	rm -rf "$package"
	"$venv/bin/pip" install --quiet --no-deps --no-compile --target "$package.part" "sglang==$version"
	mv "$package.part" "$package"
fi
