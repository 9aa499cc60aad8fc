"""CUDA arrays of torch, CuPy and JAX: the same bytes as on the CPU, on the framework's own stream.

Skipped where there is no GPU or the library was built without CUDA. KVCANARY_REQUIRE_GPU=1 makes that
a failure.
"""

import ctypes
import os
import threading

import kvcanary
import ml_dtypes
import numpy as np
import pytest
from kvcanary import Reason, ReportReason

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def why_not():
    """Why nothing here can run, or None."""
    try:
        import torch
    except ImportError:
        return "no torch"
    if not torch.cuda.is_available():
        return "no GPU"
    probe = torch.zeros(1, 1, 2, device="cuda")
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    try:
        kvcanary.rope_pool_fused(
            probe,
            probe.clone(),
            probe.clone(),
            index,
            index,
            torch.zeros_like(probe),
            torch.zeros_like(probe),
            rope_base=1e4,
        )
    except kvcanary.KVCanaryError as error:
        return str(error)
    return None


REASON = why_not()
if REASON and os.environ.get("KVCANARY_REQUIRE_GPU"):
    raise RuntimeError(f"a GPU is required: {REASON}")
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def world(dtype="bfloat16", tokens=64, heads=(8, 2), dim=64, slots=256, seed=3):
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(kind)

    chosen = rng.permutation(slots)[:tokens].astype(np.int64)
    chosen[::7] = -1
    return {
        "q": normal(tokens, heads[0], dim),
        "k": normal(tokens, heads[1], dim),
        "v": normal(tokens, heads[1], dim),
        "positions": rng.integers(0, 1 << 20, tokens),
        "slots": chosen,
        "k_pool": np.full((slots, heads[1], dim), 7).astype(kind),
        "v_pool": np.full((slots, heads[1], dim), 7).astype(kind),
    }


class TorchCuda:
    name = "torch"

    def give(self, array):
        import torch

        array = np.ascontiguousarray(array)
        made = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
        ctypes.memmove(made.data_ptr(), array.ctypes.data, array.nbytes)
        return made.cuda()

    def back(self, array):
        array = array.contiguous().cpu()
        name = str(array.dtype).removeprefix("torch.")
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        raw = ctypes.string_at(array.data_ptr(), array.numel() * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(tuple(array.shape))


class Cupy:
    name = "cupy"

    def give(self, array):
        cupy = pytest.importorskip("cupy")
        if array.dtype == DTYPES["bfloat16"]:
            pytest.skip("CuPy has no bfloat16")
        return cupy.asarray(array)

    def back(self, array):
        import cupy

        return cupy.asnumpy(array)


class JaxCuda:
    name = "jax"

    def give(self, array):
        jax = pytest.importorskip("jax")
        jax.config.update("jax_enable_x64", True)
        try:
            device = jax.devices("cuda")[0]
        except RuntimeError as error:
            pytest.skip(str(error))
        return jax.block_until_ready(jax.device_put(np.array(array), device))

    def back(self, array):
        import torch

        torch.cuda.synchronize()  # what was launched through kvcanary is unknown to JAX
        return np.asarray(array)


FRAMEWORKS = [TorchCuda(), Cupy(), JaxCuda()]
frameworks = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)


def on_cpu(before, **options):
    arrays = {name: array.copy() for name, array in before.items()}
    return [np.asarray(a).tobytes() for a in kvcanary.rope_pool_fused(*arrays.values(), **options)]


@frameworks
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_rope_has_the_cpu_s_bytes(framework, dtype, style):
    before = world(dtype)
    arrays = {name: framework.give(array) for name, array in before.items()}
    out = kvcanary.rope_pool_fused(*arrays.values(), rope_base=5e5, style=style)
    got = [framework.back(array).tobytes() for array in out]
    assert got == on_cpu(before, rope_base=5e5, style=style)
    assert type(out[0]) is type(arrays["q"])


def test_torch_goes_over_tvm_ffi():
    from kvcanary import _fast

    arrays = {name: TorchCuda().give(array) for name, array in world().items()}
    kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4)
    if os.environ.get("KVCANARY_BINDING") == "ctypes":
        assert not _fast.quick.functions
    else:
        assert _fast.quick.functions


def test_the_current_stream_is_taken():
    """The call queues behind what its stream already has: the slow fill before it comes first."""
    import torch

    before = world("float32", tokens=256, slots=1024)
    wanted = on_cpu(before, rope_base=1e4)
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    k, k_right = arrays["k"], arrays["k"].clone()
    big = torch.randn(6000, 6000, device="cuda")
    for binding in ("current", "explicit"):
        k.zero_()
        arrays["k_pool"].fill_(7)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(20):
                big = big @ big * 1e-4
            k.copy_(k_right)
            if binding == "current":
                out = kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4)
        if binding == "explicit":
            out = kvcanary.rope_pool_fused(
                *arrays.values(),
                rope_base=1e4,
                stream=side,
                q_out=torch.empty_like(arrays["q"]),
                k_out=torch.empty_like(k),
            )
        side.synchronize()
        assert [TorchCuda().back(array).tobytes() for array in out] == wanted, binding


