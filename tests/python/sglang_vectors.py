"""Runs the cases of data/sglang_vectors through kvcanary.sglang, on arrays of any framework.

Each function of a file takes a case and a :class:`Maker` and says whether the results are those
that the case wants. The README beside the files says what their fields mean.
"""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
from kvcanary import sglang
from kvcanary.sglang import launchers

FOLDER = Path(os.environ.get("KVC_VECTORS", Path(__file__).parents[2] / "data/sglang_vectors"))
UNTOUCHED = -777


def packed(shape):
    """Strides without gaps, as torch makes them: a dimension of no extent counts as one."""
    return [int(np.prod([max(extent, 1) for extent in shape[d + 1 :]])) for d in range(len(shape))]


class Maker:
    """Arrays of NumPy; a subclass makes others of them."""

    parallel = False
    """Are requests and rows of a ring in no order?"""

    def array(self, data, dtype=np.int64, shape=None, strides=None):
        """`data`, one-dimensional, seen as `shape` with `strides` in elements."""
        flat = np.array(data, dtype)
        if shape is None:
            return self.view(flat, flat.shape, (1,))
        if strides is None:
            strides = packed(shape)
        return self.view(flat, tuple(shape), tuple(strides))

    def view(self, flat, shape, strides):
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)

    def numpy(self, array):
        return np.array(array)


class TorchMaker(Maker):
    """Torch tensors on one device."""

    def __init__(self, device):
        self.device = device
        self.parallel = device != "cpu"

    def view(self, flat, shape, strides):
        import torch

        # Over DLPack, which also a torch made for an older NumPy knows.
        flat = flat if flat.flags.writeable else flat.copy()
        return torch.from_dlpack(flat).to(self.device).as_strided(shape, strides)

    def numpy(self, array):
        return np.from_dlpack(array.cpu()).copy()


def signed(word):
    return word - (1 << 64) if word >> 63 else word


def numbers(values):
    """Ints, and h64 as the signed numbers that they are."""
    return [signed(int(v, 16)) if isinstance(v, str) else v for v in values]


def source_of(make, case):
    data, rows = np.frombuffer(bytes.fromhex(case["data"]), np.uint8), case["rows"]
    if rows == 1:  # NumPy forgets how far apart the rows of a single one lie
        data, rows = np.concatenate([data, np.zeros_like(data)]), 2
    tensor = make.array(data, np.uint8, (rows, case["row_bytes"]), (case["row_stride"], 1))
    return sglang.RealKvSource(
        tensor=tensor,
        page_size=case["page_size"],
        num_bytes_per_token=case["num_bytes_per_token"],
        read_bytes=case["read_bytes"],
    )


