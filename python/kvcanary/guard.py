"""The guard: what an engine holds. It calls plan, check_plan, verify and write in the right order."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from . import _abi
from ._abi import Cause, Status
from ._lib import C, c_string, string
from ._options import COVERAGES, FINGERPRINTS, STAMPINGS, choose
from ._struct import fit
from ._tensor import HOST, Array, Device, Pinned, View, memory_of, stream_of, view
from .canary import Requests, Source, Violation
from .errors import check, expect, fault
from .rope import Stamp

__all__ = ["Finding", "Guard", "GuardStatistics", "SweepSlot"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation with what the guard knows around it; ``str()`` gives its text.

    Attributes
    ----------
    violation : Violation
    step : int
        When it was found; in a sweep the last step.
    victim_request, victim_position : int
        Who reads or writes the slot, and at which position; -1 = not known.
    culprit_request, culprit_step : int
        The other request that has to do with it, else -1.
    group : int
    group_name : str
    cause : Cause
        What most likely happened.
    slug : str
        The catalogue entry that explains it.
    nonfinite_source_id, nonfinite_head, nonfinite_dim : int
        Where the first NaN or infinity stands, else -1.
    text : str
        The violation's stable first line, then lines for a person.
    """

    violation: Violation
    step: int
    victim_request: int
    victim_position: int
    culprit_request: int
    culprit_step: int
    group: int
    group_name: str
    cause: Cause
    slug: str
    nonfinite_source_id: int
    nonfinite_head: int
    nonfinite_dim: int
    text: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def from_struct(cls, struct: _abi.kvc_finding) -> "Finding":
        length = C.kvc_finding_text(None, 0, ctypes.byref(struct))
        text = ctypes.create_string_buffer(length + 1)
        C.kvc_finding_text(text, length + 1, ctypes.byref(struct))
        return cls(
            violation=Violation.from_struct(struct.violation),
            step=struct.step,
            victim_request=struct.victim_request,
            victim_position=struct.victim_position,
            culprit_request=struct.culprit_request,
            culprit_step=struct.culprit_step,
            group=struct.group,
            group_name=string(struct.group_name),
            cause=Cause(struct.cause),
            slug=string(struct.slug),
            nonfinite_source_id=struct.nonfinite_source_id,
            nonfinite_head=struct.nonfinite_head,
            nonfinite_dim=struct.nonfinite_dim,
            text=string(text.value),
        )


@dataclass(frozen=True, slots=True)
class GuardStatistics:
    """What a guard has done so far, over all groups; see kvc_guard_statistics in kvcanary.h."""

    steps: int
    sources: int
    slots_stamped: int
    slots_verified: int
    slots_first_read: int
    slots_rotated: int
    slots_swept: int
    slots_left_out: int
    slots_excluded: int
    bytes_verified: int
    chain_unchecked: int
    violations: int
    violations_dropped: int
    oldest_unchecked_steps: int
    oldest_unchecked_slot: int
    oldest_unchecked_group: int
    memory_bytes: int
    stale_nonfinite: int
    stale_nonfinite_slot: int


@dataclass(frozen=True, slots=True)
class SweepSlot:
    """One cached slot to sweep: what the engine believes it holds.

    Attributes
    ----------
    slot, position : int
    expected_token : int
        -1 = not known.
    prev_slot : int
        -1 at position 0, -3 = not known.
    namespace : int
        Of the sequence, as in Requests; 0 = none.
    """

    slot: int
    position: int
    expected_token: int = -1
    prev_slot: int = -3
    namespace: int = 0


_SWEEP_BATCH = 1024


class _Handle(Pinned):
    """A guard of the library, until the last that leads into its memory is gone: the Guard itself
    or one of its stamps."""

    __slots__ = ("_as_parameter_", "_destroy", "keep")

    def __init__(self, options: _abi.kvc_guard_options) -> None:
        pointer = self._as_parameter_ = ctypes.c_void_p()
        self.keep: list[Any] = []
        self._destroy = C.kvc_guard_destroy
        check(C.kvc_guard_create(ctypes.byref(pointer), ctypes.byref(options)))

    def __del__(self) -> None:
        self._destroy(self._as_parameter_)


def _require_host(device: Device, name: str) -> None:
    if memory_of(device) != HOST:
        raise fault(
            "no-cuda", Status.E_NO_CUDA, name=name, reason="the guard works on host memory only"
        )


