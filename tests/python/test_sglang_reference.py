"""kvcanary.sglang against SGLang's own torch references: random cases, the same bytes or the same
refusal. And SGLang's own invariants and hand-written hash on our results.

``make test-sglang`` brings SGLang and runs all of it; without KVC_SGLANG it is skipped.
``KVC_SGLANG_CASES`` cases for each operation (10000), from ``KVC_TEST_SEED`` (the clock's).
"""

import dataclasses
import os
import random
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
import sglang_reference  # noqa: E402

if not sglang_reference.FOLDER:
    pytest.skip(
        "KVC_SGLANG names no SGLang; 'make test-sglang' brings one", allow_module_level=True
    )

import sglang_random  # noqa: E402
from kvcanary import KVCanaryError, sglang  # noqa: E402
from kvcanary.sglang import launchers  # noqa: E402

CASES = int(os.environ.get("KVC_SGLANG_CASES", "10000"))
SEED = int(os.environ.get("KVC_TEST_SEED", str(int(time.time()))))
OPS = "kernels.ops.kv_canary"
TESTS = "test.kernels.kv_canary"


def function(module, name):
    return getattr(sglang_reference.module(module), name)


def tensor_at(case, path):
    thing = case
    for name in path.split("."):
        thing = thing[name] if isinstance(thing, dict) else getattr(thing, name)
    return thing


def copy_of(case, outputs):
    """The case with outputs of its own, their strides included; inputs are shared."""
    made = dict(case)
    fields = {}
    for path in outputs:
        tensor = tensor_at(case, path)
        whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        whole.copy_(tensor)
        head, _, tail = path.partition(".")
        if tail:
            fields.setdefault(head, {})[tail] = whole
        else:
            made[head] = whole
    for head, values in fields.items():
        made[head] = dataclasses.replace(made[head], **values)
    return made


def attempt(call, case):
    try:
        call(**case)
    except Exception as error:
        return error
    return None


def same_outputs(ours, theirs, outputs):
    return all(torch.equal(tensor_at(ours, path), tensor_at(theirs, path)) for path in outputs)


def refused_alike(our_error, their_error):
    """The same text and class where SGLang has one of its own; else that both refuse will do."""
    if not isinstance(our_error, KVCanaryError) or their_error is None:
        return False
    if not str(their_error).startswith("kv-canary:"):
        return isinstance(their_error, (IndexError, RuntimeError, ValueError, TypeError))
    return isinstance(our_error, type(their_error)) and str(our_error) == str(their_error)


def two_faults(our_error, their_error):
    """A slot outside the mapping and an index outside a table in one call: SGLang stops at the one
    that it meets first, we look at the tables before the mapping."""
    return isinstance(our_error, IndexError) and "outside full_to_swa_index" in str(their_error)


class Tally(Counter):
    """What came out of the cases of one operation."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation
        self.first = None

    def differ(self, number, what):
        self["differences"] += 1
        self.first = self.first or f"case {number}: {what}"

    def report(self, capsys):
        line = ", ".join(
            f"{self[key]} {key}" for key in ("cases", "equal", "refused alike", "differences")
        )
        more = "".join(
            f", {count} {key}"
            for key, count in sorted(self.items())
            if key not in ("cases", "equal", "refused alike", "differences")
        )
        with capsys.disabled():
            print(f"\n{self.operation}: {line}{more} (seed {SEED})", end=" ")
        assert not self["differences"], self.first
        assert self["cases"] == CASES


def compare(operation, capsys, make, ours, theirs, look=None):
    """Run CASES cases through both. `look` sees each one that was equal."""
    draw = random.Random(f"{SEED} {operation}")
    torch.manual_seed(draw.getrandbits(60))
    cases, tally, outputs = (
        sglang_random.Cases(draw),
        Tally(operation),
        sglang_random.OUTPUTS[operation],
    )
    for number in range(CASES):
        case = make(cases)
        mine, other = copy_of(case, outputs), copy_of(case, outputs)
        our_error, their_error = attempt(ours, mine), attempt(theirs, other)
        tally["cases"] += 1
        if our_error is None and their_error is None:
            if not same_outputs(mine, other, outputs):
                tally.differ(number, f"outputs of {case}")
                continue
            tally["equal"] += 1
            for kind in look(case, mine) if look else ():
                tally[kind] += 1
        elif refused_alike(our_error, their_error) and same_outputs(mine, case, outputs):
            tally["refused alike"] += 1
        elif two_faults(our_error, their_error) and same_outputs(mine, case, outputs):
            tally["refused for the other of two faults"] += 1
        else:
            tally.differ(number, f"ours {our_error!r}, theirs {their_error!r}")
    tally.report(capsys)


# ---- plan ----


def plan_invariants(case, got):
    """SGLang's invariants of a plan, where its tests would ask for them."""
    bs = len(case["req_pool_indices"])
    sound = bs <= len(case["write_plan_out"].write_seed_slot_indices) and all(
        int(lens.min()) >= 0 for lens in (case["prefix_lens"], case["extend_seq_lens"]) if bs
    )
    if not sound or case["full_to_swa_index_mapping"] is not None or case["req_to_token"].min() < 0:
        return
    none = torch.zeros(0, dtype=torch.int64)
    function(f"{TESTS}._invariants", "PlanInvariants").assert_all(
        verify_plan=got["verify_plan_out"],
        write_plan=got["write_plan_out"],
        req_pool_indices=case["req_pool_indices"],
        prefix_lens=case["prefix_lens"],
        extend_seq_lens=case["extend_seq_lens"],
        swa_window_size=max(case["swa_window_size"], 0),
        extras_slot_indices=none,
        extras_positions=none,
        extras_prev_slot_indices=none,
        extras_count=0,
    )
    yield "held to SGLang's invariants"


