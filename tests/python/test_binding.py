"""The binding itself: both ways in, threads without the GIL, doctests, the README's example."""

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import kvcanary
import numpy as np
import pytest
from kvcanary import _fast, _lib

ROOT = Path(__file__).resolve().parents[2]
MODULES = [m.name for m in pkgutil.iter_modules(kvcanary.__path__) if not m.name.startswith("_")]


@pytest.mark.parametrize("name", [m for m in MODULES if m != "sglang"])
def test_examples_of_the_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(f"kvcanary.{name}"))
    assert failed == 0


def test_every_public_name_is_documented():
    for name in kvcanary.__all__:
        thing = getattr(kvcanary, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name


@pytest.mark.parametrize("library", ["/no/such.so", "libm.so.6"])
def test_a_library_that_is_none_of_ours(library):
    """Nor one of another version: what it lacks is named."""
    ran = subprocess.run(
        [sys.executable, "-c", "import kvcanary"],
        env={**os.environ, "KVCANARY_LIBRARY": library},
        capture_output=True,
        text=True,
        check=False,
    )
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: kvcanary: cannot load '{library}' (")
    assert "no such file" in last.lower() or "undefined symbol: kvc_" in last


def test_every_function_of_the_library_is_declared():
    header = "".join(path.read_text() for path in (ROOT / "include").glob("*.h"))
    names = re.findall(r"^KVC_API [^;(]*?\b(kvc_\w+)\(", header, re.M)
    assert len(names) > 40
    for name in names:
        assert getattr(_lib.C, name).argtypes is not None, name


def _has_torch():
    return os.environ.get("KVC_REQUIRE_ALL") or importlib.util.find_spec("torch")


def test_the_python_examples_of_the_documents():
    """Those of each document run in order, in one namespace."""
    count = 0
    for document in ("README.md", "docs/python.md"):
        names = {}
        for block in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S):
            if "import torch" in block and not _has_torch():
                continue
            exec(compile(block, document, "exec"), names)
            count += 1
    assert count >= 5


ENTRY_POINTS = _fast._NAMES


def test_entry_points_for_tvm_ffi():
    """They take any DLPack array, raise the catalogue's class, and count their arguments."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    if os.environ.get("KVCANARY_BINDING") == "ctypes":
        pytest.skip("this run is without tvm-ffi")
    module = tvm_ffi.load_module(_lib.library_path())
    for name in ENTRY_POINTS:
        with pytest.raises(TypeError, match=f"{name} takes [0-9]+ arguments, got 1"):
            module.get_function(name)(1)
    scatter = module.get_function("scatter_req_token_ids")
    table = np.zeros((2, 4), np.int32)
    flat, offsets, rows = (np.array(a) for a in ([7, 8, 9], [0, 3], [1]))
    assert scatter(flat, offsets, rows, table, 0, 0, 0, None, None) is None
    assert table[1].tolist() == [7, 8, 9, 0]
    tensors = [tvm_ffi.from_dlpack(a) for a in (flat, offsets, rows, table)]
    scatter(*tensors, 0, False, False, 0, 0)
    with pytest.raises(ValueError, match="offsets length 2 != bs"):
        scatter(flat, offsets, np.array([1, 1]), table, 0, 0, 0, None, None)
    with pytest.raises(TypeError, match="argument 0 must be a tensor or None"):
        scatter("flat", offsets, rows, table, 0, 0, 0, None, None)
    with pytest.raises(TypeError, match="argument 4 must be an int"):
        scatter(flat, offsets, rows, table, "own", 0, 0, None, None)
    with pytest.raises(TypeError, match="argument 7 must be an address or None"):
        scatter(flat, offsets, rows, table, 0, 0, 0, "report", None)
    with pytest.raises(ValueError, match="q is NULL"):
        module.get_function("rope_pool_fused")(*[None] * 10, *[0] * 9, 1, 1.0, *[None] * 4)


def test_rope_pool_fused_of_few_and_of_all_arguments():
    """What rope.py passes: 14 arguments where the others have their defaults, else 25."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    if os.environ.get("KVCANARY_BINDING") == "ctypes":
        pytest.skip("this run is without tvm-ffi")
    function = tvm_ffi.load_module(_lib.library_path()).get_function("rope_pool_fused")
    rope = kvcanary.rope_init(8)
    x, index = np.ones((2, 1, 8), np.float32), np.arange(2)
    wanted = [np.zeros((4, 1, 8), np.float32) for _ in range(2)]
    kvcanary.rope_pool_fused(x, x, x, index, index, *wanted, rope=rope)
    few = (rope.address, 8, 1, 1)
    for rest in (
        (*few, None),
        (*few, -1, 0, 0, -1, False, False, 1.0, 1.0, None, None, None, None),
    ):
        pools = [np.zeros((4, 1, 8), np.float32) for _ in range(2)]
        q, k = x.copy(), x.copy()
        function(q, k, x, index, index, *pools, True, True, *rest)
        assert [p.tobytes() for p in pools] == [p.tobytes() for p in wanted]
        assert k.tobytes() == pools[0][:2].tobytes() == q.tobytes()
    with pytest.raises(ValueError, match="head_dim"):
        function(q, k, x, index, index, *pools, True, True, rope.address, 16, 1, 1, None)
    with pytest.raises(TypeError, match="argument 10 must be an int"):
        function(q, k, x, index, index, *pools, True, True, rope.address, "8", 1, 1, None)


def test_torch_does_not_fall_back_in_silence(monkeypatch):
    """A call that failed would be made again over ctypes, and nobody would know."""
    from frameworks import ALL, Torch

    torch = next((f for f in ALL if isinstance(f, Torch)), None)
    if torch is None or not hasattr(torch.torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("no torch with an exchange API (2.10 and later)")
    if os.environ.get("KVCANARY_BINDING") == "ctypes":
        pytest.skip("this run is over ctypes alone")
    x, index = torch.give(np.ones((2, 1, 8), np.float32)), torch.give(np.arange(2))
    pools = [torch.give(np.zeros((4, 1, 8), np.float32)) for _ in range(2)]
    kvcanary.rope_pool_fused(x, x, x, index, index, *pools)  # loads what it needs
    monkeypatch.setattr("kvcanary._calls.rope_pool_fused", lambda *_: pytest.fail("over ctypes"))
    report = kvcanary.Report()
    for options in ({}, {"rope_base": 5}, {"n_valid": 1}, {"report": report}, {"reserved_slot": 0},
                    {"check_finite": True}, {"rope": kvcanary.rope_init(8)}):  # fmt: skip
        kvcanary.rope_pool_fused(x, x, x, index, index, *pools, **options)
    assert report.rows_written == 2


def test_torch_goes_the_way_it_should(rng):
    from frameworks import ALL, Torch

    torch = next((f for f in ALL if isinstance(f, Torch)), None)
    if torch is None:
        pytest.skip("no torch")
    a = {n: torch.give(np.ones((2, 1, 8), np.float32)) for n in "qkv"}
    pools = [torch.give(np.zeros((4, 1, 8), np.float32)) for _ in range(2)]
    index = torch.give(np.arange(2))
    kvcanary.rope_pool_fused(*a.values(), index, index, *pools, rope_base=1e4)
    binding = os.environ.get("KVCANARY_BINDING")
    exchange = hasattr(torch.torch.Tensor, "__dlpack_c_exchange_api__")
    expected = binding != "ctypes" and (exchange or (_lib.TVM_FFI_READY and binding))
    assert bool(_fast.quick.functions) == bool(expected)
    assert torch.back(pools[1])[1].all()
    # A tensor that wants gradients, which tvm-ffi does not take, and one that no way takes.
    a["q"].requires_grad_(True)
    out = torch.give(np.zeros((2, 1, 8), np.float32))
    kvcanary.rope_pool_fused(*a.values(), index, index, *pools, rope_base=1e4, q_out=out)
    with pytest.raises(TypeError) as caught:
        kvcanary.rope_pool_fused(
            a["q"].to_sparse(), a["k"], a["v"], index, index, *pools, rope_base=1e4, q_out=out
        )
    assert caught.value.slug == "array-expected"


def test_calls_release_the_gil():
    """While one thread is inside a long call, another one gets on."""
    kvcanary.set_num_threads(1)
    rows = np.ones((64, 1 << 20), np.uint8)
    group = kvcanary.Group(np.zeros((64, 4), np.int64), sources=[kvcanary.Source(rows, id=0)],
                           fingerprint="splitmix")  # fmt: skip
    slots = np.arange(64)
    kvcanary.fingerprint(group, slots[:1])
    inside, seen = threading.Event(), []

    def work():
        began = time.monotonic()
        inside.set()
        kvcanary.fingerprint(group, slots)
        seen.extend((began, time.monotonic()))

    old = sys.getswitchinterval()
    sys.setswitchinterval(10)  # the GIL is not taken away from whoever holds it
    try:
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        before = time.monotonic()  # reached while the call runs, only if it let go
        thread.join()
    finally:
        sys.setswitchinterval(old)
    began, ended = seen
    assert ended - before > (ended - began) / 2


def test_threads_in_parallel(rng):
    """Each on its own layer, at once: every result is that of a lone call."""
    tokens, layers = 200, 6
    x = [rng.standard_normal((tokens, 2, 32)).astype(np.float32) for _ in range(layers)]
    positions, slots = np.arange(tokens), rng.permutation(256)[:tokens]

    def one(layer):
        pools = [np.zeros((256, 2, 32), np.float32) for _ in range(2)]
        q_out, k_out, _, _ = kvcanary.rope_pool_fused(
            x[layer], x[layer], x[layer], positions, slots, *pools, rope_base=1e4
        )
        return [a.tobytes() for a in (q_out, k_out, *pools)]

    alone = [one(layer) for layer in range(layers)]
    failures = []

    def work(layer):
        for _ in range(10):
            if one(layer) != alone[layer]:
                failures.append(layer)
            try:
                kvcanary.set_num_threads(-layer - 1)
            except kvcanary.KVCanaryError as error:  # errors are each thread's own
                if f"{-layer - 1}" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(layer,)) for layer in range(layers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_views_keep_their_memory_alive():
    """Groups, plans and rings outlive the names of their arrays."""
    import gc

    def make():
        pool = np.ones((8, 1, 4), np.float32)
        records = np.zeros((8, 4), np.int64)
        return kvcanary.Group(records, sources=[kvcanary.Source.from_pool(pool, 0)])

    group = make()
    gc.collect()
    junk = [np.zeros((8, 1, 4), np.float32) for _ in range(100)]
    wanted = kvcanary.Group(
        np.zeros((8, 4), np.int64),
        sources=[kvcanary.Source.from_pool(np.ones((8, 1, 4), np.float32), 0)],
    )
    slots = np.arange(8)
    assert kvcanary.fingerprint(group, slots).tolist() == (
        kvcanary.fingerprint(wanted, slots).tolist())  # fmt: skip
    del junk


def test_cpu_variants():
    variants = kvcanary.cpu_variants()
    assert variants[-1].name == "portable" and variants[-1].supported
    assert sum(v.chosen for v in variants) == 1


def test_explain():
    entry = kvcanary.explain("ERROR: v_pool shape must match k_pool shape, got (1,) vs (2,)")
    assert entry.slug == "v-pool-shape-must-match-k-pool-shape" and entry.solutions
    with pytest.raises(KeyError):
        kvcanary.explain("all is well")