class Guard(Pinned):
    """Owns records, owners, plans and the ring of an engine. One thread at a time.

    The guard works on host memory: pools, tables and index arrays on a GPU are refused. On a GPU an
    engine calls the operations under it itself: :func:`plan`, :func:`check_plan`, :func:`verify`,
    :func:`write`.

    Parameters
    ----------
    request_rows : int
        Rows of the request table. Row 0 is padding.
    verify_budget : int
        Entries of the rotating check a step and group; -1 = every read, 0 = first reads only.
    checks : bool
        False = only stamp (a control run).
    check_finite : bool
        Look for NaN and infinity in what is verified, and in the rest of last pages.
    ring_capacity : int
        Violations held until polled.

    Raises
    ------
    KVCanaryError
        Also a ValueError: a number out of range; or a MemoryError.

    Examples
    --------
    >>> import numpy as np, kvcanary
    >>> k_pool, v_pool = np.zeros((32, 1, 8), np.float32), np.zeros((32, 1, 8), np.float32)
    >>> guard = kvcanary.Guard(request_rows=4)
    >>> full = guard.attach_group(slot_count=32, sources=[
    ...     kvcanary.Source.from_pool(k_pool, 0), kvcanary.Source.from_pool(v_pool, 1)])
    >>> stamp = guard.stamp(full, 0, 1)
    >>> table = np.zeros((4, 8), np.int32)
    >>> table[1, :4] = [4, 5, 6, 7]
    >>> q = k = v = np.ones((4, 1, 8), np.float32)
    >>> requests = kvcanary.Requests(
    ...     req_pool_indices=np.array([1]), prefix_lens=np.array([0]),
    ...     extend_seq_lens=np.array([4]), owner_request=np.array([100]))
    >>> tokens, positions, slots = np.array([11, 22, 33, 44]), np.arange(4), np.arange(4, 8)
    >>> with guard.step(1, requests=requests, req_to_token=table, tokens=tokens,
    ...                 positions=positions, slots=slots):
    ...     _ = kvcanary.rope_pool_fused(q, k, v, positions, slots, k_pool, v_pool,
    ...                                  rope_base=1e4, stamp=stamp)
    >>> k_pool[5] += 1  # something else writes to the slot
    >>> later = kvcanary.Requests(
    ...     req_pool_indices=np.array([1]), prefix_lens=np.array([4]),
    ...     extend_seq_lens=np.array([0]), owner_request=np.array([100]))
    >>> none = np.zeros(0, np.int64)
    >>> with guard.step(2, requests=later, req_to_token=table, tokens=none, positions=none,
    ...                 slots=none):
    ...     pass
    >>> [(f.cause.name, f.violation.slot, f.victim_request) for f in guard.poll()]
    [('BYTES_DAMAGED', 5, 100)]
    """

    def __init__(
        self,
        *,
        request_rows: int,
        verify_budget: int = 4096,
        checks: bool = True,
        check_finite: bool = False,
        ring_capacity: int = 1024,
    ) -> None:
        self._step: list[Any] = []
        self._checks = bool(checks)
        self._ring_capacity = ring_capacity
        self._first_array: Array | None = None
        options = _abi.kvc_guard_options(
            request_rows=request_rows,
            verify_budget=verify_budget,
            checks=int(checks),
            check_finite=int(check_finite),
            ring_capacity=ring_capacity,
        )
        #: An argument of C, which keeps the guard until the call returns.
        self._guard: _Handle | None = _Handle(options)

    def close(self) -> None:
        """Give up all that the guard owns; it is freed once none of its stamps is left either."""
        self._guard = None
        self._step.clear()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach_group(
        self,
        *,
        slot_count: int,
        sources: Sequence[Source] = (),
        name: str = "full",
        fingerprint: str | int = "xxh3",
        coverage: str | int = "all",
        stamping: str | int = "clear",
        reserved_slot: int = -1,
        window: int = 0,
        mapping: Array | None = None,
        token_offset: int = 0,
    ) -> int:
        """Register one slot numbering of the engine, before the first step.

        Parameters
        ----------
        slot_count : int
            P, 1 to 2**31.
        sources : sequence of Source
            Their pools are kept.
        name : str
            For reports.
        fingerprint, coverage, reserved_slot
            As in :class:`Group`.
        stamping : {"clear", "compute"}
            "compute" for engines that do not write every layer through rope_pool_fused.
        window : int
            How many cached tokens a new token sees, itself not counted; 0 = all.
        mapping : array, optional
            int64 ``[n]``, full slot -> slot of this group; read at every step, kept.
        token_offset : int
            Added to a position to find its expected token.

        Returns
        -------
        int
            The group's number.

        Raises
        ------
        KVCanaryError
            A group that does not hold together; a step has begun before. Nothing is registered.
        """
        sources = [expect(source, Source, f"sources[{i}]") for i, source in enumerate(sources)]
        for source in sources:
            _require_host(source.device, "a source")
        array = (_abi.kvc_source * max(len(sources), 1))(*(s.struct for s in sources))
        mapped = None if mapping is None else view(mapping, "mapping")
        group = _abi.kvc_guard_group(
            name=c_string(name),
            slot_count=slot_count,
            sources=ctypes.addressof(array) if sources else None,
            source_count=len(sources),
            fingerprint=choose(FINGERPRINTS, fingerprint, "fingerprint"),
            coverage=choose(COVERAGES, coverage, "coverage"),
            stamping=choose(STAMPINGS, stamping, "stamping"),
            reserved_slot=reserved_slot,
            window=window,
            mapping=None if mapped is None else mapped.address,
            token_offset=token_offset,
        )
        number = ctypes.c_int32()
        check(C.kvc_guard_attach_group(self._guard, ctypes.byref(group), ctypes.byref(number)))
        if self._guard is not None:
            self._guard.keep.append((array, tuple(sources), mapped))
        return number.value

    def stamp(self, group: int, k_id: int, v_id: int | None = None) -> Stamp:
        """What rope_pool_fused needs to write one layer; v_id None = the layer has no V."""
        struct = _abi.kvc_stamp()
        ids = [fit(i, "id", ctypes.c_uint64) for i in (k_id, k_id if v_id is None else v_id)]
        number = fit(group, "group", ctypes.c_int32)
        check(C.kvc_guard_stamp(ctypes.byref(struct), self._guard, number, *ids))
        return Stamp(struct, self._guard)

    def step_begin(
        self,
        step: int,
        *,
        requests: Requests,
        req_to_token: Array,
        tokens: Array,
        positions: Array,
        slots: Array,
        expected_tokens: Array | None = None,
        valid_lens: Array | None = None,
        expected_input_tokens: Array | None = None,
        expected_input_positions: Array | None = None,
        valid_prefix: Array | None = None,
        stream: Any = None,
    ) -> None:
        """Before the forward pass: check what the step reads, stamp what it will write.

        The arrays are kept until :meth:`step_end`.

        Parameters
        ----------
        step : int
            The engine's own number, rising.
        requests : Requests
            With owner_request.
        req_to_token : array
            int32 ``[request_rows, C]``, C the same in each step.
        tokens, positions, slots : array
            int64 ``[T]``: what the step writes, request after request.
        expected_tokens, valid_lens : array, optional
            int32 ``[R, C2]`` and int64 ``[bs]``: what each row should hold, from a source
            independent of the write path.
        expected_input_tokens, expected_input_positions : array, optional
            int64 ``[T]``, both or none: the input check.
        valid_prefix : array, optional
            int64 ``[bs]``, written: how much of each prefix can be trusted.

        Raises
        ------
        KVCanaryError
            As kvc_guard_step_begin(); the step has not begun then. Violations are no errors.
        """
        arrays = {
            "req_to_token": req_to_token,
            "tokens": tokens,
            "positions": positions,
            "slots": slots,
            "expected_tokens": expected_tokens,
            "valid_lens": valid_lens,
            "expected_input_tokens": expected_input_tokens,
            "expected_input_positions": expected_input_positions,
            "valid_prefix": valid_prefix,
        }
        number = stream_of(req_to_token, stream)
        struct = _abi.kvc_guard_step(
            step=step, requests=expect(requests, Requests, "requests").address
        )
        views: list[View] = []
        for name, array in arrays.items():
            if array is not None:
                written = name == "valid_prefix"
                views.append(view(array, name, writable=written, stream=number))
                setattr(struct, name, views[-1].address)
        check(C.kvc_guard_step_begin(self._guard, ctypes.byref(struct), number))
        self._step = [requests, views, struct]
        self._first_array = req_to_token

    def step_end(self, *, stream: Any = None) -> None:
        """After the last layer, also when the forward pass failed half-way.

        Raises
        ------
        KVCanaryError
            No step has begun.
        """
        check(C.kvc_guard_step_end(self._guard, self._stream(stream)))
        self._step = []

    @contextmanager
    def step(self, step: int, *, stream: Any = None, **arrays: Any) -> Iterator["Guard"]:
        """:meth:`step_begin` and :meth:`step_end` around a ``with`` block, which may raise."""
        self.step_begin(step, stream=stream, **arrays)
        try:
            yield self
        finally:
            self.step_end(stream=stream)

    def void(self, group: int, slots: Array, *, stream: Any = None) -> None:
        """Slots (int64 ``[n]``) go to a new owner: their records become never stamped."""
        number = stream_of(slots, stream)
        seen = view(slots, "slots", stream=number)
        check(
            C.kvc_guard_void(self._guard, fit(group, "group", ctypes.c_int32), seen.address, number)
        )

    def copy(self, group: int, from_slots: Array, to_slots: Array, *, stream: Any = None) -> None:
        """Rows moved or were copied: their records follow. int64 ``[n]`` each."""
        number = stream_of(from_slots, stream)
        source = view(from_slots, "from", stream=number)
        target = view(to_slots, "to", stream=number)
        known = fit(group, "group", ctypes.c_int32)
        check(C.kvc_guard_copy(self._guard, known, source.address, target.address, number))

    def sweep(self, group: int, slots: Iterable[SweepSlot], *, stream: Any = None) -> int:
        """Verify cached, idle slots that the engine lists. Not inside a step.

        Parameters
        ----------
        group : int
        slots : iterable of SweepSlot
            May be a generator; with checks off none is taken.

        Returns
        -------
        int
            Slots looked at.
        """
        number = fit(group, "group", ctypes.c_int32)
        rest = iter(slots)
        swept = self._sweep(number, [], stream)  # before a slot is taken: is this a time to sweep?
        while self._checks and (batch := list(islice(rest, _SWEEP_BATCH))):
            swept += self._sweep(number, batch, stream)
        return swept

    def _sweep(self, group: int, batch: list[SweepSlot], stream: Any) -> int:
        # No Python runs inside the call: what lists the slots may use the guard or raise, and an
        # interrupt in a callback of ctypes would be lost.
        entries = [
            _abi.kvc_sweep_slot(
                slot=slot.slot,
                position=slot.position,
                expected_token=slot.expected_token,
                prev_slot=slot.prev_slot,
                name_space=ctypes.c_int64(slot.namespace & (2**64 - 1)).value,
            )
            for slot in batch
        ]
        array = (_abi.kvc_sweep_slot * len(entries))(*entries)
        listed = _abi.kvc_sweep_list(slots=ctypes.addressof(array), count=len(entries))
        swept = ctypes.c_int64()
        check(
            C.kvc_guard_sweep(
                self._guard,
                group,
                ctypes.cast(C.kvc_sweep_listed, _abi.kvc_sweep_fn),
                ctypes.addressof(listed),
                ctypes.byref(swept),
                self._stream(stream),
            )
        )
        return swept.value

    def poll(self, limit: int | None = None, *, stream: Any = None) -> list[Finding]:
        """Take the next findings, in order, at most `limit`. Waits for the device."""
        room = self._ring_capacity if limit is None else min(limit, self._ring_capacity)
        out = (_abi.kvc_finding * max(room, 1))()
        count = ctypes.c_int64()
        check(C.kvc_guard_poll(self._guard, out, room, ctypes.byref(count), self._stream(stream)))
        return [Finding.from_struct(out[i]) for i in range(count.value)]

    def report(self, *, stream: Any = None) -> str:
        """Everything found since the last poll as one text, and what was looked at."""
        texts = [finding.text for finding in self.poll(stream=stream)]
        stats = self.stats()
        texts.append(
            f"kvcanary: {stats.steps} steps, {stats.slots_stamped} slots stamped, "
            f"{stats.slots_verified} slots and {stats.bytes_verified} bytes verified over "
            f"{stats.sources} sources, {stats.violations} violations"
        )
        return "\n".join(texts)

    def stats(self) -> GuardStatistics:
        """What was done so far. Looks at every slot: call it now and then, not each step."""
        out = _abi.kvc_guard_statistics()
        check(C.kvc_guard_stats(self._guard, ctypes.byref(out)))
        return GuardStatistics(**{f.name: getattr(out, f.name) for f in fields(GuardStatistics)})

    def _stream(self, stream: Any) -> int:
        if stream is None and self._first_array is None:
            return 0
        return stream_of(self._first_array, stream)
