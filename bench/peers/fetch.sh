#!/bin/bash
# Brings the peers' wheels and unpacks what build.py needs under .anchor/src. .gitignore names both
# folders: nothing of theirs is committed.
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
mkdir -p .whl .anchor/wheels .anchor/src
src=.anchor/src

# For the GPU machine (Python 3.12): only tvm-ffi; it has the headers and the library that the peers' launch code links.
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 -d .whl apache-tvm-ffi==0.1.15.post2
python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux_2_34_x86_64 --platform any -d .anchor/wheels sglang==0.5.23
python3 -m pip download -q --no-deps -d .anchor/wheels flashinfer-python==0.7.4

mkdir -p $src/ffi $src/unpacked
unzip -q -o .whl/apache_tvm_ffi-*.whl -d $src/ffi
unzip -q -o .anchor/wheels/sglang-*.whl 'sglang/kernels/jit/*' 'sglang/kernels/ops/kv_canary/*' -d $src/unpacked
mkdir -p $src/sglang $src/sglang_py/sglang/kernels/ops $src/flashinfer
cp -r $src/unpacked/sglang/kernels/jit/csrc/{elementwise,kv_canary} $src/unpacked/sglang/kernels/jit/include $src/sglang/
cp -r $src/unpacked/sglang/kernels/ops/kv_canary $src/sglang_py/sglang/kernels/ops/
unzip -q -o .anchor/wheels/flashinfer_python-*.whl 'flashinfer/data/include/*' 'flashinfer/data/cccl/*' 'flashinfer/data/csrc/*.cu' 'flashinfer/data/csrc/*.h' \
    'flashinfer/cake_fused_qk_rope_append_backend/*' 'flashinfer/cake_fused_qk_rope_fp8_append_backend/*' -d $src
rm -rf $src/unpacked
du -sh $src
# By hand, if wanted: SGLang's main branch, kernels/ops/kv_canary/scatter_req_token_ids.py, as $src/sglang_main/scatter_req_token_ids.py.
