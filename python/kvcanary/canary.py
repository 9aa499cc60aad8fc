"""The canary: records, plan, write, verify, and what reads violations back."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any

from . import _abi
from ._abi import LaunchTag, Reason, Status
from ._fast import call
from ._lib import C, c_string, string
from ._options import COVERAGES, FINGERPRINTS, RULES, STAMPINGS, choose
from ._struct import fit
from ._tensor import (
    Array,
    Device,
    Pinned,
    View,
    flat,
    length_of,
    new_array,
    on_stream,
    require_contiguous,
    require_device,
    stream_of,
    to_host,
    view,
)
from .errors import check, expect, fault
from .report import Report
from .rope import Stamp

__all__ = [
    "FiniteScan",
    "Group",
    "Plan",
    "Requests",
    "Ring",
    "Source",
    "Violation",
    "chain_extend",
    "chain_start",
    "check_plan",
    "copy",
    "fingerprint",
    "plan",
    "scan_finite",
    "scatter_req_token_ids",
    "verify",
    "void",
    "write",
]

RECORD_BYTES = _abi.KVC_RECORD_BYTES
_COUNTER_WORDS = ctypes.sizeof(_abi.kvc_counters) // 8


def _ring(ring: "Ring | None") -> int:
    """Address of the C struct; 0 for None."""
    return 0 if ring is None else expect(ring, Ring, "ring").address


def _requests(requests: "Requests | None") -> int:
    return 0 if requests is None else expect(requests, Requests, "requests").address


def _reported(report: Report | None, array: Array) -> int:
    return 0 if report is None else expect(report, Report, "report").address_for(array)


def _scalar(array: Array | None, name: str, dtype: str, device: Device) -> int:
    """Address of a one-element array that C reads or writes on `device`; 0 for None."""
    if array is None:
        return 0
    moved_on = name == "rotation"
    found = flat(array, name, dtype, length=1, writable=moved_on)
    require_device(found.device, name, device, "the plan" if moved_on else "the group")
    return found.data


class Source(Pinned):
    """One strip of real KV bytes behind each slot, in (head, dim) order.

    Slot x has, for each head h, `head_bytes` bytes at row ``x // page_size`` of `rows`, offset
    ``x % page_size * slot_stride_bytes + h * head_stride_bytes``; the first `read_bytes` of them
    are fingerprinted. :meth:`from_pool` makes one from a ``[slots, heads, dim]`` pool.

    Parameters
    ----------
    rows : array
        The live pool, never a copy; dimension 0 counts its rows (pages). Kept.
    id : int
        2*layer for K, 2*layer+1 for V, from 2**32 on for other strips; no two alike in a group.
    page_size : int
        Slots in a row.
    slot_stride_bytes : int
        From slot to slot inside a row; None = ``head_count * head_bytes``.
    head_count, head_bytes, head_stride_bytes : int
        None: one head, ``row bytes // page_size`` long; heads follow one another.
    read_bytes : int
        Of a slot's bytes; None = all.
    gather : array, optional
        int32 ``[page_size, units]`` byte offsets inside a row, of `unit_bytes` each, for layouts
        that no strides describe; then the strides are not read.

    Examples
    --------
    >>> import numpy as np, kvcanary
    >>> pages = np.zeros((4, 16, 2, 64), np.float16)  # [pages, page, heads, dim]
    >>> source = kvcanary.Source(pages, id=0, page_size=16, head_count=2, head_bytes=128)
    """

    __slots__ = ("_keep", "device", "struct")

    def __init__(
        self,
        rows: Array,
        *,
        id: int,
        page_size: int = 1,
        slot_stride_bytes: int | None = None,
        head_count: int = 1,
        head_bytes: int | None = None,
        head_stride_bytes: int | None = None,
        read_bytes: int | None = None,
        gather: Array | None = None,
        unit_bytes: int = 0,
    ) -> None:
        seen = view(rows, "source")
        shape, strides, itemsize = seen.shape, seen.strides, seen.itemsize
        if not shape:
            raise fault("canary-tensor-must-be-2-d", Status.E_SHAPE, name="source", shape=shape)
        if head_bytes is None or min(strides[1:], default=0) < 0:
            require_contiguous("source", shape[1:], strides[1:])
        last = sum((e - 1) * s for e, s in zip(shape[1:], strides[1:], strict=True))
        row_bytes = (last + 1) * itemsize if 0 not in shape[1:] else 0
        if head_bytes is None:
            head_bytes = row_bytes // max(page_size, 1)
        table = None
        if gather is not None:
            units = page_size * head_count * head_bytes // max(unit_bytes, 1)
            table = flat(gather, "gather", "int32", length=units, writable=False)
        self.struct = _abi.kvc_source(
            base=seen.data,
            row_count=shape[0],
            row_stride_bytes=strides[0] * itemsize,
            page_size=page_size,
            slot_stride_bytes=(
                head_count * head_bytes if slot_stride_bytes is None else slot_stride_bytes
            ),
            head_count=head_count,
            head_bytes=head_bytes,
            head_stride_bytes=head_bytes if head_stride_bytes is None else head_stride_bytes,
            read_bytes=head_count * head_bytes if read_bytes is None else read_bytes,
            id=id,
            dtype=seen.tensor.dtype,
            unit_bytes=unit_bytes,
            gather=None if table is None else table.data,
        )
        if table is not None:
            require_device(table.device, "gather", seen.device, "the source")
        self.device: Device = seen.device
        self._keep = (seen, table)
        if row_bytes < self.struct.row_stride_bytes:
            self._check_row(row_bytes)

    def _check_row(self, row_bytes: int) -> None:
        """C knows where the next row begins, but not that the last one ends before that."""
        alone = _abi.kvc_source.from_buffer_copy(self.struct)
        alone.row_stride_bytes = row_bytes
        group = _abi.kvc_group(
            sources=ctypes.addressof(alone), source_count=1, device=_abi.kvc_device(*self.device)
        )
        check(C.kvc_group_check(ctypes.byref(group)))

    @classmethod
    def from_pool(cls, pool: Array, id: int) -> "Source":
        """The source that a pool ``[slots, heads, dim]`` is."""
        seen = view(pool, "pool")
        made = cls.__new__(cls)
        made.struct = _abi.kvc_source()
        check(
            C.kvc_source_from_pool(
                ctypes.byref(made.struct), seen.address, fit(id, "id", ctypes.c_uint64)
            )
        )
        made.device = seen.device
        made._keep = (seen, None)
        return made


class Group(Pinned):
    """One slot numbering with its records and its sources.

    Parameters
    ----------
    records : array
        int64 ``[P, 4]`` or uint8 ``[P, n >= 32]``, n a multiple of 8; all zero = never stamped.
        Row stride free. Kept.
    sources : sequence of Source
        In order.
    owners : array, optional
        int64 ``[P, 2]``, column 0 all -1 at first: who stamped each slot last.
    fingerprint : {"xxh3", "splitmix"}
    coverage : {"all", "partial", "none"}
        How much of a slot's bytes a fingerprint covers.
    stamping : {"compute", "clear"}
        "clear" is for engines that write every layer through rope_pool_fused with a stamp.
    reserved_slot : int
        The dummy slot of padding tokens, -1 = none.

    Raises
    ------
    KVCanaryError
        What kvc_group_check() finds; also a ValueError.

    Examples
    --------
    >>> import numpy as np, kvcanary
    >>> k_pool = np.zeros((32, 1, 8), np.float32)
    >>> group = kvcanary.Group(np.zeros((32, 4), np.int64),
    ...                        sources=[kvcanary.Source.from_pool(k_pool, 0)])
    >>> group.record_count
    32
    """

    __slots__ = ("_array", "_c", "_keep", "address", "device", "records")

    def __init__(
        self,
        records: Array,
        *,
        sources: Sequence[Source] = (),
        owners: Array | None = None,
        fingerprint: str | int = "xxh3",
        coverage: str | int = "all",
        stamping: str | int = "compute",
        reserved_slot: int = -1,
    ) -> None:
        seen = view(records, "records", writable=True)
        sources = [expect(source, Source, f"sources[{i}]") for i, source in enumerate(sources)]
        if len(seen.shape) != 2:
            raise fault(
                "canary-tensor-must-be-2-d", Status.E_SHAPE, name="records", shape=seen.shape
            )
        if seen.dtype not in ("int64", "uint8"):
            raise fault(
                "canary-tensor-dtype", Status.E_DTYPE, name="records", expected="int64",
                dtype=seen.dtype,
            )  # fmt: skip
        require_contiguous("records", seen.shape[1:], seen.strides[1:])
        owned = (
            None if owners is None else flat(owners, "owners", "int64", length=2 * seen.shape[0])
        )
        if owned is not None:
            require_device(owned.device, "owners", seen.device, "records")
        for source in sources:
            require_device(source.device, "a source", seen.device, "records")
        self.device: Device = seen.device
        self._array = (_abi.kvc_source * max(len(sources), 1))(*(s.struct for s in sources))
        self._c = _abi.kvc_group(
            records=seen.data,
            record_count=seen.shape[0],
            record_stride_bytes=_row_bytes(seen),
            owners=None if owned is None else owned.data,
            sources=ctypes.addressof(self._array) if sources else None,
            source_count=len(sources),
            fingerprint=choose(FINGERPRINTS, fingerprint, "fingerprint"),
            coverage=choose(COVERAGES, coverage, "coverage"),
            stamping=choose(STAMPINGS, stamping, "stamping"),
            reserved_slot=reserved_slot,
            device=seen.device,
        )
        self._keep: Any = (seen, owned, tuple(sources))
        #: The array given as records.
        self.records = records
        #: Address of the C struct.
        self.address = ctypes.addressof(self._c)
        check(C.kvc_group_check(self.address))

    @property
    def record_count(self) -> int:
        return self._c.record_count

    def stamp(self, k_id: int, v_id: int | None = None) -> Stamp:
        """Where rope_pool_fused adds the shares of one layer; v_id None = the layer has no V."""
        struct = _abi.kvc_stamp()
        ids = [fit(i, "id", ctypes.c_uint64) for i in (k_id, k_id if v_id is None else v_id)]
        check(C.kvc_group_stamp(ctypes.byref(struct), self.address, *ids))
        return Stamp(struct, self, self.device)


def _row_bytes(records: View) -> int:
    """Bytes from record to record; only those of one where there is no other, or where one is too
    narrow, which C then refuses."""
    row = records.shape[1] * records.itemsize
    lone = records.shape[0] <= 1 or row < RECORD_BYTES
    return row if lone else records.strides[0] * records.itemsize


_REQUEST_FIELDS = (
    "req_pool_indices", "prefix_lens", "extend_seq_lens", "namespaces", "verify_chain_in",
    "write_chain_in", "chain_end", "start", "owner_request",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests(Pinned):
    """The requests of one step; every array int64 ``[bs]`` and kept.

    Attributes
    ----------
    req_pool_indices, prefix_lens, extend_seq_lens : array
        Row of each request in the tables (0 = padding), tokens cached, tokens written now.
    namespaces : array, optional
        What :func:`chain_start` takes; 0 = none.
    verify_chain_in, write_chain_in, chain_end : array, optional
        Chain before the first entry to verify, before position `prefix`, and after the last cached
        token; 0 = not given.
    start : array, optional
        Entries to verify begin there.
    owner_request : array, optional
        The caller's id of each request.
    """

    req_pool_indices: Array | None = None
    prefix_lens: Array | None = None
    extend_seq_lens: Array | None = None
    namespaces: Array | None = None
    verify_chain_in: Array | None = None
    write_chain_in: Array | None = None
    chain_end: Array | None = None
    start: Array | None = None
    owner_request: Array | None = None
    _c: _abi.kvc_requests = field(init=False, repr=False)
    _views: list[View] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        struct, views = _abi.kvc_requests(), []
        for name in _REQUEST_FIELDS:
            array = getattr(self, name)
            if array is not None:
                views.append(view(array, name))
                setattr(struct, name, views[-1].address)
        object.__setattr__(self, "_c", struct)
        object.__setattr__(self, "_views", views)

    @property
    def address(self) -> int:
        """Address of the C struct."""
        return ctypes.addressof(self._c)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Pinned):
    """What a step reads and writes, in order; :meth:`allocate` makes the arrays.

    Attributes
    ----------
    verify_slot_indices, verify_expected_tokens, verify_expected_positions, \
