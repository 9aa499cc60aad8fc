"""kvcanary.sglang apart from its vectors: names and signatures, installing into an SGLang (a small
one made here), what host tensors may be, what is refused."""

import dataclasses
import inspect
import subprocess
import sys
import types
import warnings

import kvcanary
import numpy as np
import pytest
from kvcanary import sglang

PACKAGE = "sglang.kernels.ops.kv_canary"
LAUNCHERS = {
    "launch_canary_plan_kernels": f"{PACKAGE}.plan.api",
    "launch_canary_verify_kernel": f"{PACKAGE}.verify",
    "launch_canary_write_kernel": f"{PACKAGE}.write",
    "launch_scatter_req_token_ids_kernel": f"{PACKAGE}.scatter_req_token_ids",
}


# ---- the module ----


def test_importing_it_imports_neither_sglang_nor_torch():
    code = (
        "import sys, kvcanary.sglang; "
        "sys.exit(any(name in sys.modules for name in ('sglang', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_arguments_are_keywords():
    for name in LAUNCHERS:
        parameters = inspect.signature(getattr(sglang, name)).parameters.values()
        assert {p.kind for p in parameters} == {inspect.Parameter.KEYWORD_ONLY}
        assert all(p.default is inspect.Parameter.empty for p in parameters)


def test_the_numbers_are_sglangs():
    assert sglang.CANARY_CHAIN_ANCHOR == 0xC0FFEE1234567890
    assert (sglang.CANARY_SLOT_BYTES, sglang.VIOLATION_FIELDS) == (32, 8)
    assert (sglang.MAX_REAL_KV_SOURCES, sglang.REAL_KV_SOURCE_FIELDS_PER_ENTRY) == (4, 3)
    assert sglang.REQ_POOL_IDX_PADDING == sglang.TOKEN_TO_KV_SLOT_PADDING == 0
    assert [tag.name for tag in sglang.CanaryLaunchTag] == [
        f"{where}_{half}_{group}"
        for group in ("FULL", "SWA")
        for where in ("HEAD", "TAIL", "SWEEP")
        for half in "KV"
    ]
    assert [int(tag) for tag in sglang.CanaryLaunchTag] == list(range(12))
    assert [int(bit) for bit in sglang.FailReason] == [1, 2, 4, 8, 16, 32]
    assert [mode.name for mode in sglang.RealKvHashMode] == ["NONE", "PARTIAL", "ALL"]
    assert sglang.splitmix64(sglang.CANARY_CHAIN_ANCHOR) == 0xDE7FAE23A9A1B716
    assert sglang.splitmix64_mix3(0, 0, 0) == 0


@pytest.mark.parametrize(
    "kind", [sglang.RealKvSource, sglang.VerifyOrWriteContext, sglang.VerifyPlan, sglang.WritePlan]
)
def test_structures_are_frozen_and_slotted(kind):
    fields = [field.name for field in dataclasses.fields(kind)]
    assert list(kind.__slots__) == fields
    assert all(field.kw_only for field in dataclasses.fields(kind))
    if kind is not sglang.RealKvSource:  # which checks what it is made of
        made = kind(**dict.fromkeys(fields))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, fields[0], 1)


def test_allocation_bytes():
    assert sglang.VerifyPlan.allocation_bytes(10) == 4 * 8 * 10 + 8
    assert sglang.WritePlan.allocation_bytes(10) == 21 * 8 + 4


def test_allocated_plans():
    torch = pytest.importorskip("torch")
    verify = sglang.VerifyPlan.allocate(verify_capacity=3, device="cpu")
    assert verify.verify_slot_indices.dtype == torch.int64
    assert verify.verify_prev_slot_indices.shape == (3,)
    assert (verify.enable.dtype, verify.enable.tolist()) == (torch.int32, [1])
    assert verify.zero_for_testing_() is verify
    assert verify.verify_expected_tokens.tolist() == [-1] * 3
    assert verify.enable.tolist() == [0]
    write = sglang.WritePlan.allocate(write_req_capacity=3, device="cpu")
    assert (write.write_offsets.shape, write.write_seed_slot_indices.shape) == ((4,), (3,))
    assert write.zero_for_testing_().write_offsets.tolist() == [0] * 4


def test_refusals_are_both_of_ours_and_of_python():
    with pytest.raises(ValueError, match=r"must be positive, got 0") as caught:
        sglang.VerifyPlan.allocate(verify_capacity=0, device="cpu")
    assert isinstance(caught.value, kvcanary.KVCanaryError)
    assert caught.value.slug == "sglang-number-must-be-positive"
    ints = np.zeros(1, np.int32)
    with pytest.raises(TypeError, match=r"flat_in must be int64, got torch\.int32"):
        sglang.launch_scatter_req_token_ids_kernel(
            flat_in=ints, offsets=ints, req_pool_indices=ints, pool_out=np.zeros((1, 1), np.int32)
        )


# ---- a step ----