class Canary:
    """A context over a case's records, sources, ring and counters, or over empty ones."""

    def __init__(
        self,
        make,
        *,
        slots,
        stride=32,
        records=None,
        sources=(),
        mode=0,
        kind=0,
        ring=4,
        write_index=0,
        slot_runs=0,
        kernel_runs=0,
        check_steps=0,
    ):
        self._make = make
        data = np.zeros(slots * stride, np.uint8) if records is None else records
        self.context = sglang.VerifyOrWriteContext(
            canary_buf=make.array(data, np.uint8, (slots, stride)),
            kernel_kind=sglang.CanaryLaunchTag(kind),
            violation_ring=make.array(np.zeros(ring * 8), np.int64, (ring, 8)),
            violation_write_index=make.array([write_index], np.int32),
            slot_run_counter=make.array([slot_runs]),
            kernel_run_counter=make.array([kernel_runs]),
            real_kv_sources=tuple(sources),
            real_kv_hash_mode=sglang.RealKvHashMode(mode),
            enable_chain_position_assert=make.array([check_steps], np.int32),
        )

    @classmethod
    def of(cls, make, case):
        return cls(
            make,
            slots=case["num_slots"],
            stride=case["slot_stride"],
            records=np.frombuffer(bytes.fromhex(case["canary"]), np.uint8),
            sources=[source_of(make, s) for s in case["sources"]],
            mode=case["mode"],
            kind=case["kernel_kind"],
            ring=case["ring_capacity"],
            write_index=case["write_index"],
            slot_runs=case["slot_run_counter"],
            kernel_runs=case["kernel_run_counter"],
            check_steps=case.get("enable_chain_position_assert", 0),
        )

    def bytes(self):
        return self._make.numpy(self.context.canary_buf).tobytes()

    def records(self):
        """int64 ``[slots, 4]``."""
        buffer = np.ascontiguousarray(self._make.numpy(self.context.canary_buf))
        return buffer.view(np.int64)[:, :4]

    def rows(self):
        return [tuple(row) for row in self._make.numpy(self.context.violation_ring).tolist()]

    def rows_are(self, want, whole):
        """Rows that the case does not show are zero. A device fills the ring in any order, and one
        that overflows with any of the rows: then `whole` gives a ring that holds them all."""
        rows = self.rows()
        expected = [tuple(numbers(row)) for row in want["ring"]]
        expected += [(0,) * len(rows[0])] * (len(rows) - len(expected)) if rows else []
        if not self._make.parallel:
            return rows == expected
        if want["write_index"] > len(rows):
            return not Counter(rows) - Counter(whole().rows())
        return Counter(rows) == Counter(expected)

    def ring_is(self, want, whole):
        """Rows and counters."""
        make, context = self._make, self.context
        counts = [
            int(make.numpy(c)[0])
            for c in (
                context.violation_write_index,
                context.slot_run_counter,
                context.kernel_run_counter,
            )
        ]
        return self.rows_are(want, whole) and counts == [
            want["write_index"],
            want["slot_run_counter"],
            want["kernel_run_counter"],
        ]

    def write(self, slots, tokens, positions, *, offsets=None, seeds=(-1,)):
        """Stamp `slots`, as one request unless `offsets` says otherwise."""
        make = self._make
        offsets = [0, len(slots)] if offsets is None else offsets
        sglang.launch_canary_write_kernel(
            context=self.context,
            plan=sglang.WritePlan(
                write_offsets=make.array(offsets),
                write_seed_slot_indices=make.array(seeds),
                write_num_valid_reqs=make.array([len(seeds)], np.int32),
            ),
            input_ids=make.array(tokens),
            positions=make.array(positions),
            out_cache_loc=make.array(slots),
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )


# ---- hash.jsonl ----


def _splitmix64(case, make):
    return all(sglang.splitmix64(int(x, 16)) == int(want, 16) for x, want in case["values"])


def _mix3(case, make):
    return all(
        sglang.splitmix64_mix3(*(int(v, 16) for v in values[:3])) == int(values[3], 16)
        for values in case["values"]
    )


def _slot_hash(case, make):
    """What a write stores behind a seed slot with the given record."""
    for slot, token, position, prev_hash, real, want in case["values"]:
        records = np.zeros((max(slot, 0) + 2, 4), np.int64)
        if slot >= 0:
            records[slot] = numbers([token, position, prev_hash, real])
        canary = Canary(make, slots=len(records), records=records.reshape(-1).view(np.uint8))
        canary.write([max(slot, 0) + 1], [1], [1], seeds=[slot])
        if canary.records()[-1, 2] != signed(int(want, 16)):
            return False
    return True


def _chain(case, make):
    tokens, positions = numbers(case["tokens"]), numbers(case["positions"])
    count = len(tokens)
    canary = Canary(make, slots=count + 2)
    canary.write(list(range(1, count + 2)), [*tokens, 0], [*positions, 0])
    return canary.records()[1:, 2].tolist() == numbers([*case["prev_hash"], case["end"]])


def _fingerprint(case, make):
    sources = [source_of(make, s) for s in case["sources"]]
    for want in case["want"]:
        slots = [slot for slot, _ in want["slots"]]
        canary = Canary(make, slots=max(slots) + 1, sources=sources, mode=want["mode"])
        canary.write(slots, [1] * len(slots), [1] * len(slots))
        if canary.records()[slots, 3].tolist() != numbers([h for _, h in want["slots"]]):
            return False
    return True


def _oracle_token(case, make):
    return all(
        sglang.splitmix64(int(ident, 16) ^ position) % case["vocab"] == token
        for ident, position, token in case["values"]
    )


def hash_case(case, make):
    return {
        "splitmix64": _splitmix64,
        "mix3": _mix3,
        "slot_hash": _slot_hash,
        "chain": _chain,
        "fingerprint": _fingerprint,
        "oracle_token": _oracle_token,
    }[case["op"]](case, make)


# ---- plan.jsonl ----

