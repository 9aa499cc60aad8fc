"""The operations over tensors as plain functions of positional arguments, through ctypes.

Structs (rope, group, plan, ring, requests, stamp, report) come as addresses, 0 = none; tensors as
arrays of any framework, q_out and k_out also as True, meaning in place. The library's entry points
(src/ffi/tvm_ffi.c) take the same arguments in the same order; :mod:`kvcanary._fast` calls those
where it can.

Every function fails by raising, in the catalogue's words, with nothing written.
"""

import ctypes
from typing import Any

from . import _abi
from ._lib import C
from ._tensor import Array, View, stream_of, view
from .errors import check


class _Tensors:
    """Views of one call; alive until it returns."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._views: list[View] = []

    def __call__(self, array: Array | None, name: str, writable: bool = False) -> int | None:
        if array is None:
            return None
        made = view(array, name, writable=writable, stream=self._stream)
        self._views.append(made)
        return made.address


def _run(function: Any, arguments: ctypes.Structure, stream: int) -> None:
    check(function(ctypes.byref(arguments), stream))


def rope_pool_fused(
    q: Array, k: Array, v: Array | None, positions: Array, slots: Array,
    k_pool: Array, v_pool: Array | None, q_out: Array | None, k_out: Array | None,
    rope: int, head_dim: int, num_qo_heads: int, num_kv_heads: int, n_valid: int,
    rotary_offset: int, q_rotary_offset: int, reserved_slot: int,
    check_duplicates: int, check_finite: int, k_scale: float, v_scale: float,
    scratch: Array | None, stamp: int, report: int, stream: int | None,
) -> None:  # fmt: skip
    q_out, k_out = q if q_out is True else q_out, k if k_out is True else k_out
    stream = stream_of(q, stream)
    t = _Tensors(stream)
    arguments = _abi.kvc_rope_pool_args(
        q=t(q, "q", q_out is q), k=t(k, "k", k_out is k), v=t(v, "v"),
        positions=t(positions, "positions"), slots=t(slots, "slots"),
        k_pool=t(k_pool, "k_pool", True), v_pool=t(v_pool, "v_pool", True),
        q_out=t(q_out, "q_out", True), k_out=t(k_out, "k_out", True),
        rope=rope, head_dim=head_dim, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads,
        n_valid=n_valid, rotary_offset=rotary_offset, q_rotary_offset=q_rotary_offset,
        reserved_slot=reserved_slot, check_duplicates=check_duplicates, check_finite=check_finite,
        k_scale=k_scale, v_scale=v_scale, scratch=t(scratch, "scratch", True), stamp=stamp,
        report=report,
    )  # fmt: skip
    _run(C.kvc_rope_pool_fused, arguments, stream)


def scatter_req_token_ids(
    flat_in: Array, offsets: Array, req_pool_indices: Array, pool_out: Array,
    rules: int, allow_placeholder: int, narrow: int, report: int, stream: int,
) -> None:  # fmt: skip
    t = _Tensors(stream)
    arguments = _abi.kvc_scatter_args(
        flat_in=t(flat_in, "flat_in"), offsets=t(offsets, "offsets"),
        req_pool_indices=t(req_pool_indices, "req_pool_indices"),
        pool_out=t(pool_out, "pool_out", True), rules=rules,
        allow_placeholder=allow_placeholder, narrow=narrow, report=report,
    )  # fmt: skip
    _run(C.kvc_scatter_req_token_ids, arguments, stream)


def plan(
    out: int, requests: int, req_to_token: Array, expected_tokens: Array | None,
    valid_lens: Array | None, token_offset: int, window: int, mapping: Array | None,
    exclude: Array | None, rotation: int, rules: int, report: int, stream: int,
) -> None:  # fmt: skip
    t = _Tensors(stream)
    arguments = _abi.kvc_plan_args(
        requests=requests, req_to_token=t(req_to_token, "req_to_token"),
        expected_tokens=t(expected_tokens, "expected_tokens"),
        valid_lens=t(valid_lens, "valid_lens"), token_offset=token_offset, window=window,
        full_to_swa_index_mapping=t(mapping, "full_to_swa_index_mapping"),
        exclude=t(exclude, "exclude"), rotation=rotation, rules=rules, report=report,
    )  # fmt: skip
    check(C.kvc_canary_plan(out, ctypes.byref(arguments), stream))


def check_plan(
    plan: int, group: int, mapping: Array | None, scratch: Array, ring: int, stream: int
) -> None:
    t = _Tensors(stream)
    check(
        C.kvc_canary_check_plan(
            plan, group, t(mapping, "mapping"), t(scratch, "scratch", True), ring, stream
        )
    )


def write(
    group: int, plan: int, requests: int, tokens: Array, positions: Array, slots: Array,
    expected_tokens: Array | None, expected_positions: Array | None, check_steps: int, step: int,
    launch_tag: int, scratch: Array | None, ring: int, rules: int, stream: int,
) -> None:  # fmt: skip
    t = _Tensors(stream)
    arguments = _abi.kvc_write_args(
        group=group, plan=plan, requests=requests, tokens=t(tokens, "tokens"),
        positions=t(positions, "positions"), slots=t(slots, "slots"),
        expected_tokens=t(expected_tokens, "expected_tokens"),
        expected_positions=t(expected_positions, "expected_positions"), check_steps=check_steps,
        step=step, launch_tag=launch_tag, scratch=t(scratch, "scratch", True), ring=ring,
        rules=rules,
    )  # fmt: skip
    _run(C.kvc_canary_write, arguments, stream)


def verify(
    group: int, plan: int, requests: int, check_bytes: int, check_tokens: int, check_finite: int,
    rules: int, valid_prefix: Array | None, launch_tag: int, ring: int, stream: int,
) -> None:  # fmt: skip
    t = _Tensors(stream)
    arguments = _abi.kvc_verify_args(
        group=group, plan=plan, requests=requests, check_bytes=check_bytes,
        check_tokens=check_tokens, check_finite=check_finite, rules=rules,
        valid_prefix=t(valid_prefix, "valid_prefix", True), launch_tag=launch_tag, ring=ring,
    )  # fmt: skip
    _run(C.kvc_canary_verify, arguments, stream)


def void(group: int, slots: Array, stream: int) -> None:
    t = _Tensors(stream)
    check(C.kvc_canary_void(group, t(slots, "slots"), stream))


def copy(group: int, from_slots: Array, to_slots: Array, scratch: Array, stream: int) -> None:
    t = _Tensors(stream)
    check(
        C.kvc_canary_copy(
            group, t(from_slots, "from"), t(to_slots, "to"), t(scratch, "scratch", True), stream
        )
    )


def fingerprint(out: int, group: int, slots: Array, stream: int) -> None:
    t = _Tensors(stream)
    check(C.kvc_fingerprint(out, group, t(slots, "slots"), stream))


def scan_finite(out: int, group: int, slots: Array, stream: int) -> None:
    t = _Tensors(stream)
    check(C.kvc_canary_scan_finite(out, group, t(slots, "slots"), stream))