def world(make, slots=8):
    """A context with one source, and keywords that write tokens 7, 8, 9 to slots 4, 5, 6."""
    context = sglang.VerifyOrWriteContext(
        canary_buf=make(np.zeros((slots, 32), np.uint8)),
        kernel_kind=sglang.CanaryLaunchTag.TAIL_V_FULL,
        violation_ring=make(np.zeros((4, 8), np.int64)),
        violation_write_index=make(np.zeros(1, np.int32)),
        slot_run_counter=make(np.zeros(1, np.int64)),
        kernel_run_counter=make(np.zeros(1, np.int64)),
        real_kv_sources=(
            sglang.RealKvSource(
                tensor=make(np.arange(slots * 16, dtype=np.uint8).reshape(slots, 16)),
                page_size=1,
                num_bytes_per_token=16,
                read_bytes=16,
            ),
        ),
        real_kv_hash_mode=sglang.RealKvHashMode.ALL,
        enable_chain_position_assert=make(np.zeros(1, np.int32)),
    )
    write = {
        "context": context,
        "plan": sglang.WritePlan(
            write_offsets=make(np.array([0, 3])),
            write_seed_slot_indices=make(np.array([-1])),
            write_num_valid_reqs=make(np.array([1], np.int32)),
        ),
        "input_ids": make(np.array([7, 8, 9])),
        "positions": make(np.array([0, 1, 2])),
        "out_cache_loc": make(np.array([4, 5, 6])),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    verify = {
        "context": context,
        "plan": sglang.VerifyPlan(
            verify_slot_indices=make(np.array([4, 5, 6])),
            verify_expected_tokens=make(np.array([7, 8, 9])),
            verify_expected_positions=make(np.array([0, 1, 2])),
            verify_prev_slot_indices=make(np.array([-1, 4, 5])),
            verify_num_valid=make(np.array([3], np.int32)),
            enable=make(np.array([1], np.int32)),
        ),
        "check_verify_expected_token": True,
    }
    return context, write, verify


def test_a_step_on_numpy_arrays():
    context, write, verify = world(np.asarray)
    sglang.launch_canary_write_kernel(**write)
    sglang.launch_canary_verify_kernel(**verify)
    assert context.violation_write_index[0] == 0
    context.real_kv_sources[0].tensor[5, 3] ^= 1
    sglang.launch_canary_verify_kernel(**verify)
    assert context.violation_write_index[0] == 1
    text = sglang.violation_text(
        context.violation_ring[0], total_violations=1, ring_overflow=False, step_when_pumped=3
    )
    assert text.startswith(
        "kv_canary violation: launch_tag=TAIL_V_FULL "
        "fail_reason=verify_real_kv_hash slot_idx=5 position=1 stored_token=8"
    )
    assert text.endswith("total_violations=1 ring_overflow=False step_when_pumped=3")


def test_host_tensors_of_other_widths_and_strides_do_as_in_sglangs_reference():
    """Inputs are read, outputs come back into the caller's own tensors."""
    torch = pytest.importorskip("torch")
    context, write, verify = world(lambda array: torch.from_dlpack(array).clone())

    def apart(tensor):
        wider = torch.zeros(2 * len(tensor), dtype=tensor.dtype)
        wider[::2] = tensor
        return wider[::2]

    write.update(
        {
            name: apart(write[name].to(torch.int32))
            for name in ("input_ids", "positions", "out_cache_loc")
        }
    )
    index = context.violation_write_index.to(torch.int64)
    runs = apart(torch.zeros(2, dtype=torch.int64))[:1]
    context = dataclasses.replace(context, violation_write_index=index, slot_run_counter=runs)
    sglang.launch_canary_write_kernel(**{**write, "context": context})
    assert int(runs) == 3
    verify["plan"].verify_expected_tokens[1] = 5
    sglang.launch_canary_verify_kernel(**{**verify, "context": context})
    assert (int(index), int(runs)) == (1, 6)
    assert context.violation_ring[0, 4] == 5


def test_a_plan_comes_back_into_tensors_of_other_widths():
    torch = pytest.importorskip("torch")
    verify = sglang.VerifyPlan.allocate(verify_capacity=4, device="cpu").zero_for_testing_()
    write = sglang.WritePlan.allocate(write_req_capacity=2, device="cpu").zero_for_testing_()
    verify = dataclasses.replace(verify, verify_slot_indices=torch.zeros(4, dtype=torch.int32))
    table = torch.tensor([[0, 0, 0], [5, 6, 7]])
    sglang.launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=torch.tensor([1]),
        prefix_lens=torch.tensor([2], dtype=torch.int16),
        extend_seq_lens=torch.tensor([1]),
        req_to_token=table,
        swa_window_size=0,
        full_to_swa_index_mapping=None,
        verify_capacity=4,
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )
    assert verify.verify_slot_indices.tolist() == [5, 6, 0, 0]
    assert (int(verify.enable), int(verify.verify_num_valid)) == (1, 2)
    assert (write.write_offsets.tolist(), write.write_seed_slot_indices.tolist()) == (
        [0, 1, 0],
        [6, 0],
    )