verify_prev_slot_indices : array
        int64 ``[V]``; -1 = no slot, do not compare, chain start (-2, -3: see kvc_plan).
    verify_request : array, optional
        int32 ``[V]``, index of the request in the batch.
    verify_num_valid, enable : array
        int32 ``[1]``: entries in use; 0 = verify does nothing.
    left_out : array, optional
        int64 ``[1]``: entries that did not fit this time.
    write_offsets, write_seed_slot_indices : array
        int64 ``[W + 1]`` and ``[W]``: tokens of each request, slot before its first one.
    write_num_valid_reqs : array
        int32 ``[1]``.
    """

    verify_slot_indices: Array
    verify_expected_tokens: Array
    verify_expected_positions: Array
    verify_prev_slot_indices: Array
    verify_num_valid: Array
    enable: Array
    write_offsets: Array
    write_seed_slot_indices: Array
    write_num_valid_reqs: Array
    verify_request: Array | None = None
    left_out: Array | None = None
    _c: _abi.kvc_plan = field(init=False, repr=False)
    _views: list[View] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        entries = length_of(self.verify_slot_indices, "verify_slot_indices")
        reqs = length_of(self.write_seed_slot_indices, "write_seed_slot_indices")
        wanted = {
            "verify_slot_indices": ("int64", entries),
            "verify_expected_tokens": ("int64", entries),
            "verify_expected_positions": ("int64", entries),
            "verify_prev_slot_indices": ("int64", entries),
            "verify_request": ("int32", entries),
            "verify_num_valid": ("int32", 1),
            "enable": ("int32", 1),
            "left_out": ("int64", 1),
            "write_offsets": ("int64", reqs + 1),
            "write_seed_slot_indices": ("int64", reqs),
            "write_num_valid_reqs": ("int32", 1),
        }
        struct, views = _abi.kvc_plan(verify_capacity=entries, write_req_capacity=reqs), []
        for name, (dtype, least) in wanted.items():
            array = getattr(self, name)
            if array is not None:
                views.append(flat(array, name, dtype, length=least))
                setattr(struct, name, views[-1].data)
                require_device(views[-1].device, name, views[0].device, "verify_slot_indices")
        struct.device = _abi.kvc_device(*views[0].device)
        object.__setattr__(self, "_c", struct)
        object.__setattr__(self, "_views", views)

    @property
    def address(self) -> int:
        """Address of the C struct."""
        return ctypes.addressof(self._c)

    @property
    def device(self) -> Device:
        return self._views[0].device

    @classmethod
    def allocate(
        cls, *, verify_capacity: int, write_req_capacity: int, like: Array | None = None
    ) -> "Plan":
        """New arrays, zero, of the framework and on the device of `like` (None: NumPy)."""

        def new(count: int, dtype: str) -> Array:
            return new_array(like, (count,), dtype, zero=True)

        capacities = {"verify_capacity": verify_capacity, "write_req_capacity": write_req_capacity}
        for name, capacity in capacities.items():
            if not 0 <= capacity < 2**31:
                raise fault(
                    "plan-capacity-out-of-range", Status.E_CONFIG, name=name, capacity=capacity
                )
        return cls(
            verify_slot_indices=new(verify_capacity, "int64"),
            verify_expected_tokens=new(verify_capacity, "int64"),
            verify_expected_positions=new(verify_capacity, "int64"),
            verify_prev_slot_indices=new(verify_capacity, "int64"),
            verify_request=new(verify_capacity, "int32"),
            verify_num_valid=new(1, "int32"),
            enable=new(1, "int32"),
            left_out=new(1, "int64"),
            write_offsets=new(write_req_capacity + 1, "int64"),
            write_seed_slot_indices=new(write_req_capacity, "int64"),
            write_num_valid_reqs=new(1, "int32"),
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """One mismatch that a check found: the 16 columns of a ring's row."""

    launch_tag: int
    slot: int
    position: int
    stored_token: int
    expected_token: int
    stored_chain: int
    expected_aux: int
    reasons: Reason
    expected_position: int
    stored_fingerprint: int
    expected_fingerprint: int
    request_row: int
    owner_request: int
    owner_step: int
    source_id: int
    sequence: int

    @classmethod
    def from_struct(cls, struct: _abi.kvc_violation) -> "Violation":
        values = {f.name: getattr(struct, f.name) for f in fields(cls)}
        values["reasons"] = Reason(values["reasons"])
        return cls(**values)

    @classmethod
    def from_row(cls, row: Iterable[int]) -> "Violation":
        """From 8 or 16 columns of a ring's row; the columns that 8 lack are -1 (hashes 0)."""
        columns = [
            fit(
                c, f"columns[{i}]", ctypes.c_int64 if c < 0 else ctypes.c_uint64
            )  # hashes are either
            for i, c in enumerate(row)
        ]
        if len(columns) == 8:
            columns += [-1, 0, 0, -1, -1, -1, -1, 0]
        if len(columns) != 16:
            raise fault("ring-columns-unknown", Status.E_CONFIG, columns=len(columns))
        struct = _abi.kvc_violation()
        ctypes.memmove(ctypes.byref(struct), (ctypes.c_int64 * 16)(*columns), 128)
        return cls.from_struct(struct)

    @classmethod
    def parse(cls, line: str) -> "Violation | None":
        """Read back the first line of :meth:`text` anywhere in `line`; None if it is not one."""
        struct = _abi.kvc_violation()
        if not C.kvc_violation_parse(ctypes.byref(struct), c_string(line)):
            return None
        return cls.from_struct(struct)

    def struct(self) -> _abi.kvc_violation:
        return _abi.kvc_violation(**{f.name: int(getattr(self, f.name)) for f in fields(self)})

    @property
    def slug(self) -> str:
        """The catalogue entry that explains the reasons best; "" if no reason is known."""
        return string(C.kvc_reason_slug(int(self.reasons)))

    def text(
        self,
        rules: str | int = "own",
        *,
        violations: int | None = None,
        ring_overflow: bool = False,
        step: int = 0,
    ) -> str:
        """A stable first line, then lines for a person.

        With rules "sglang" SGLang's text; the totals that end it where `violations` is given.
        """
        struct, number = self.struct(), choose(RULES, rules, "rules")
        totals = None
        if violations is not None:
            totals = ctypes.byref(
                _abi.kvc_violation_totals(
                    violations=violations, ring_overflow=int(ring_overflow), step=step
                )
            )
        length = C.kvc_violation_text(None, 0, ctypes.byref(struct), number, totals)
        out = ctypes.create_string_buffer(length + 1)
        C.kvc_violation_text(out, length + 1, ctypes.byref(struct), number, totals)
        return string(out.value)

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Counters:
    """What the checks that used a ring did, in all."""

    violations: int
    dropped: int
    reasons: tuple[int, ...]
    kernel_runs: int
    slots_run: int
    slots_skipped: int
    chain_unchecked: int
    bytes_hashed: int
    left_out: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Ring(Pinned):
    """Where violations go; :meth:`allocate` makes the arrays, all zero.

    Attributes
    ----------
    rows : array
        int64 ``[capacity, 16]``, circular; or ``[capacity, 8]``, SGLang's, filled once.
    consumed : array
        int64 ``[1]``, up to where :meth:`poll` has read (16 columns).
    write_index : array
        int32 ``[1]`` (8 columns).
    counters : array
        int64 ``[24]``; required with 16 columns.
    slot_run_counter, kernel_run_counter : array, optional
        int64 ``[1]``, SGLang's own counters.
    """

    rows: Array
    consumed: Array | None = None
    write_index: Array | None = None
    counters: Array | None = None
    slot_run_counter: Array | None = None
    kernel_run_counter: Array | None = None
    _c: _abi.kvc_ring = field(init=False, repr=False)
    _views: list[View] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = flat(self.rows, "violation_ring", "int64")
        if len(rows.shape) != 2:
            raise fault(
                "canary-tensor-must-be-2-d", Status.E_SHAPE, name="violation_ring", shape=rows.shape
            )
        struct = _abi.kvc_ring(
            rows=rows.data, capacity=rows.shape[0], columns=rows.shape[1], device=rows.device
        )
        views = [rows]
        wanted = {
            "consumed": ("int64", 1),
            "write_index": ("int32", 1),
            "counters": ("int64", _COUNTER_WORDS),
            "slot_run_counter": ("int64", 1),
            "kernel_run_counter": ("int64", 1),
        }
        for name, (dtype, least) in wanted.items():
            array = getattr(self, name)
            if array is not None:
                views.append(flat(array, name, dtype, length=least))
                setattr(struct, name, views[-1].data)
                require_device(views[-1].device, name, rows.device, "violation_ring")
        object.__setattr__(self, "_c", struct)
        object.__setattr__(self, "_views", views)

    @property
    def address(self) -> int:
        """Address of the C struct."""
        return ctypes.addressof(self._c)

    @classmethod
    def allocate(cls, capacity: int, *, like: Array | None = None) -> "Ring":
        """A circular ring of the framework and on the device of `like` (None: NumPy)."""
        if capacity < 0:
            raise fault("ring-capacity-negative", Status.E_CONFIG, capacity=capacity)

        def new(shape: tuple[int, ...]) -> Array:
            return new_array(like, shape, "int64", zero=True)

        return cls(rows=new((capacity, 16)), consumed=new((1,)), counters=new((_COUNTER_WORDS,)))

    def poll(self, limit: int | None = None, *, stream: Any = None) -> list[Violation]:
        """Take the next violations out, in order, at most `limit`. Waits for the device."""
        room = self._c.capacity if limit is None else min(limit, self._c.capacity)
        out = (_abi.kvc_violation * max(room, 1))()
        count = ctypes.c_int64()
        check(
            C.kvc_ring_poll(
                self.address, out, room, ctypes.byref(count), stream_of(self.rows, stream)
            )
        )
        return [Violation.from_struct(out[i]) for i in range(count.value)]

    def totals(self, *, stream: Any = None) -> Counters:
        """What was done so far, by the calls on `stream` too. Waits for the device."""
        if self.counters is None:
            raise fault("ring-not-circular", Status.E_CONFIG, columns=self._c.columns)
        with on_stream(self.counters, stream):
            words = to_host(self.counters)
        return Counters(words[0], words[1], tuple(words[2:18]), *words[18:24])