_VERIFY_ARRAYS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
)
_SCALARS = ("verify_num_valid", "enable", "write_num_valid_reqs")


def _table(make, table):
    if table is None:
        return None
    return make.array(table["data"], np.int32, (table["rows"], table["cols"]))


def plans_of(make, capacity, requests):
    verify = sglang.VerifyPlan(
        **{name: make.array([UNTOUCHED] * capacity) for name in _VERIFY_ARRAYS},
        verify_num_valid=make.array([UNTOUCHED], np.int32),
        enable=make.array([UNTOUCHED], np.int32),
    )
    write = sglang.WritePlan(
        write_offsets=make.array([UNTOUCHED] * (requests + 1)),
        write_seed_slot_indices=make.array([UNTOUCHED] * requests),
        write_num_valid_reqs=make.array([UNTOUCHED], np.int32),
    )
    return verify, write


def plan_case(case, make):
    verify, write = plans_of(make, case["verify_capacity"], case["write_req_capacity"])
    mapping = case["full_to_swa_index_mapping"]
    valid_lens = case["req_to_verify_expected_tokens_valid_lens"]
    sglang.launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=make.array(case["req_pool_indices"]),
        prefix_lens=make.array(case["prefix_lens"]),
        extend_seq_lens=make.array(case["extend_seq_lens"]),
        req_to_token=_table(make, case["req_to_token"]),
        swa_window_size=case["swa_window_size"],
        full_to_swa_index_mapping=None if mapping is None else make.array(mapping),
        verify_capacity=case["verify_capacity"],
        req_to_verify_expected_tokens=_table(make, case["req_to_verify_expected_tokens"]),
        req_to_verify_expected_tokens_valid_lens=(
            None if valid_lens is None else make.array(valid_lens)
        ),
        kv_token_id_vs_position_offset=case["kv_token_id_vs_position_offset"],
    )
    want = case["want"]
    for name in (*_VERIFY_ARRAYS, "write_offsets", "write_seed_slot_indices"):
        plan = verify if hasattr(verify, name) else write
        if make.numpy(getattr(plan, name)).tolist() != want[name]:
            return False
    return all(
        int(make.numpy(getattr(verify if hasattr(verify, name) else write, name))[0]) == want[name]
        for name in _SCALARS
    )


# ---- write.jsonl, verify.jsonl ----


def _with_room(case):
    """The same case with a ring that holds all rows."""
    return {**case, "ring_capacity": max(case["ring_capacity"], case["want"]["write_index"])}


def _write(case, make):
    canary = Canary.of(make, case)
    plan, check = case["plan"], case["enable_write_input_assert"]
    sglang.launch_canary_write_kernel(
        context=canary.context,
        plan=sglang.WritePlan(
            write_offsets=make.array(plan["write_offsets"]),
            write_seed_slot_indices=make.array(plan["write_seed_slot_indices"]),
            write_num_valid_reqs=make.array([plan["write_num_valid_reqs"]], np.int32),
        ),
        input_ids=make.array(numbers(case["input_ids"])),
        positions=make.array(numbers(case["positions"])),
        out_cache_loc=make.array(case["out_cache_loc"]),
        enable_write_input_assert=check,
        expected_input_tokens=(
            make.array(numbers(case["expected_input_tokens"])) if check else None
        ),
        expected_input_positions=(
            make.array(numbers(case["expected_input_positions"])) if check else None
        ),
    )
    return canary


def write_case(case, make):
    canary, want = _write(case, make), case["want"]
    return canary.bytes().hex() == want["canary"] and canary.ring_is(
        want, lambda: _write(_with_room(case), Maker())
    )


def _verify(case, make):
    canary, plan = Canary.of(make, case), case["plan"]
    sglang.launch_canary_verify_kernel(
        context=canary.context,
        plan=sglang.VerifyPlan(
            **{name: make.array(numbers(plan[name])) for name in _VERIFY_ARRAYS},
            verify_num_valid=make.array([plan["verify_num_valid"]], np.int32),
            enable=make.array([plan["enable"]], np.int32),
        ),
        check_verify_expected_token=case["check_verify_expected_token"],
    )
    return canary


def verify_case(case, make):
    canary = _verify(case, make)
    return canary.bytes().hex() == case["canary"] and canary.ring_is(
        case["want"], lambda: _verify(_with_room(case), Maker())
    )


