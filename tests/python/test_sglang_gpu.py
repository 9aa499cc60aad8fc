"""kvcanary.sglang on CUDA tensors: the vectors that bind every device, refusals of a launch on
CUDA, streams and graphs. Skipped without torch, a GPU, or a library built with CUDA."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import kvcanary  # noqa: E402
import sglang_vectors as vectors  # noqa: E402
from kvcanary import sglang  # noqa: E402
from test_sglang import world  # noqa: E402

DEVICE = "cuda:0"


def on_device(array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def has_cuda():
    try:
        sglang.launch_scatter_req_token_ids_kernel(
            flat_in=on_device(np.array([5])),
            offsets=on_device(np.array([0, 1])),
            req_pool_indices=on_device(np.array([0])),
            pool_out=on_device(np.zeros((1, 1), np.int32)),
        )
    except kvcanary.KVCanaryError as error:
        if error.slug == "no-cuda":
            return False
        raise
    return True


if not has_cuda():
    pytest.skip("this library was built without CUDA", allow_module_level=True)


@pytest.mark.parametrize("name", ["plan", "write", "verify", "scatter", "hash"])
def test_every_normal_case_is_sglangs(name, capsys):
    """Rows of a ring as sets. hash.jsonl has no classes: all of it binds."""
    count, differing = vectors.run_file(name, vectors.TorchMaker(DEVICE), only="normal")
    with capsys.disabled():
        print(f" {name} {count - len(differing)}/{count}", end=" ")
    assert not differing
    assert count > 30


def test_refusals_on_cuda_are_sglangs(capsys):
    """Of errors.jsonl what does not say that it is about host tensors."""
    calls = {
        "RealKvSource",
        "real_kv_source_abi",
        "scatter_req_token_ids",
        "VerifyPlan.allocate",
        "WritePlan.allocate",
        "launch_plan_offsets_kernel",
    }
    cases = [c for c in vectors.cases_of("errors") if c["call"] in calls]
    make = vectors.TorchMaker(DEVICE)
    differing = [c["id"] for c in cases if not vectors.error_case(c, make)]
    with capsys.disabled():
        print(f" errors {len(cases) - len(differing)}/{len(cases)}", end=" ")
    assert not differing


def test_a_launch_asks_for_contiguous_tensors_of_the_right_types():
    _, write, verify = world(on_device)
    apart = torch.zeros(6, dtype=torch.int64, device=DEVICE)[::2]
    with pytest.raises(ValueError, match=r"^kv-canary: positions must be contiguous$"):
        sglang.launch_canary_write_kernel(**{**write, "positions": apart})
    plan = dataclasses.replace(verify["plan"], verify_slot_indices=apart)
    with pytest.raises(ValueError, match=r"^kv-canary: plan\.verify_slot_indices must be contig"):
        sglang.launch_canary_verify_kernel(**{**verify, "plan": plan})
    with pytest.raises(ValueError, match="are required when enable_write_input_assert=True"):
        sglang.launch_canary_write_kernel(**{**write, "enable_write_input_assert": True})
    with pytest.raises(kvcanary.KVCanaryError):
        sglang.launch_canary_write_kernel(**{**write, "positions": write["positions"].cpu()})


def test_a_step_on_a_stream_of_its_own():
    context, write, verify = world(on_device)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sglang.launch_canary_write_kernel(**write)
        context.real_kv_sources[0].tensor[5, 3] ^= 1
        sglang.launch_canary_verify_kernel(**verify)
    stream.synchronize()
    assert context.violation_write_index.tolist() == [1]
    assert context.violation_ring[0, 1:3].tolist() == [5, 1]


def step_arguments(context, verify_capacity=8):
    """Keywords of a plan over one request that has slots 4, 5, 6 cached."""
    table = np.zeros((2, 8), np.int32)
    table[1, :3] = [4, 5, 6]
    return {
        "verify_plan_out": sglang.VerifyPlan.allocate(
            verify_capacity=verify_capacity, device=DEVICE
        ),
        "write_plan_out": sglang.WritePlan.allocate(write_req_capacity=2, device=DEVICE),
        "req_pool_indices": on_device(np.array([1])),
        "prefix_lens": on_device(np.array([0])),
        "extend_seq_lens": on_device(np.array([3])),
        "req_to_token": on_device(table),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": verify_capacity,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }


def test_a_graph_of_plan_verify_and_write_replays():
    """Captured once; each replay sees the lengths and bytes that are there by then."""
    context, write, _ = world(on_device)
    plan = step_arguments(context)

    def step():
        sglang.launch_canary_plan_kernels(**plan)
        sglang.launch_canary_verify_kernel(
            context=context, plan=plan["verify_plan_out"], check_verify_expected_token=False
        )
        sglang.launch_canary_write_kernel(**{**write, "plan": plan["write_plan_out"]})

    step()  # what is loaded at a first call is loaded outside the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    runs = context.kernel_run_counter.item()
    graph.replay()
    assert context.kernel_run_counter.item() == runs + 2
    plan["prefix_lens"].fill_(3)
    plan["extend_seq_lens"].fill_(0)
    graph.replay()
    assert context.violation_write_index.item() == 0
    context.real_kv_sources[0].tensor[6, 0] ^= 0x80
    graph.replay()
    assert context.violation_write_index.item() == 1
    assert context.violation_ring[0, 1].item() == 6


def test_4096_tokens_leave_the_same_bytes_as_on_the_host(capsys):
    rng = np.random.default_rng(5)
    tokens, requests = 4096, 16
    slots = rng.permutation(tokens) + 1
    pool = rng.integers(0, 256, (tokens + 1, 512), np.uint8)
    ids = rng.integers(0, 32000, tokens)
    positions = np.tile(np.arange(tokens // requests), requests)

    def run(make):
        context, write, _ = world(make, slots=tokens + 1)
        source = sglang.RealKvSource(
            tensor=make(pool.copy()), page_size=1, num_bytes_per_token=512, read_bytes=496
        )
        context = dataclasses.replace(context, real_kv_sources=(source, *context.real_kv_sources))
        write.update(
            context=context,
            input_ids=make(ids),
            positions=make(positions),
            out_cache_loc=make(slots),
            plan=sglang.WritePlan(
                write_offsets=make(np.arange(requests + 1) * (tokens // requests)),
                write_seed_slot_indices=make(np.full(requests, -1)),
                write_num_valid_reqs=make(np.array([requests], np.int32)),
            ),
        )
        sglang.launch_canary_write_kernel(**write)
        return context.canary_buf

    assert np.array_equal(run(np.asarray), run(on_device).cpu().numpy())


def test_indices_outside_are_skipped():
    """What would be a read out of bounds in SGLang's kernels."""
    context, write, verify = world(on_device)
    write["out_cache_loc"] = on_device(np.array([4, 99, 1 << 40]))
    sglang.launch_canary_write_kernel(**write)
    assert context.slot_run_counter.item() == 1
    verify["plan"].verify_slot_indices.copy_(on_device(np.array([-3, 8, 1 << 62])))
    verify["plan"].verify_prev_slot_indices.copy_(on_device(np.array([1 << 62, 99, -9])))
    sglang.launch_canary_verify_kernel(**verify)
    torch.cuda.synchronize()
    assert (context.slot_run_counter.item(), context.violation_write_index.item()) == (4, 0)
    pool = on_device(np.zeros((2, 4), np.int32))
    sglang.launch_scatter_req_token_ids_kernel(
        flat_in=on_device(np.array([1, 2, 3])),
        offsets=on_device(np.array([0, 2, 9])),
        req_pool_indices=on_device(np.array([77, 1])),
        pool_out=pool,
    )
    torch.cuda.synchronize()
    assert pool.sum().item() == 0