def chain_start(namespace: int = 0) -> int:
    """The chain value before the first token, 64 bits unsigned.

    Parameters
    ----------
    namespace : int
        The caller's identity of all besides the tokens that makes KV differ; 0 = none.

    Examples
    --------
    >>> import kvcanary
    >>> hex(kvcanary.chain_start())
    '0xde7fae23a9a1b716'
    """
    return int(C.kvc_chain_start(namespace & (2**64 - 1)))


def chain_extend(chain: int, tokens: Sequence[int] | Array, first_position: int = 0) -> int:
    """The chain value after `tokens`, which stand at `first_position` and on.

    Parameters
    ----------
    chain : int
        From :func:`chain_start` or an earlier call.
    tokens : sequence of int, or an int64 array in host memory

    Examples
    --------
    >>> import kvcanary
    >>> hex(kvcanary.chain_extend(kvcanary.chain_start(), [11, 22, 33, 44, 55]))
    '0xae76343810f54045'
    """
    listed: Sequence[int] = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    array = (ctypes.c_int64 * len(listed))(
        *(fit(token, f"tokens[{i}]", ctypes.c_int64) for i, token in enumerate(listed))
    )
    first = fit(first_position, "first_position", ctypes.c_int64)
    return int(C.kvc_chain_extend(index(chain) & (2**64 - 1), array, first, len(listed)))


