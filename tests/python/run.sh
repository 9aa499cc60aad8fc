#!/bin/bash
# Tests the Python package as a user gets it: source package, wheel from that, a clean environment
# without a compiler, then the tests, types and style. Everything is kept in the build folder.
# usage: tests/python/run.sh BUILD_FOLDER [--only-wheel | pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
shift || true
venv=$build/python-venv
here=$(pwd)
# torch from PyPI brings 3 GB of CUDA along; Debian's is the CPU's alone, and for its own interpreter.
python=${PYTHON:-/usr/bin/python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 TVM_FFI_DISABLE_TORCH_C_DLPACK=1
unset KVCANARY_LIBRARY PYTHONPATH

mkdir -p "$build"
if ! cmp -s tests/python/requirements.txt "$venv/installed"; then
	rm -rf "$venv"
	"$python" -m venv --system-site-packages "$venv"
	"$venv/bin/pip" install --quiet -r tests/python/requirements.txt
	cp tests/python/requirements.txt "$venv/installed"
fi

"$venv/bin/ruff" format --check
"$venv/bin/ruff" check
"$venv/bin/mypy" --cache-dir "$build/mypy"

# The wheel is built from the source package, so that both are tested.
rm -rf "$build/dist" "$build/wheelhouse"
"$venv/bin/python" -c 'import sys
from scikit_build_core.build import build_sdist
build_sdist(sys.argv[1])' "$build/dist" >/dev/null
PATH=$here/$venv/bin:$PATH "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation \
	-w "$build/dist" "$build"/dist/kvcanary-*.tar.gz \
	--config-settings=build-dir="$here/$build/wheel" \
	--config-settings=cmake.define.KVC_CUDA="${KVC_CUDA:-OFF}"
# The tag says which C library the wheel needs at least; auditwheel finds out and checks the rest.
PATH=$here/$venv/bin:$PATH "$venv/bin/auditwheel" repair -w "$build/wheelhouse" \
	"$build"/dist/kvcanary-*.whl >"$build/auditwheel.log" 2>&1 || { cat "$build/auditwheel.log"; exit 1; }
wheel=$(ls "$build"/wheelhouse/kvcanary-*-py3-none-manylinux*.whl)
echo "$wheel"
[ "${1:-}" != --only-wheel ] || exit 0
"$venv/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"

# An environment with NumPy alone, and a PATH without a compiler.
clean=$build/python-clean
rm -rf "$clean"
"$python" -m venv "$clean"
"$clean/bin/pip" install --quiet "$wheel"
(cd / && env -i PATH="$here/$clean/bin" "$here/$clean/bin/python" "$here/tests/python/clean.py")

"$venv/bin/python" -m pytest -q -p no:cacheprovider --junitxml="$build/python-tests.xml" "$@"
KVCANARY_BINDING=ctypes "$venv/bin/python" -m pytest -q -p no:cacheprovider \
	tests/python/test_binding.py