# ---- scatter.jsonl, report.jsonl ----


def scatter_case(case, make):
    rows, stride = case["pool_rows"], case["pool_row_stride"]
    whole = make.array(case["pool_before"], np.int32, (rows, stride))
    sglang.launch_scatter_req_token_ids_kernel(
        flat_in=make.array(numbers(case["flat_in"])),
        offsets=make.array(case["offsets"]),
        req_pool_indices=make.array(case["req_pool_indices"]),
        pool_out=whole[:, : case["pool_cols"]],
    )
    return make.numpy(whole).reshape(-1).tolist() == case["want"]["pool"]


def report_case(case, make):
    return case["text"] == sglang.violation_text(
        numbers(case["row"]),
        total_violations=case["total_violations"],
        ring_overflow=case["ring_overflow"],
        step_when_pumped=case["step_when_pumped"],
    )


# ---- errors.jsonl ----


def _described(make, item):
    shape = item["shape"]
    strides = item.get("strides")
    if strides is None:
        strides = packed(shape)
    reach = 1 + sum(max(extent - 1, 0) * step for extent, step in zip(shape, strides, strict=True))
    return make.array(np.zeros(reach), np.dtype(item["dtype"]), shape, strides)


def _error_source(i, make):
    sglang.RealKvSource(
        tensor=_described(make, i),
        page_size=i["page_size"],
        num_bytes_per_token=i["num_bytes_per_token"],
        read_bytes=i["read_bytes"],
    )


def _error_launch(i, make):
    launchers.check_source_launch(
        sglang.RealKvSource(
            tensor=_described(make, i), page_size=1, num_bytes_per_token=16, read_bytes=16
        )
        if len(i["shape"]) == 2
        else _Bare(_described(make, i)),
        0,
    )


class _Bare:
    """A source that no constructor has seen."""

    def __init__(self, tensor):
        self.tensor, self.page_size, self.num_bytes_per_token, self.read_bytes = tensor, 1, 16, 16


def _error_scatter(i, make):
    sglang.launch_scatter_req_token_ids_kernel(
        **{name: _described(make, item) for name, item in i.items()}
    )


def _error_plan(i, make):
    bs, slots = i["bs"], i["slots"]
    verify, write = plans_of(make, i["allocated_verify_capacity"], i["write_req_capacity"])
    length = i["mapping_len"]
    sglang.launch_canary_plan_kernels(
        verify_plan_out=verify,
        write_plan_out=write,
        req_pool_indices=make.array([1] * bs),
        prefix_lens=make.array([i["prefix"]] * bs),
        extend_seq_lens=make.array([1] * bs),
        req_to_token=make.array([0] * len(slots) + slots, np.int32, (2, len(slots))),
        swa_window_size=i["swa_window_size"],
        full_to_swa_index_mapping=None if length is None else make.array(range(length)),
        verify_capacity=i["verify_capacity"],
        req_to_verify_expected_tokens=(
            make.array([0] * 16, np.int32, (2, 8)) if i["expected_tokens"] else None
        ),
        req_to_verify_expected_tokens_valid_lens=(
            make.array([2] * bs) if i["valid_lens"] else None
        ),
        kv_token_id_vs_position_offset=0,
    )