def scatter_req_token_ids(
    *,
    flat_in: Array,
    offsets: Array,
    req_pool_indices: Array,
    pool_out: Array,
    rules: str | int = "own",
    allow_placeholder: bool = False,
    narrow: bool = False,
    report: Report | None = None,
    stream: Any = None,
) -> Array:
    """Write the token history of each request into its row of an int32 table.

    ``pool_out[req_pool_indices[r], 0:n] = flat_in[offsets[r]:offsets[r] + n]``, n at most C.

    Parameters
    ----------
    flat_in : array
        int64 ``[N]``: the tokens of all requests, one after the other.
    offsets : array
        int64 ``[bs + 1]``.
    req_pool_indices : array
        int64 ``[bs]``: the row of each request.
    pool_out : array
        int32 ``[R, C]``, row stride free; written in place.
    rules : {"own", "sglang"}
    allow_placeholder : bool
        Let token -1 through.
    narrow : bool
        Store the low 32 bits of any token.
    report, stream
        As in :func:`rope_pool_fused`.

    Returns
    -------
    array
        `pool_out`.

    Raises
    ------
    KVCanaryError
        Also a ValueError (shapes, lengths, offsets), TypeError (dtypes) or IndexError (rows).

    Examples
    --------
    >>> import numpy as np, kvcanary
    >>> table = np.zeros((2, 4), np.int32)
    >>> kvcanary.scatter_req_token_ids(flat_in=np.array([7, 8, 9]), offsets=np.array([0, 3]),
    ...                                req_pool_indices=np.array([1]), pool_out=table)[1].tolist()
    [7, 8, 9, 0]
    """
    call("scatter_req_token_ids", pool_out,
        flat_in, offsets, req_pool_indices, pool_out, choose(RULES, rules, "rules"),
        int(allow_placeholder), int(narrow), _reported(report, pool_out), stream_of(pool_out, stream),
    )  # fmt: skip
    return pool_out