def test_in_a_graph():
    import torch

    before = world("bfloat16")
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    q, k = arrays["q"].clone(), arrays["k"].clone()
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)

    def call():
        kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, q_out=q_out, k_out=k_out)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for array in (q_out, k_out, arrays["k_pool"], arrays["v_pool"]):
        array.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    got = [
        TorchCuda().back(a).tobytes() for a in (q_out, k_out, arrays["k_pool"], arrays["v_pool"])
    ]
    assert got == on_cpu(before, rope_base=1e4)


def test_offending_rows_are_reported():
    before = world("float32", tokens=16)
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    arrays["slots"][3], arrays["positions"][5] = 256, -1
    report = kvcanary.Report(like=arrays["k_pool"])
    kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, report=report)
    assert report.counts == {ReportReason.SLOT_RANGE: 1, ReportReason.POSITION_RANGE: 1}
    assert report.first == {ReportReason.SLOT_RANGE: 3, ReportReason.POSITION_RANGE: 5}


def test_fp8_pools():
    import torch

    before = world("bfloat16")
    pools = [np.zeros(before[n].shape, ml_dtypes.float8_e4m3fn) for n in ("k_pool", "v_pool")]
    before["k_pool"], before["v_pool"] = pools
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    assert arrays["k_pool"].dtype == torch.float8_e4m3fn
    out = kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, k_scale=0.5, v_scale=2.0)
    wanted = on_cpu(before, rope_base=1e4, k_scale=0.5, v_scale=2.0)
    assert [TorchCuda().back(array).tobytes() for array in out] == wanted


def step(give, damage=None, fingerprint="xxh3"):
    """Scatter, plan, write, damage, plan, verify: the arrays' host copies and the violations."""
    rng = np.random.default_rng(9)
    pools = [give(rng.standard_normal((64, 2, 16)).astype(np.float32)) for _ in range(2)]
    records = give(np.zeros((64, 4), np.int64))
    group = kvcanary.Group(
        records,
        sources=[kvcanary.Source.from_pool(pool, i) for i, pool in enumerate(pools)],
        fingerprint=fingerprint,
    )
    ring = kvcanary.Ring.allocate(32, like=records)
    plan = kvcanary.Plan.allocate(verify_capacity=64, write_req_capacity=4, like=records)
    table = np.zeros((4, 8), np.int32)
    table[1, :5], table[2, :3] = [4, 5, 6, 7, 8], [20, 21, 22]
    table = give(table)
    expected = kvcanary.scatter_req_token_ids(
        flat_in=give(np.arange(11, 19)),
        offsets=give(np.array([0, 5, 8])),
        req_pool_indices=give(np.array([1, 2])),
        pool_out=give(np.zeros((4, 8), np.int32)),
    )

    def planned(prefix, extend):
        requests = kvcanary.Requests(
            req_pool_indices=give(np.array([1, 2])), prefix_lens=give(np.array(prefix)),
            extend_seq_lens=give(np.array(extend)),
        )  # fmt: skip
        kvcanary.plan(
            plan,
            requests=requests,
            req_to_token=table,
            expected_tokens=expected,
            valid_lens=give(np.array([5, 3])),
        )
        return requests

    requests = planned([0, 0], [5, 3])
    kvcanary.write(
        group, plan, give(np.arange(11, 19)), give(np.array([0, 1, 2, 3, 4, 0, 1, 2])),
        give(np.array([4, 5, 6, 7, 8, 20, 21, 22])), requests=requests, ring=ring,
    )  # fmt: skip
    if damage:
        damage(pools, records)
    requests = planned([5, 3], [0, 0])
    kvcanary.verify(group, plan, requests=requests, ring=ring)
    found = sorted(ring.poll(), key=lambda v: v.slot)
    prints = kvcanary.fingerprint(group, give(np.arange(64)))
    return records, prints, found, ring.totals(), expected


@frameworks
@pytest.mark.parametrize("fingerprint", ["xxh3", "splitmix"])
def test_a_step_has_the_cpu_s_bytes(framework, fingerprint):
    if framework.name == "jax":
        pytest.skip("plans and rings need arrays that can be written in place: CuPy's or torch's")
    cpu = step(np.array, fingerprint=fingerprint)
    gpu = step(framework.give, fingerprint=fingerprint)
    for host, device in zip((cpu[0], cpu[1], cpu[4]), (gpu[0], gpu[1], gpu[4]), strict=True):
        assert framework.back(device).tobytes() == np.asarray(host).tobytes()
    assert cpu[2] == gpu[2] == []
    assert gpu[3].slots_run == cpu[3].slots_run == 16
    assert gpu[3].bytes_hashed == cpu[3].bytes_hashed > 0