def test_plan(capsys):
    # Through the launcher, which checks the mapping before it calls the reference.
    compare(
        "plan",
        capsys,
        sglang_random.Cases.plan,
        sglang.launch_canary_plan_kernels,
        function(f"{OPS}.plan", "launch_canary_plan_kernels"),
        plan_invariants,
    )


# ---- write, verify ----


def log_of(context):
    return function(f"{TESTS}._canary_helpers", "FakeViolationLog")(
        ring=context.violation_ring,
        write_index=context.violation_write_index,
        slot_run_counter=context.slot_run_counter,
        kernel_run_counter=context.kernel_run_counter,
        enable_chain_position_assert=context.enable_chain_position_assert,
    )


def hand_hashes(case, got):
    """SGLang's hand-written hash of every slot that was written, of one source."""
    context = case["context"]
    if len(context.real_kv_sources) != 1 or context.real_kv_hash_mode == 0:
        return
    source = context.real_kv_sources[0]
    fold = function(
        f"{TESTS}._hand_oracle",
        "_hand_fold_all" if context.real_kv_hash_mode == 2 else "_hand_fold_partial",
    )
    rows = source.tensor.contiguous().view(torch.uint8)
    records = got["context"].canary_buf.contiguous().view(torch.int64)
    for slot in {s for s in case["out_cache_loc"].tolist() if s >= 0}:
        begin = slot % source.page_size * source.num_bytes_per_token
        raw = bytes(rows[slot // source.page_size, begin : begin + source.read_bytes].tolist())
        assert int(records[slot, 3]) & (1 << 64) - 1 == fold(raw)
        yield "hashes as written by hand"


def write_looks(case, got):
    plan, slots = case["plan"], case["out_cache_loc"].tolist()
    offsets = plan.write_offsets.tolist()
    whole = (
        int(plan.write_num_valid_reqs) == len(offsets) - 1
        and offsets == sorted(offsets)
        and offsets[-1] == len(slots)
    )
    if not whole or not slots:
        return
    yield from hand_hashes(case, got)
    written = [slot for slot in slots if slot >= 0]
    context = case["context"]
    if len(set(written)) < len(written) or int(context.enable_chain_position_assert):
        return
    contiguous = {
        "canary_buf_before": context.canary_buf.contiguous(),
        "canary_buf_after": got["context"].canary_buf.contiguous(),
    }
    function(f"{TESTS}._invariants", "WriteInvariants").assert_all(
        **contiguous,
        plan=plan,
        input_ids=case["input_ids"],
        positions=case["positions"],
        out_cache_loc=case["out_cache_loc"],
        enable_write_verify_inputs=case["enable_write_input_assert"],
        expected_input_tokens=case["expected_input_tokens"],
        expected_input_positions=case["expected_input_positions"],
        log_before=log_of(context),
        log_after=log_of(got["context"]),
    )
    yield "held to SGLang's invariants"


def test_write(capsys):
    compare(
        "write",
        capsys,
        sglang_random.Cases.write,
        sglang.launch_canary_write_kernel,
        function(f"{OPS}.write", "launch_canary_write_kernel"),
        write_looks,
    )


def verify_looks(case, got):
    found = int(got["context"].violation_write_index) - int(case["context"].violation_write_index)
    if found:
        yield "with violations"
    plan = case["plan"]
    if not 0 <= int(plan.verify_num_valid) <= len(plan.verify_slot_indices) or not int(plan.enable):
        return
    function(f"{TESTS}._invariants", "VerifyInvariants").assert_all(
        canary_buf_before=case["context"].canary_buf,
        canary_buf_after=got["context"].canary_buf,
        log_before=log_of(case["context"]),
        log_after=log_of(got["context"]),
        plan=plan,
        kernel_kind=case["context"].kernel_kind,
    )
    yield "held to SGLang's invariants"


def test_verify(capsys):
    write = sglang.launch_canary_write_kernel
    compare(
        "verify",
        capsys,
        lambda cases: cases.verify(write),
        sglang.launch_canary_verify_kernel,
        function(f"{OPS}.verify", "launch_canary_verify_kernel"),
        verify_looks,
    )


# ---- scatter ----


def reference_scatter(**case):
    """SGLang's checks, which its launcher makes before Triton, then its tests' reference."""
    launch = function(f"{OPS}.scatter_req_token_ids", "launch_scatter_req_token_ids_kernel")
    tried = attempt(launch, {**case, "pool_out": case["pool_out"].clone()})
    if str(tried).startswith("kv-canary:"):
        raise tried
    function(f"{TESTS}.scatter_req_token_ids_reference", "scatter_req_token_ids_torch_reference")(
        **case
    )


def test_scatter(capsys):
    compare(
        "scatter",
        capsys,
        sglang_random.Cases.scatter,
        sglang.launch_scatter_req_token_ids_kernel,
        reference_scatter,
    )


# ---- checks alone ----


def compare_checks(operation, capsys, make, ours, theirs):
    draw = random.Random(f"{SEED} {operation}")
    cases, tally = sglang_random.Cases(draw), Tally(operation)
    for number in range(CASES):
        case = make(cases)
        our_error, their_error = attempt(ours, case), attempt(theirs, case)
        tally["cases"] += 1
        if our_error is None and their_error is None:
            tally["equal"] += 1
        elif refused_alike(our_error, their_error) and str(their_error).startswith("kv-canary:"):
            tally["refused alike"] += 1
        else:
            tally.differ(number, f"{case}: ours {our_error!r}, theirs {their_error!r}")
    tally.report(capsys)


def test_sources(capsys):
    """The constructor, then what a launch on CUDA asks."""
    theirs = function(f"{OPS}.verify", "RealKvSource")
    build = function(f"{OPS}.verify", "_build_real_kv_source_abi")

    def make_theirs(**case):
        build(real_kv_sources=(theirs(**case),), device=torch.device("cpu"))

    def make_ours(**case):
        launchers.check_source_launch(sglang.RealKvSource(**case), 0)

    compare_checks("sources", capsys, sglang_random.Cases.source_arguments, make_ours, make_theirs)


def offsets_through_ours(*, verify_capacity, swa_window_size, **tensors):
    entries = torch.zeros(1, dtype=torch.int64)
    launchers.check_plan_offsets_call(
        scratch=tensors["out_verify_offsets_scratch"],
        verify_plan_out=sglang.VerifyPlan(
            verify_slot_indices=entries,
            verify_expected_tokens=entries,
            verify_expected_positions=entries,
            verify_prev_slot_indices=entries,
            verify_num_valid=tensors["out_verify_num_valid"],
            enable=tensors["out_verify_enable"],
        ),
        write_plan_out=sglang.WritePlan(
            write_offsets=tensors["out_write_offsets"],
            write_seed_slot_indices=tensors["out_write_seed_slot_indices"],
            write_num_valid_reqs=tensors["out_write_num_valid_reqs"],
        ),
        **{
            name: tensors[name]
            for name in (
                "req_pool_indices",
                "prefix_lens",
                "extend_seq_lens",
                "req_to_token",
                "full_to_swa_index_mapping",
            )
        },
        swa_window_size=swa_window_size,
        verify_capacity=verify_capacity,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )


def test_plan_checks(capsys, monkeypatch):
    """What SGLang checks on CUDA before the first kernel of a plan, on host tensors."""
    module = sglang_reference.module(f"{OPS}.plan.offsets_kernel")

    class NoKernel:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(module, "_plan_offsets_kernel", NoKernel())
    compare_checks(
        "plan checks",
        capsys,
        sglang_random.Cases.offsets_arguments,
        offsets_through_ours,
        module.launch_plan_offsets_kernel,
    )


# ---- install ----


def test_install_reaches_sglangs_own_users():
    endpoint = sglang_reference.module("srt.kv_canary.endpoint")
    launcher = sglang_reference.module("srt.kv_canary.runner.kernel_launcher")
    manager = sglang_reference.module("srt.kv_canary.req_to_expected_token_ids_manager")
    before = endpoint.launch_canary_write_kernel
    found = sglang.install()
    try:
        assert endpoint.launch_canary_write_kernel is sglang.launch_canary_write_kernel
        assert endpoint.launch_canary_verify_kernel is sglang.launch_canary_verify_kernel
        assert launcher.launch_canary_plan_kernels is sglang.launch_canary_plan_kernels
        assert manager.launch_scatter_req_token_ids_kernel is (
            sglang.launch_scatter_req_token_ids_kernel
        )
        assert "sglang.srt.kv_canary.endpoint.launch_canary_write_kernel" in found
        assert sglang.install() == []
    finally:
        assert sglang.uninstall() == found
    assert endpoint.launch_canary_write_kernel is before


def test_an_endpoint_of_sglang_runs_on_ours():
    """SGLang's CanaryEndpoint, its classes and all, launches our kernels and finds damage."""
    endpoint = sglang_reference.module("srt.kv_canary.endpoint")
    draw = random.Random(SEED)
    cases = sglang_random.Cases(draw)
    strip = cases.verify_module.RealKvSource(
        tensor=torch.randint(0, 256, (16, 32), dtype=torch.uint8),
        page_size=1,
        num_bytes_per_token=32,
        read_bytes=32,
    )
    log = function(f"{TESTS}._canary_helpers", "FakeViolationLog").allocate(
        capacity=8, device=torch.device("cpu")
    )
    made = endpoint.CanaryEndpoint(
        kernel_kind=cases.verify_module.CanaryLaunchTag.TAIL_K_FULL,
        canary_buf=torch.zeros(16, 32, dtype=torch.uint8),
        full_to_swa_index_mapping=None,
        real_kv_sources=(strip,),
        slot_run_counter_view=log.slot_run_counter,
        kernel_run_counter_view=log.kernel_run_counter,
        enable_chain_position_assert=log.enable_chain_position_assert,
    )
    context = cases.verify_module.VerifyOrWriteContext(
        canary_buf=made.canary_buf,
        kernel_kind=made.kernel_kind,
        violation_ring=log.ring,
        violation_write_index=log.write_index,
        slot_run_counter=made.slot_run_counter_view,
        kernel_run_counter=made.kernel_run_counter_view,
        real_kv_sources=made.real_kv_sources,
        real_kv_hash_mode=cases.consts.RealKvHashMode.ALL,
        enable_chain_position_assert=made.enable_chain_position_assert,
    )
    plan = function(f"{TESTS}._canary_helpers", "make_write_plan")(
        write_offsets=[0, 3], seed_slot_indices=[-1], num_valid_reqs=1, device=torch.device("cpu")
    )
    sglang.install()
    try:
        endpoint.launch_canary_write_kernel(
            context=context,
            plan=plan,
            input_ids=torch.tensor([7, 8, 9]),
            positions=torch.tensor([0, 1, 2]),
            out_cache_loc=torch.tensor([4, 5, 6]),
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )
        strip.tensor[5, 31] ^= 1
        endpoint.launch_canary_verify_kernel(
            context=context,
            check_verify_expected_token=False,
            plan=function(f"{TESTS}._canary_helpers", "make_verify_plan")(
                slot_indices=[4, 5, 6],
                positions=[0, 1, 2],
                prev_slot_indices=[-1, 4, 5],
                device=torch.device("cpu"),
            ),
        )
    finally:
        sglang.uninstall()
    assert log.ring[0].tolist()[:2] == [2, 5]
    assert int(log.write_index) == 1