def plan(
    out: Plan,
    *,
    requests: Requests,
    req_to_token: Array,
    expected_tokens: Array | None = None,
    valid_lens: Array | None = None,
    token_offset: int = 0,
    window: int = 0,
    full_to_swa_index_mapping: Array | None = None,
    exclude: Array | None = None,
    rotation: Array | None = None,
    rules: str | int = "own",
    report: Report | None = None,
    stream: Any = None,
) -> Plan:
    """List what the step's requests read, and where each request's writes go.

    Parameters
    ----------
    out : Plan
        Filled in place.
    requests : Requests
    req_to_token : array
        int32 ``[R, C]``: the slot of each (row, position).
    expected_tokens, valid_lens : array, optional
        int32 ``[R, C2]`` tokens that each row should hold, from a source independent of the write
        path, and int64 ``[bs]``, how many columns of its row are filled for each request.
    token_offset : int
        Added to a position to find its expected token.
    window : int
        Sliding window in tokens, 0 = none.
    full_to_swa_index_mapping : array, optional
        int64 ``[n]``: slot of the window group for each full slot.
    exclude : array, optional
        uint8 bitmap of slots that are written in this very step.
    rotation : array, optional
        int64 ``[1]``: which entry comes first when not all fit; moved on.
    rules : {"own", "sglang"}

    Returns
    -------
    Plan
        `out`.

    Raises
    ------
    KVCanaryError
        As kvc_canary_plan(); nothing is written then.
    """
    turn = _scalar(rotation, "rotation", "int64", expect(out, Plan, "out").device)
    call("plan", req_to_token,
        out.address, expect(requests, Requests, "requests").address, req_to_token, expected_tokens, valid_lens, token_offset,
        window, full_to_swa_index_mapping, exclude, turn,
        choose(RULES, rules, "rules"), _reported(report, req_to_token), stream_of(req_to_token, stream),
    )  # fmt: skip
    return out


