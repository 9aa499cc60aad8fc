"""The structures of SGLang's kv-canary: frozen, keyword-only, checked as there."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _abi
from .._lib import C
from .._tensor import Array, view
from ..errors import check
from .consts import CanaryLaunchTag, RealKvHashMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["RealKvSource", "VerifyOrWriteContext", "VerifyPlan", "WritePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKvSource:
    """One strip of real KV bytes that a fingerprint covers.

    Slot x has the `num_bytes_per_token` bytes from byte ``x % page_size * num_bytes_per_token`` of
    row ``x // page_size`` of `tensor` on; the first `read_bytes` of them are hashed.

    Parameters
    ----------
    tensor : array
        The live pool, never a copy: two or more dimensions, rows a multiple of 16 bytes apart. Rows
        may be wider than their slots and lie apart.
    page_size : int
        Slots in a row, at least 1.
    num_bytes_per_token, read_bytes : int
        Positive multiples of 16, `read_bytes` at most `num_bytes_per_token`.

    Raises
    ------
    ValueError
        In SGLang's words, in the order of the rules above.
    """

    tensor: Array
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        source, _keep = source_struct(self, "tensor", 0)
        check(C.kvc_sglang_source_check(ctypes.byref(source)))


def source_struct(source: Any, name: str, stream: int) -> tuple[_abi.kvc_sglang_source, Any]:
    """A source of this module or of SGLang as C takes it, and what must live as long."""
    seen = view(source.tensor, name, stream=stream)
    struct = _abi.kvc_sglang_source(
        tensor=seen.address,
        page_size=int(source.page_size),
        num_bytes_per_token=int(source.num_bytes_per_token),
        read_bytes=int(source.read_bytes),
    )
    return struct, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrWriteContext:
    """What a verify and a write of one canary buffer share.

    Parameters
    ----------
    canary_buf : array
        uint8 ``[slots, bytes of a record]``, 32 or more; further bytes are left alone.
    kernel_kind : CanaryLaunchTag
        Stored in each row, so that a violation can be told from others.
    violation_ring : array
        int64 ``[capacity, 8]``, filled once.
    violation_write_index : array
        int32 ``[1]``: violations found so far; it goes on counting when the ring is full.
    slot_run_counter, kernel_run_counter : array
        int64 ``[1]``: slots looked at or stored, and launches.
    real_kv_sources : sequence of RealKvSource
        At most four; their order counts.
    real_kv_hash_mode : RealKvHashMode
        How much of each source is covered.
    enable_chain_position_assert : array
        int32 ``[1]``: not 0 = a write reports a position that is not the one before it plus 1.
    """

    canary_buf: Array
    kernel_kind: CanaryLaunchTag
    violation_ring: Array
    violation_write_index: Array
    slot_run_counter: Array
    kernel_run_counter: Array
    real_kv_sources: Sequence[RealKvSource]
    real_kv_hash_mode: RealKvHashMode
    enable_chain_position_assert: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """The slots that a step reads: int64 ``[capacity]`` four times, int32 ``[1]`` twice.

    An expected token of -1 is not compared, a predecessor of -1 begins a chain. Entries from
    ``verify_num_valid[0]`` on mean nothing; ``enable[0] == 0`` skips the verify as a whole.
    """

    verify_slot_indices: Array
    verify_expected_tokens: Array
    verify_expected_positions: Array
    verify_prev_slot_indices: Array
    verify_num_valid: Array
    enable: Array

    @staticmethod
    def allocation_bytes(verify_capacity: int) -> int:
        """Bytes that :meth:`allocate` takes."""
        return 4 * 8 * verify_capacity + 2 * 4

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device) -> VerifyPlan:
        """A plan in torch tensors, uninitialised but for `enable`, which is 1."""
        check(C.kvc_sglang_check_capacity(b"VerifyPlan verify_capacity", int(verify_capacity)))
        import torch

        def entries() -> torch.Tensor:
            return torch.empty(verify_capacity, dtype=torch.int64, device=device)

        return cls(
            verify_slot_indices=entries(),
            verify_expected_tokens=entries(),
            verify_expected_positions=entries(),
            verify_prev_slot_indices=entries(),
            verify_num_valid=torch.empty(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )

    def zero_for_testing_(self) -> VerifyPlan:
        """All zero, tokens -1, disabled. For tests of a plan only."""
        for tensor in (
            self.verify_slot_indices,
            self.verify_expected_positions,
            self.verify_prev_slot_indices,
            self.verify_num_valid,
            self.enable,
        ):
            tensor.zero_()
        self.verify_expected_tokens.fill_(-1)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Where a step's writes go: int64 ``[capacity + 1]``, int64 ``[capacity]``, int32 ``[1]``.

    Request r writes tokens ``write_offsets[r]`` to ``write_offsets[r + 1]``, after the slot
    ``write_seed_slot_indices[r]``, -1 = none.
    """

    write_offsets: Array
    write_seed_slot_indices: Array
    write_num_valid_reqs: Array

    @staticmethod
    def allocation_bytes(write_req_capacity: int) -> int:
        """Bytes that :meth:`allocate` takes."""
        return (2 * write_req_capacity + 1) * 8 + 4

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device) -> WritePlan:
        """A plan in torch tensors, uninitialised."""
        check(C.kvc_sglang_check_capacity(b"WritePlan write_req_capacity", int(write_req_capacity)))
        import torch

        return cls(
            write_offsets=torch.empty(write_req_capacity + 1, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.empty(
                write_req_capacity, dtype=torch.int64, device=device
            ),
            write_num_valid_reqs=torch.empty(1, dtype=torch.int32, device=device),
        )

    def zero_for_testing_(self) -> WritePlan:
        """All zero. For tests of a plan only."""
        for tensor in (self.write_offsets, self.write_seed_slot_indices, self.write_num_valid_reqs):
            tensor.zero_()
        return self
