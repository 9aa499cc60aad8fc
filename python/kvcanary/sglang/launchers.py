"""The launchers of SGLang's kv-canary. Arguments are converted here; the rules are in C."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import _abi
from .._fast import quick
from .._lib import C
from .._tensor import Array, View, device_of, is_torch, stream_of, view
from ..canary import Violation
from ..errors import check
from .consts import MAX_REAL_KV_SOURCES
from .structures import source_struct

if TYPE_CHECKING:
    from .structures import VerifyOrWriteContext, VerifyPlan, WritePlan

__all__ = [
    "launch_canary_plan_kernels",
    "launch_canary_verify_kernel",
    "launch_canary_write_kernel",
    "launch_scatter_req_token_ids_kernel",
    "violation_text",
]


def _quickly(name: str, first: Array, arguments: tuple[Any, ...] | None) -> bool:
    """Make the call by the quick way, where that takes it. The arguments are those of src/ffi.

    A call that fails there has written nothing; it is made again over ctypes, which says why in the
    catalogue's words, or succeeds with what that alone could not take.
    """
    if quick.tensor_type is None and type(first).__module__ == "torch":
        quick.load()
    function = quick.functions.get(name)
    if function is None or arguments is None or type(first) is not quick.tensor_type:
        return False
    try:
        function(*arguments, None)
    except Exception:
        return False
    return True


class _Call:
    """The tensors of one call as C takes them, alive until it returns.

    On the host SGLang runs a torch reference, which takes integers of any width and any strides.
    What C would not take as it is goes there as a copy, and comes back from one; that is never so
    on CUDA, where SGLang is as strict.
    """

    def __init__(self, home: Array, *, strict: bool = False) -> None:
        self.stream = stream_of(home, None)
        self._home = home
        self._lenient = not strict and is_torch(home) and home.device.type == "cpu"
        self._kept: list[Any] = []
        self._copies: list[tuple[Array, Array]] = []

    def __call__(
        self, array: Array | None, name: str, dtype: str = "int64", *, out: bool = False
    ) -> int | None:
        """The address of `array` as a kvc_tensor; None for None."""
        if array is None:
            return None
        if self._lenient and is_torch(array) and array.device.type == "cpu":
            array = self._host(array, dtype, out)
        return self.keep(view(array, name, writable=out, stream=self.stream))

    def _host(self, array: Array, dtype: str, out: bool) -> Array:
        import torch

        wanted = getattr(torch, dtype)
        if array.dtype == wanted and array.is_contiguous():
            return array
        if array.is_floating_point() or array.is_complex():
            return array
        copy = array.to(wanted).contiguous()
        if out:
            self._copies.append((array, copy))
        return copy

    def keep(self, seen: View) -> int:
        self._kept.append(seen)
        return seen.address

    def address(self, struct: ctypes.Structure | ctypes.Array[Any]) -> int:
        self._kept.append(struct)
        return ctypes.addressof(struct)

    def run(self, function: Any, *arguments: Any) -> None:
        with device_of(self._home):
            check(function(*arguments, self.stream))
        for array, copy in self._copies:
            array.copy_(copy)


def _verify_plan(call: _Call, plan: VerifyPlan, name: str, *, out: bool) -> int:
    def field(which: str, dtype: str = "int64") -> int | None:
        return call(getattr(plan, which), f"{name}.{which}", dtype, out=out)

    return call.address(_abi.kvc_sglang_verify_plan(
        verify_slot_indices=field("verify_slot_indices"),
        verify_expected_tokens=field("verify_expected_tokens"),
        verify_expected_positions=field("verify_expected_positions"),
        verify_prev_slot_indices=field("verify_prev_slot_indices"),
        verify_num_valid=field("verify_num_valid", "int32"),
        enable=field("enable", "int32"),
    ))  # fmt: skip


def _write_plan(call: _Call, plan: WritePlan, name: str, *, out: bool) -> int:
    def field(which: str, dtype: str = "int64") -> int | None:
        return call(getattr(plan, which), f"{name}.{which}", dtype, out=out)

    return call.address(_abi.kvc_sglang_write_plan(
        write_offsets=field("write_offsets"),
        write_seed_slot_indices=field("write_seed_slot_indices"),
        write_num_valid_reqs=field("write_num_valid_reqs", "int32"),
    ))  # fmt: skip


def _context(call: _Call, context: VerifyOrWriteContext, *, writes: bool) -> int:
    sources = context.real_kv_sources
    structs = (_abi.kvc_sglang_source * max(len(sources), 1))()
    for i, source in enumerate(sources):
        structs[i], seen = source_struct(source, f"real_kv_sources[{i}].tensor", call.stream)
        call.keep(seen)
    # The buffer goes as it is: a copy would be stamped in its place, and the size of the pool.
    buffer = view(context.canary_buf, "canary_buf", writable=writes, stream=call.stream)
    return call.address(_abi.kvc_sglang_context(
        canary_buf=call.keep(buffer),
        kernel_kind=int(context.kernel_kind),
        violation_ring=call(context.violation_ring, "violation_ring", out=True),
        violation_write_index=call(
            context.violation_write_index, "violation_write_index", "int32", out=True),
        slot_run_counter=call(context.slot_run_counter, "slot_run_counter", out=True),
        kernel_run_counter=call(context.kernel_run_counter, "kernel_run_counter", out=True),
        real_kv_sources=call.address(structs),
        real_kv_source_count=len(sources),
        real_kv_hash_mode=int(context.real_kv_hash_mode),
        enable_chain_position_assert=call(
            context.enable_chain_position_assert, "enable_chain_position_assert", "int32"),
    ))  # fmt: skip


_NO_SOURCE = (None, 0, 0, 0)


def _flat_context(context: VerifyOrWriteContext) -> tuple[Any, ...] | None:
    """A context as the entry points take it; None if it has too many sources."""
    sources = context.real_kv_sources
    spare = MAX_REAL_KV_SOURCES - len(sources)
    if spare < 0:
        return None
    flat: list[Any] = [
        context.canary_buf,
        int(context.kernel_kind),
        context.violation_ring,
        context.violation_write_index,
        context.slot_run_counter,
        context.kernel_run_counter,
        len(sources),
        int(context.real_kv_hash_mode),
        context.enable_chain_position_assert,
    ]
    for source in sources:
        flat += (source.tensor, source.page_size, source.num_bytes_per_token, source.read_bytes)
    return (*flat, *_NO_SOURCE * spare)


def _flat_verify_plan(plan: VerifyPlan) -> tuple[Array, ...]:
    return (
        plan.verify_slot_indices,
        plan.verify_expected_tokens,
        plan.verify_expected_positions,
        plan.verify_prev_slot_indices,
        plan.verify_num_valid,
        plan.enable,
    )


def _flat_write_plan(plan: WritePlan) -> tuple[Array, ...]:
    return plan.write_offsets, plan.write_seed_slot_indices, plan.write_num_valid_reqs


def _plan_arguments(call: _Call, arguments: dict[str, Any]) -> _abi.kvc_sglang_plan_args:
    """The keywords of launch_canary_plan_kernels as C takes them."""
    tables = {"req_to_token": "int32", "req_to_verify_expected_tokens": "int32"}
    tensors = {
        name: call(arguments[name], name, tables.get(name, "int64"))
        for name in (
            "req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token",
            "full_to_swa_index_mapping", "req_to_verify_expected_tokens",
            "req_to_verify_expected_tokens_valid_lens",
        )
    }  # fmt: skip
    return _abi.kvc_sglang_plan_args(
        verify_plan_out=_verify_plan(
            call, arguments["verify_plan_out"], "verify_plan_out", out=True),
        write_plan_out=_write_plan(call, arguments["write_plan_out"], "write_plan_out", out=True),
        swa_window_size=int(arguments["swa_window_size"]),
        verify_capacity=int(arguments["verify_capacity"]),
        kv_token_id_vs_position_offset=int(arguments["kv_token_id_vs_position_offset"]),
        **tensors,
    )  # fmt: skip


def launch_canary_plan_kernels(
    *,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    req_pool_indices: Array,
    prefix_lens: Array,
    extend_seq_lens: Array,
    req_to_token: Array,
    swa_window_size: int,
    full_to_swa_index_mapping: Array | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: Array | None,
    req_to_verify_expected_tokens_valid_lens: Array | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    """List which slots the step's requests read, and where their writes go.

    Parameters
    ----------
    verify_plan_out, write_plan_out : VerifyPlan, WritePlan
        Filled in place. When more entries come together than `verify_capacity`, `enable` becomes 0
        and none is stored.
    req_pool_indices, prefix_lens, extend_seq_lens : array
        int64 ``[bs]``: row in the table (0 = padding), tokens in the cache, tokens to be written.
    req_to_token : array
        int32 ``[rows, columns]``: the slot of each position.
    swa_window_size : int
        Positions back from the end of the prefix that are read; 0 = all.
    full_to_swa_index_mapping : array, optional
        int64: slot of the window pool for each full slot. Required with a window.
    verify_capacity : int
        Entries of `verify_plan_out`.
    req_to_verify_expected_tokens : array, optional
        int32 ``[rows, columns]``: the tokens that requests should hold.
    req_to_verify_expected_tokens_valid_lens : array, optional
        int64 ``[bs]``: columns that are filled; required with the table.
    kv_token_id_vs_position_offset : int
        Added to a position to find its token (1 for an EAGLE draft pool).

    Raises
    ------
    KVCanaryError
        Also a ValueError, in SGLang's words where it looks itself; nothing was written.
    """
    home = verify_plan_out.verify_slot_indices
    flat = (
        *_flat_verify_plan(verify_plan_out),
        *_flat_write_plan(write_plan_out),
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        req_to_token,
        swa_window_size,
        full_to_swa_index_mapping,
        verify_capacity,
        req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset,
    )
    if _quickly("sglang_plan", home, flat):
        return
    call = _Call(home)
    arguments = _plan_arguments(call, {
        "verify_plan_out": verify_plan_out,
        "write_plan_out": write_plan_out,
        "req_pool_indices": req_pool_indices,
        "prefix_lens": prefix_lens,
        "extend_seq_lens": extend_seq_lens,
        "req_to_token": req_to_token,
        "swa_window_size": swa_window_size,
        "full_to_swa_index_mapping": full_to_swa_index_mapping,
        "verify_capacity": verify_capacity,
        "req_to_verify_expected_tokens": req_to_verify_expected_tokens,
        "req_to_verify_expected_tokens_valid_lens": req_to_verify_expected_tokens_valid_lens,
        "kv_token_id_vs_position_offset": kv_token_id_vs_position_offset,
    })  # fmt: skip
    call.run(C.kvc_sglang_plan, ctypes.byref(arguments))


def launch_canary_verify_kernel(
    *, context: VerifyOrWriteContext, plan: VerifyPlan, check_verify_expected_token: bool
) -> None:
    """Compare each planned slot with its record, its predecessor and its bytes.

    Parameters
    ----------
    context : VerifyOrWriteContext
        Its buffer is only read; mismatches become rows of its ring.
    plan : VerifyPlan
        From :func:`launch_canary_plan_kernels`, or the caller's own.
    check_verify_expected_token : bool
        Compare tokens, too, where the plan names one.

    Raises
    ------
    KVCanaryError
        Also a ValueError, in SGLang's words where it looks itself; nothing was written. What is
        wrong with the cache is a row of the ring, not an error.
    """
    flat = _flat_context(context)
    if flat is not None:
        flat += (*_flat_verify_plan(plan), int(check_verify_expected_token))
    if _quickly("sglang_verify", context.canary_buf, flat):
        return
    call = _Call(context.canary_buf)
    arguments = _abi.kvc_sglang_verify_args(
        context=_context(call, context, writes=False),
        plan=_verify_plan(call, plan, "plan", out=False),
        check_verify_expected_token=int(check_verify_expected_token),
    )
    call.run(C.kvc_sglang_verify, ctypes.byref(arguments))


def launch_canary_write_kernel(
    *,
    context: VerifyOrWriteContext,
    plan: WritePlan,
    input_ids: Array,
    positions: Array,
    out_cache_loc: Array,
    enable_write_input_assert: bool,
    expected_input_tokens: Array | None,
    expected_input_positions: Array | None,
) -> None:
    """Stamp the slots that a step writes with token, position, chain and fingerprint.

    Parameters
    ----------
    context : VerifyOrWriteContext
        Whose buffer is written.
    plan : WritePlan
        From :func:`launch_canary_plan_kernels`.
    input_ids, positions, out_cache_loc : array
        int64 ``[tokens]``, in the plan's order; a negative slot is skipped, slot 0 is written.
    enable_write_input_assert : bool
        Compare tokens and positions with the expected ones; a mismatch is a row, not a stop.
    expected_input_tokens, expected_input_positions : array, optional
        int64 ``[tokens]``; both with the check, none without.

    Raises
    ------
    KVCanaryError
        Also a ValueError, in SGLang's words where it looks itself; nothing was written.
    """
    flat = _flat_context(context)
    if flat is not None:
        flat += (
            *_flat_write_plan(plan),
            input_ids,
            positions,
            out_cache_loc,
            int(enable_write_input_assert),
            expected_input_tokens,
            expected_input_positions,
        )
    if _quickly("sglang_write", context.canary_buf, flat):
        return
    call = _Call(context.canary_buf)
    arguments = _abi.kvc_sglang_write_args(
        context=_context(call, context, writes=True),
        plan=_write_plan(call, plan, "plan", out=False),
        input_ids=call(input_ids, "input_ids"),
        positions=call(positions, "positions"),
        out_cache_loc=call(out_cache_loc, "out_cache_loc"),
        enable_write_input_assert=int(enable_write_input_assert),
        expected_input_tokens=call(expected_input_tokens, "expected_input_tokens"),
        expected_input_positions=call(expected_input_positions, "expected_input_positions"),
    )
    call.run(C.kvc_sglang_write, ctypes.byref(arguments))


def launch_scatter_req_token_ids_kernel(
    *, flat_in: Array, offsets: Array, req_pool_indices: Array, pool_out: Array
) -> None:
    """Write the tokens of each request into its row of an int32 table, cut to the row.

    Parameters
    ----------
    flat_in : array
        int64 ``[tokens]``, request after request.
    offsets : array
        int64 ``[bs + 1]``: request r has tokens ``offsets[r]`` to ``offsets[r + 1]``.
    req_pool_indices : array
        int64 ``[bs]``: the row of each; at most 511.
    pool_out : array
        int32 ``[rows, columns]``, written in place; all else in it stays as it was.

    Raises
    ------
    KVCanaryError
        Also a ValueError or, for a dtype, a TypeError, in SGLang's words; nothing was written.
    """
    if _quickly("sglang_scatter", pool_out, (flat_in, offsets, req_pool_indices, pool_out)):
        return
    stream = stream_of(pool_out, None)
    tensors = [
        view(flat_in, "flat_in", stream=stream),
        view(offsets, "offsets", stream=stream),
        view(req_pool_indices, "req_pool_indices", stream=stream),
        view(pool_out, "pool_out", writable=True, stream=stream),
    ]
    with device_of(pool_out):
        check(C.kvc_sglang_scatter(*(tensor.address for tensor in tensors), stream))


def check_plan_offsets_call(*, scratch: Array | None, **arguments: Any) -> None:
    """What SGLang checks before its first kernel of a plan, wherever the tensors lie.

    Takes the keywords of :func:`launch_canary_plan_kernels` and SGLang's scratch, which this
    library does not need.
    """
    call = _Call(arguments["verify_plan_out"].verify_slot_indices, strict=True)
    struct = _plan_arguments(call, arguments)
    seen = call(scratch, "out_verify_offsets_scratch")
    check(C.kvc_sglang_plan_check(ctypes.byref(struct), seen))


def check_source_launch(source: Any, index: int) -> None:
    """What a launch on CUDA asks of a source besides what its constructor does."""
    struct, _keep = source_struct(source, f"real_kv_sources[{index}].tensor", 0)
    check(C.kvc_sglang_source_check_launch(ctypes.byref(struct), index))


def violation_text(
    row: Iterable[int], *, total_violations: int, ring_overflow: bool, step_when_pumped: int
) -> str:
    """The report of one row of a violation ring, as SGLang logs or raises it."""
    return Violation.from_row(row).text(
        "sglang", violations=total_violations, ring_overflow=ring_overflow, step=step_when_pumped
    )