def check_plan(
    plan: Plan,
    group: Group,
    *,
    mapping: Array | None = None,
    scratch: Array | None = None,
    ring: Ring | None = None,
    stream: Any = None,
) -> None:
    """Find slots that two requests claim with different contents, before a byte is written.

    Parameters
    ----------
    plan, group
        The plan, and the group whose records it reads.
    mapping : array, optional
        full_to_swa_index_mapping, int64.
    scratch : array, optional
        int64 ``[2, P]``, all zero, left zero; None = made for this call.
    ring : Ring, optional
        Where violations go; without one the first is this call's error (CPU only).

    Raises
    ------
    KVCanaryError
        Without a ring also for a slot claimed twice (status E_SLOT_DUPLICATE, a ValueError).
    """
    expect(plan, Plan, "plan")
    expect(group, Group, "group")
    if scratch is None:
        with on_stream(group.records, stream):
            scratch = new_array(group.records, (2, group.record_count), "int64", zero=True)
    call(
        "check_plan",
        scratch,
        plan.address,
        group.address,
        mapping,
        scratch,
        _ring(ring),
        stream_of(scratch, stream),
    )


def write(
    group: Group,
    plan: Plan,
    tokens: Array,
    positions: Array,
    slots: Array,
    *,
    requests: Requests | None = None,
    expected_tokens: Array | None = None,
    expected_positions: Array | None = None,
    check_steps: Array | None = None,
    step: Array | None = None,
    launch_tag: int = LaunchTag.STEP_WRITE,
    scratch: Array | None = None,
    ring: Ring | None = None,
    rules: str | int = "own",
    stream: Any = None,
) -> None:
    """Stamp the slots that a step writes.

    Parameters
    ----------
    group : Group
        Whose records are written.
    plan : Plan
        Its write offsets and seeds.
    tokens, positions, slots : array
        int64 ``[T]``, in the plan's order.
    requests : Requests, optional
        Namespaces, write_chain_in, owner_request, req_pool_indices.
    expected_tokens, expected_positions : array, optional
        Both or none, int64 ``[T]``: the input check.
    check_steps : array, optional
        int32 ``[1]``: not 0 = each position must be the previous one + 1.
    step : array, optional
        int64 ``[1]``: step number for the owners.
    launch_tag : int
        For owners and violations.
    scratch : array, optional
        int64 ``[P]``, all zero, left zero: a request may start from a slot that another request of
        this call writes.
    ring : Ring, optional
    rules : {"own", "sglang"}

    Raises
    ------
    KVCanaryError
        As kvc_canary_write(); nothing is written then. Violations are no errors: poll the ring.
    """
    expect(group, Group, "group")
    expect(plan, Plan, "plan")
    flag = _scalar(check_steps, "check_steps", "int32", group.device)
    number = _scalar(step, "step", "int64", group.device)
    call("write", tokens,
        group.address, plan.address, _requests(requests), tokens, positions, slots,
        expected_tokens, expected_positions, flag,
        number, index(launch_tag), scratch, _ring(ring),
        choose(RULES, rules, "rules"), stream_of(tokens, stream),
    )  # fmt: skip