def test_slots_outside_the_records_are_skipped_and_counted():
    context, write, verify = world(np.asarray)
    write["out_cache_loc"] = np.array([4, 99, 1 << 40])
    sglang.launch_canary_write_kernel(**write)
    assert context.slot_run_counter[0] == 1
    verify["plan"].verify_slot_indices[:] = [-3, 8, 1 << 62]
    verify["plan"].verify_prev_slot_indices[:] = [1 << 62, 99, -9]
    sglang.launch_canary_verify_kernel(**verify)
    assert context.slot_run_counter[0] == 4
    assert context.violation_write_index[0] == 0


def test_what_is_no_array_is_refused():
    _, write, _ = world(np.asarray)
    with pytest.raises(kvcanary.KVCanaryError) as caught:
        sglang.launch_canary_write_kernel(**{**write, "positions": [0, 1, 2]})
    assert caught.value.slug == "array-expected"
    with pytest.raises(AttributeError):
        sglang.launch_canary_write_kernel(**{**write, "plan": None})


# ---- installing ----


def signature_of(name):
    return inspect.signature(getattr(sglang, name))


@pytest.fixture
def installed(monkeypatch):
    """A stand-in for SGLang: its modules by name, launchers that only say whose they are."""
    modules = {}

    def add(name, **contents):
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        modules[name] = module
        return module

    parts = PACKAGE.split(".")
    for end in range(1, len(parts) + 1):
        add(".".join(parts[:end]))
    add(f"{PACKAGE}.plan")
    for name, home in LAUNCHERS.items():

        def theirs(**arguments):
            return "sglang"

        theirs.__signature__ = signature_of(name)
        add(home, **{name: theirs})
    modules[f"{PACKAGE}.plan"].launch_canary_plan_kernels = modules[
        f"{PACKAGE}.plan.api"
    ].launch_canary_plan_kernels
    for user, home, name in (
        ("sglang.srt.kv_canary.endpoint", f"{PACKAGE}.verify", "launch_canary_verify_kernel"),
        ("sglang.srt.kv_canary.endpoint", f"{PACKAGE}.write", "launch_canary_write_kernel"),
        ("a_plugin", f"{PACKAGE}.plan.api", "launch_canary_plan_kernels"),
    ):
        module = modules.get(user) or add(user)
        alias = "plan" if user == "a_plugin" else name
        setattr(module, alias, getattr(modules[home], name))
    yield modules
    sglang.uninstall()


def test_install_reaches_who_bound_a_launcher_by_name(installed):
    endpoint = installed["sglang.srt.kv_canary.endpoint"]
    found = sglang.install()
    assert endpoint.launch_canary_verify_kernel is sglang.launch_canary_verify_kernel
    assert installed["a_plugin"].plan is sglang.launch_canary_plan_kernels
    assert found == sorted(
        [f"{home}.{name}" for name, home in LAUNCHERS.items()]
        + [
            f"{PACKAGE}.plan.launch_canary_plan_kernels",
            "a_plugin.plan",
            "sglang.srt.kv_canary.endpoint.launch_canary_verify_kernel",
            "sglang.srt.kv_canary.endpoint.launch_canary_write_kernel",
        ]
    )
    assert sglang.install() == []
    assert sglang.uninstall() == found
    assert endpoint.launch_canary_verify_kernel() == installed["a_plugin"].plan() == "sglang"
    assert sglang.uninstall() == []


def test_uninstall_reaches_who_was_imported_since(installed):
    sglang.install()
    late = types.ModuleType("late")
    late.launch = installed[f"{PACKAGE}.write"].launch_canary_write_kernel
    assert late.launch is sglang.launch_canary_write_kernel
    installed["a_plugin"].late = late.launch
    assert "a_plugin.late" in sglang.uninstall()
    assert installed["a_plugin"].late() == "sglang"
    assert sglang.launch_canary_write_kernel is not late  # ours stay where they are ours
    assert sglang.launchers.launch_canary_write_kernel is late.launch


def test_an_sglang_with_other_arguments_is_left_alone(installed):
    def other(*, context, plan, stream):
        return "newer"

    installed[f"{PACKAGE}.write"].launch_canary_write_kernel = other
    with pytest.raises(ImportError, match="takes other arguments"):
        sglang.install()
    assert installed[f"{PACKAGE}.verify"].launch_canary_verify_kernel() == "sglang"


def test_install_warns_once_where_the_gpu_would_be_refused(installed, monkeypatch):
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: True)
    torch.Tensor = type("Tensor", (), {})
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sglang.installation, "_warned", [])
    for has_cuda, times in ((True, 0), (False, 1), (False, 0)):
        monkeypatch.setattr(sglang.installation, "library_has_cuda", lambda has=has_cuda: has)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sglang.install()
        assert len(caught) == times
        for warning in caught:
            assert warning.category is RuntimeWarning and warning.filename == __file__
            assert "KVC_CUDA=ON" in str(warning.message)
    torch.cuda.is_available = lambda: False
    monkeypatch.setattr(sglang.installation, "_warned", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sglang.install()


def test_without_sglang_install_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ImportError):
        sglang.install()