def _error_offsets(i, make):
    forms = {
        "req_pool_indices": ((i["bs"],), "int64"),
        "prefix_lens": ((i["bs"],), "int64"),
        "extend_seq_lens": ((i["bs"],), "int64"),
        "req_to_token": (tuple(i["table_shape"]), "int32"),
        "lut_tensor": ((i["mapping_len"] or 0,), "int64"),
        "out_verify_offsets_scratch": ((i["scratch_len"],), "int64"),
        "out_write_offsets": ((i["write_offsets_len"],), "int64"),
        "out_write_seed_slot_indices": ((i["seeds_len"],), "int64"),
        "out_verify_num_valid": ((1,), "int32"),
        "out_verify_enable": ((1,), "int32"),
        "out_write_num_valid_reqs": ((1,), "int32"),
    }
    made = {}
    for name, (shape, dtype) in forms.items():
        item = {"shape": shape, "dtype": i["dtype"] if i["dtype_of"] == name else dtype}
        if i["shape_of"] == name:
            item["shape"] = i["shape"]
        if i["non_contiguous"] == name:
            item["strides"] = [2 * stride for stride in packed(shape)]
        made[name] = _described(make, item)
    verify, _ = plans_of(make, 4, 1)
    launchers.check_plan_offsets_call(
        scratch=made["out_verify_offsets_scratch"],
        verify_plan_out=sglang.VerifyPlan(
            **{name: getattr(verify, name) for name in _VERIFY_ARRAYS},
            verify_num_valid=made["out_verify_num_valid"],
            enable=made["out_verify_enable"],
        ),
        write_plan_out=sglang.WritePlan(
            write_offsets=made["out_write_offsets"],
            write_seed_slot_indices=made["out_write_seed_slot_indices"],
            write_num_valid_reqs=made["out_write_num_valid_reqs"],
        ),
        req_pool_indices=made["req_pool_indices"],
        prefix_lens=made["prefix_lens"],
        extend_seq_lens=made["extend_seq_lens"],
        req_to_token=made["req_to_token"],
        swa_window_size=0,
        full_to_swa_index_mapping=None if i["mapping_len"] is None else made["lut_tensor"],
        verify_capacity=i["verify_capacity"],
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        kv_token_id_vs_position_offset=0,
    )


def _error_canary(i, make):
    strip = make.array(np.zeros(64), np.uint8, (4, 16))
    return Canary(
        make,
        slots=4,
        stride=i["slot_stride"],
        mode=2,
        sources=[
            sglang.RealKvSource(tensor=strip, page_size=1, num_bytes_per_token=16, read_bytes=16)
        ]
        * i["sources"],
    )


def _error_write(i, make):
    one = make.array([0])
    sglang.launch_canary_write_kernel(
        context=_error_canary(i, make).context,
        plan=sglang.WritePlan(
            write_offsets=make.array([0, 1]),
            write_seed_slot_indices=make.array([-1]),
            write_num_valid_reqs=make.array([i["requests"]], np.int32),
        ),
        input_ids=one,
        positions=one,
        out_cache_loc=make.array([1]),
        enable_write_input_assert=i["enable_write_input_assert"],
        expected_input_tokens=one if i["expected_input_tokens"] else None,
        expected_input_positions=one if i["expected_input_positions"] else None,
    )


def _error_verify(i, make):
    one = make.array([1])
    sglang.launch_canary_verify_kernel(
        context=_error_canary(i, make).context,
        plan=sglang.VerifyPlan(
            verify_slot_indices=one,
            verify_expected_tokens=one,
            verify_expected_positions=one,
            verify_prev_slot_indices=one,
            verify_num_valid=make.array([1], np.int32),
            enable=make.array([1], np.int32),
        ),
        check_verify_expected_token=False,
    )


_CALLS = {
    "RealKvSource": _error_source,
    "real_kv_source_abi": _error_launch,
    "scatter_req_token_ids": _error_scatter,
    "VerifyPlan.allocate": lambda i, make: sglang.VerifyPlan.allocate(device="cpu", **i),
    "WritePlan.allocate": lambda i, make: sglang.WritePlan.allocate(device="cpu", **i),
    "launch_canary_plan_kernels": _error_plan,
    "launch_plan_offsets_kernel": _error_offsets,
    "launch_canary_write_kernel": _error_write,
    "launch_canary_verify_kernel": _error_verify,
}


def error_case(case, make):
    """The same class and text, or none."""
    try:
        _CALLS[case["call"]](case["inputs"], make)
    except (ValueError, TypeError) as error:
        classes = [base.__name__ for base in type(error).__mro__]
        return case["error"] in classes and str(error) == case["message"]
    return case["error"] is None


FILES = {
    "hash": hash_case,
    "plan": plan_case,
    "write": write_case,
    "verify": verify_case,
    "scatter": scatter_case,
    "errors": error_case,
    "report": report_case,
}


def cases_of(name):
    """The cases of a file, as many as its first line promises."""
    with (FOLDER / f"{name}.jsonl").open() as lines:
        promised = json.loads(next(lines))["cases"]
        cases = [json.loads(line) for line in lines]
    assert len(cases) == promised
    return cases


def run_file(name, make, only=None):
    """(how many cases, ids of those that differ) of a file; `only` a class of cases."""
    cases = [c for c in cases_of(name) if only is None or c.get("class", only) == only]
    return len(cases), [c["id"] for c in cases if not FILES[name](c, make)]