def verify(
    group: Group,
    plan: Plan,
    *,
    requests: Requests | None = None,
    check_bytes: bool = True,
    check_tokens: bool = True,
    check_finite: bool = False,
    valid_prefix: Array | None = None,
    launch_tag: int = LaunchTag.STEP_READ,
    ring: Ring | None = None,
    rules: str | int = "own",
    stream: Any = None,
) -> None:
    """Compare every planned slot with its record, its predecessor and its bytes.

    Parameters
    ----------
    group, plan
        Only read.
    requests : Requests, optional
        Namespaces, verify_chain_in, chain_end (with prefix_lens), req_pool_indices.
    check_bytes, check_tokens, check_finite : bool
        Compare fingerprints; compare expected tokens; look for NaN and infinity.
    valid_prefix : array, optional
        int64 ``[bs]``, written: the lowest position with a violation, else the prefix length.
    launch_tag : int
    ring : Ring, optional
        Where violations go.
    rules : {"own", "sglang"}

    Raises
    ------
    KVCanaryError
        As kvc_canary_verify(). Violations are no errors: poll the ring.
    """
    expect(group, Group, "group")
    expect(plan, Plan, "plan")
    call("verify", group.records,
        group.address, plan.address, _requests(requests), int(check_bytes), int(check_tokens),
        int(check_finite), choose(RULES, rules, "rules"), valid_prefix, index(launch_tag),
        _ring(ring), stream_of(group.records, stream),
    )  # fmt: skip


