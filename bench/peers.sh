#!/bin/bash
# Brings the peers that bench/peers_cpu.py times, from PyPI, into build/peers-venv and build/peers-ggml;
# never into the system. torch brings its CUDA libraries along (some 5 GB).
# usage: bench/peers.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
venv=$build/peers-venv
sources=$build/peers-src

mkdir -p "$build"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
	"$venv/bin/pip" install --quiet torch numpy ||
		echo "peers: torch could not be installed; it will not be run" >&2
fi

# Of llama-cpp-python's sources only ggml's CPU back end is needed: two minutes instead of twenty.
if [ ! -e "$build/peers-ggml/src/libggml-cpu.so" ]; then
	mkdir -p "$sources"
	if "$venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$sources" llama-cpp-python; then
		tar -xzf "$sources"/llama_cpp_python-*.tar.gz -C "$sources"
		ggml=$(echo "$sources"/llama_cpp_python-*/vendor/llama.cpp/ggml)
		touch "$ggml/ggml.pc.in" # left out of the source package, wanted by its CMake file
		cmake -S "$ggml" -B "$build/peers-ggml" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
			-DGGML_NATIVE=ON -DGGML_OPENMP=OFF \
			-DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >/dev/null &&
			cmake --build "$build/peers-ggml" --target ggml-cpu -j "$(nproc)" >/dev/null ||
			echo "peers: ggml could not be built; it will not be run" >&2
	else
		echo "peers: llama-cpp-python could not be downloaded; ggml will not be run" >&2
	fi
fi