def test_a_violation_is_found():
    def damage(pools, records):
        pools[1][21, 1, 3] += 1
        records[6, 0] = 99

    reasons = {6: Reason.VERIFY_TOKEN, 7: Reason.VERIFY_CHAIN_HASH, 21: Reason.VERIFY_REAL_KV_HASH}
    for give in (np.array, TorchCuda().give):
        assert {v.slot: v.reasons for v in step(give, damage)[2]} == reasons


def test_stamps():
    import torch

    torch_world = {n: TorchCuda().give(a) for n, a in world("bfloat16", slots=256).items()}
    torch_world["slots"] = torch.arange(64, device="cuda") + 10
    records = torch.zeros(256, 4, dtype=torch.int64, device="cuda")
    sources = [kvcanary.Source.from_pool(torch_world[n], i)
               for i, n in enumerate(("k_pool", "v_pool"))]  # fmt: skip
    group = kvcanary.Group(records, sources=sources, stamping="clear")
    kvcanary.rope_pool_fused(*torch_world.values(), rope_base=1e4, stamp=group.stamp(0, 1))
    prints = kvcanary.fingerprint(group, torch_world["slots"])
    assert records[10:74, 3].tolist() == prints.tolist()


def test_void_copy_and_scan():
    import torch

    records = torch.ones(16, 4, dtype=torch.int64, device="cuda")
    pool = torch.zeros(16, 1, 8, device="cuda")
    group = kvcanary.Group(records, sources=[kvcanary.Source.from_pool(pool, 0)])
    kvcanary.void(group, torch.tensor([3, -1], device="cuda"))
    assert records.sum(1).tolist() == [4, 4, 4, 0] + [4] * 12
    kvcanary.copy(group, torch.tensor([3], device="cuda"), torch.tensor([9], device="cuda"))
    assert records[9].tolist() == [0] * 4
    pool[5, 0, 2] = float("inf")
    found = kvcanary.scan_finite(group, torch.arange(16, device="cuda"))
    assert (found.nonfinite_count, found.first_slot, found.first_dim) == (1, 5, 2)


def test_devices_do_not_mix():
    arrays = {name: TorchCuda().give(array) for name, array in world().items()}
    arrays["slots"] = arrays["slots"].cpu()
    with pytest.raises(kvcanary.KVCanaryError) as caught:
        kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4)
    assert caught.value.slug == "device-mismatch"


def test_a_new_thread_has_no_context_of_its_own():
    before = world("bfloat16")
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    results = []

    def work():
        out = kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4)
        results.append([TorchCuda().back(array).tobytes() for array in out])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [on_cpu(before, rope_base=1e4)]


def test_the_guard_works_on_host_memory_and_says_so():
    import torch

    guard = kvcanary.Guard(request_rows=4)
    pool = torch.zeros(16, 1, 8, device="cuda")
    long = {"dtype": torch.int64, "device": "cuda"}

    def refused(call, *arguments, **options):
        with pytest.raises(RuntimeError) as caught:
            call(*arguments, **options)
        assert (caught.value.slug, caught.value.status) == ("no-cuda", kvcanary.Status.E_NO_CUDA)
        assert "works on host memory only" in str(caught.value)

    source = kvcanary.Source.from_pool(pool, 0)
    refused(guard.attach_group, slot_count=16, sources=[source])
    refused(guard.attach_group, slot_count=16, mapping=torch.zeros(16, **long))
    group = guard.attach_group(slot_count=16, stamping="compute")
    one = torch.zeros(1, **long)
    requests = kvcanary.Requests(
        req_pool_indices=one, prefix_lens=one, extend_seq_lens=one, owner_request=one
    )
    arrays = {"tokens": one[:0], "positions": one[:0], "slots": one[:0]}
    table = torch.zeros(4, 8, dtype=torch.int32, device="cuda")
    refused(guard.step_begin, 1, requests=requests, req_to_token=table, **arrays)
    for call, given in ((guard.void, (group, one)), (guard.copy, (group, one, one))):
        with pytest.raises(kvcanary.KVCanaryError) as caught:
            call(*given)
        assert caught.value.slug in ("device-mismatch", "no-cuda")


def test_rings_and_reports_are_read_on_the_caller_s_stream():
    """The counters that a call on a side stream still has to write are waited for."""
    import torch

    side = torch.cuda.Stream()
    before = world("float32", tokens=256, slots=1024)
    arrays = {name: TorchCuda().give(array) for name, array in before.items()}
    report = kvcanary.Report(like=arrays["k"], stream=side)
    group = kvcanary.Group(
        torch.zeros(1024, 4, dtype=torch.int64, device="cuda"),
        sources=[kvcanary.Source.from_pool(arrays["k_pool"], 0)],
    )
    ring = kvcanary.Ring.allocate(8, like=arrays["k"])
    plan = kvcanary.Plan.allocate(verify_capacity=4, write_req_capacity=1, like=arrays["k"])
    big = torch.randn(6000, 6000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            big = big @ big * 1e-4
    kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, stream=side, report=report)
    kvcanary.verify(group, plan, ring=ring, stream=side)
    assert ring.totals(stream=side).kernel_runs == 1
    assert report.rows_written == int((before["slots"] >= 0).sum())