def void(group: Group, slots: Array, *, stream: Any = None) -> None:
    """Make the records of slots never stamped: a page that is handed to a new owner.

    Parameters
    ----------
    group : Group
    slots : array
        int64 ``[n]``; negative ones are skipped.
    """
    address = expect(group, Group, "group").address
    call("void", slots, address, slots, stream_of(slots, stream))


def copy(
    group: Group,
    from_slots: Array,
    to_slots: Array,
    *,
    scratch: Array | None = None,
    stream: Any = None,
) -> None:
    """Copy records and owners from slots to slots, beside their KV; all reads before all writes.

    Parameters
    ----------
    group : Group
    from_slots, to_slots : array
        int64 ``[n]``; a pair with a negative entry is skipped.
    scratch : array, optional
        int64 ``[n, 6]``; None = made for this call.
    """
    expect(group, Group, "group")
    if scratch is None:
        count = length_of(from_slots, "from")
        with on_stream(group.records, stream):
            scratch = new_array(group.records, (count, 6), "int64")
    call(
        "copy",
        from_slots,
        group.address,
        from_slots,
        to_slots,
        scratch,
        stream_of(from_slots, stream),
    )


def fingerprint(
    group: Group, slots: Array, *, out: Array | None = None, stream: Any = None
) -> Array:
    """Fingerprints of the slots as their bytes are now.

    Parameters
    ----------
    group : Group
        Sources, fingerprint, coverage.
    slots : array
        int64 ``[n]``; a negative slot gives 0.
    out : array, optional
        int64 ``[n]``, the unsigned value's bits; None = a new one.

    Returns
    -------
    array
        `out`.
    """
    expect(group, Group, "group")
    count = length_of(slots, "slots")
    if out is None:
        with on_stream(group.records, stream):
            out = new_array(group.records, (count,), "int64")
    target = flat(out, "out", "int64", length=count)
    require_device(target.device, "out", group.device, "the group")
    call("fingerprint", slots, target.data, group.address, slots, stream_of(slots, stream))
    return out


@dataclass(frozen=True, slots=True)
class FiniteScan:
    """What :func:`scan_finite` found; the last four are -1 if nothing."""

    slots_scanned: int
    nonfinite_count: int
    first_slot: int
    first_source_id: int
    first_head: int
    first_dim: int


def scan_finite(group: Group, slots: Array, *, stream: Any = None) -> FiniteScan:
    """Look for NaN and infinity in the slots, whatever their records say. Waits for the device.

    Parameters
    ----------
    group : Group
    slots : array
        int64 ``[n]``; negative ones are skipped.
    """
    expect(group, Group, "group")
    with on_stream(group.records, stream):
        out = new_array(group.records, (6,), "int64", zero=True)
        target = flat(out, "out", "int64", length=6)
        call("scan_finite", slots, target.data, group.address, slots, stream_of(slots, stream))
        return FiniteScan(*to_host(out))
