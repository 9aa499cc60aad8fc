"""Rotary embedding and the write path: rope_pool_fused."""

import ctypes
from typing import TYPE_CHECKING, Any, TypedDict

from . import _abi
from ._fast import call, quick
from ._lib import C
from ._options import SCALINGS, STYLES, choose
from ._tensor import (
    HOST,
    Array,
    Device,
    Pinned,
    View,
    device_like,
    empty_like,
    require_device,
    stream_of,
    view,
)
from .errors import check, expect
from .report import Report

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Rope", "Stamp", "rope_init", "rope_pool_fused"]


class Rope(Pinned):
    """Frequencies ready for use; made by :func:`rope_init`, immutable.

    Attributes
    ----------
    rotary_dim : int
        Elements of a head that rotate.
    attention_factor : float
        What cosines and sines are multiplied with.
    """

    __slots__ = ("_c", "_table", "address")

    def __init__(self, struct: _abi.kvc_rope, table: View | None) -> None:
        self._c = struct
        self._table = table
        #: Address of the C struct.
        self.address = ctypes.addressof(struct)

    @property
    def rotary_dim(self) -> int:
        return self._c.rotary_dim

    @property
    def attention_factor(self) -> float:
        return self._c.attention_factor

    @property
    def inv_freq(self) -> list[float]:
        """Radians per position, ``rotary_dim // 2`` of them; zeros where a table was given."""
        return list(self._c.inv_freq[: self.rotary_dim // 2])

    def __repr__(self) -> str:
        style = next(name for name, value in STYLES.items() if value == self._c.style)
        return f"Rope(rotary_dim={self.rotary_dim}, style={style!r})"


def rope_init(
    rotary_dim: int,
    *,
    style: str | int = "neox",
    rope_base: float = 10000.0,
    scaling: str | int = "none",
    factor: float = 1.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_position: float = 0.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float = 0.0,
    mscale_all_dim: float = 0.0,
    attention_factor: float = 0.0,
    inv_freq: Array | None = None,
    cos_sin_cache: Array | None = None,
) -> Rope:
    """Turn a model's RoPE settings into frequencies, once per model.

    Parameters
    ----------
    rotary_dim : int
        Elements of a head that rotate: even, 0 to 512.
    style : {"neox", "interleaved"}
        Which elements form a pair: (i, i + rotary_dim/2), or (2i, 2i + 1).
    rope_base : float
        "theta", > 0.
    scaling : {"none", "linear", "llama3", "yarn"}
        How frequencies are stretched; the parameters after it are read as it needs them.
    factor, low_freq_factor, high_freq_factor, original_max_position, beta_fast, beta_slow, \
truncate, mscale, mscale_all_dim, attention_factor
        As in the ``rope_scaling`` of a model's config; 0 = not given.
    inv_freq : array, optional
        float32 or float64 ``[rotary_dim/2]`` in host memory, copied.
    cos_sin_cache : array, optional
        float32 ``[max_position, rotary_dim]``, cosines then sines; kept, never written.

    Returns
    -------
    Rope

    Raises
    ------
    KVCanaryError
        Also a ValueError or TypeError: a value out of its range, a shape or dtype that does not fit.

    Examples
    --------
    >>> import kvcanary
    >>> rope = kvcanary.rope_init(128, rope_base=500000.0, scaling="llama3", factor=8.0,
    ...                           original_max_position=8192)
    >>> rope.rotary_dim
    128
    """
    table = None if cos_sin_cache is None else view(cos_sin_cache, "cos_sin_cache")
    given = None if inv_freq is None else view(inv_freq, "inv_freq")
    options = _abi.kvc_rope_options(
        rotary_dim=rotary_dim,
        style=choose(STYLES, style, "style"),
        rope_base=rope_base,
        scaling=choose(SCALINGS, scaling, "scaling"),
        truncate=int(truncate),
        factor=factor,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        original_max_position=original_max_position,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        mscale=mscale,
        mscale_all_dim=mscale_all_dim,
        attention_factor=attention_factor,
        inv_freq=None if given is None else given.address,
        cos_sin_cache=None if table is None else table.address,
    )
    struct = _abi.kvc_rope()
    check(C.kvc_rope_init(ctypes.byref(struct), ctypes.byref(options)))
    return Rope(struct, table)


# Frequencies of models without scaling, by rotary_dim, style and base. Never taken out: a call in
# another thread may be using them.
_plain_ropes: dict[tuple[int, str | int, float], Rope] = {}


def _plain_rope(rotary_dim: int, style: str | int, rope_base: float) -> Rope:
    rope = rope_init(rotary_dim, style=style, rope_base=rope_base)
    return _plain_ropes.setdefault((rotary_dim, style, rope_base), rope)


class Stamp(Pinned):
    """Where rope_pool_fused adds the fingerprints of the rows it stores.

    Made by :meth:`Group.stamp` and :meth:`Guard.stamp`; keeps the records that it leads to alive.
    """

    __slots__ = ("_c", "_device", "_keep", "address")

    def __init__(self, struct: _abi.kvc_stamp, keep: Any, device: Device = HOST) -> None:
        self._c = struct
        self._keep = keep
        self._device = device
        #: Address of the C struct.
        self.address = ctypes.addressof(struct)

    def address_for(self, array: Array) -> int:
        """The address, for a call over `array`: the records must lie on the same device."""
        require_device(self._device, "stamp.records", device_like(array), "the call")
        return self.address


class RopePoolOptions(TypedDict, total=False):
    """The keywords of :func:`rope_pool_fused` that most calls leave out.

    Apart from the others because Python fills in defaults one by one, in every call.
    """

    n_valid: int
    rotary_offset: int
    q_rotary_offset: int
    reserved_slot: int
    check_duplicates: bool
    check_finite: bool
    k_scale: float
    v_scale: float
    scratch: Array | None
    stamp: Stamp | None
    report: Report | None
    stream: Any


def rope_pool_fused(
    q: Array,
    k: Array,
    v: Array | None,
    positions: Array,
    slots: Array,
    k_pool: Array,
    v_pool: Array | None,
    *,
    head_dim: int = 0,
    num_qo_heads: int = 0,
    num_kv_heads: int = 0,
    rope_base: float = 10000.0,
    rotary_dim: int | None = None,
    style: str | int = "neox",
    rope: Rope | None = None,
    q_out: Array | None = None,
    k_out: Array | None = None,
    **options: "Unpack[RopePoolOptions]",
) -> tuple[Array, Array, Array, Array | None]:
    """Rotate q and k by RoPE and scatter the rotated k and the untouched v into their pools.

    T tokens, Hq and Hkv heads, D head dim, P slots. Token, head and slot strides are free; the last
    dimension is contiguous. The pools are written in place.

    Parameters
    ----------
    q, k, v : array
        ``[T, Hq, D]``, ``[T, Hkv, D]``, ``[T, Hkv, D]``; float32, float16 or bfloat16, all alike.
        v and v_pool may both be None (MLA rows).
    positions, slots : array
        ``[T]``, int32 or int64. A negative slot skips the pool write.
    k_pool, v_pool : array
        ``[P, Hkv, D]``, written in place; the dtype of q, or float8_e4m3fn / float8_e5m2.
    head_dim, num_qo_heads, num_kv_heads : int
        What q and k must have; 0 = as the arrays say.
    rope_base, rotary_dim, style
        Frequencies without scaling; `rotary_dim` None = all of the head dim.
    rope : Rope, optional
        From :func:`rope_init`, in place of the three above.
    q_out, k_out : array, optional
        Where the rotated q and k go; may be q and k themselves. None = new arrays; rows of them that
        the call leaves alone (past `n_valid`, no slot and no valid position) hold anything.
    n_valid : int
        Rows to process, -1 = T.
    rotary_offset, q_rotary_offset : int
        First rotated element of a head of k and of q.
    reserved_slot : int
        The dummy slot of padding tokens, never written; -1 = none.
    check_duplicates, check_finite : bool
        Refuse two tokens on one slot; refuse NaN and infinity in k and v.
    k_scale, v_scale : float
        float8 pools: value / scale is stored.
    scratch : array, optional
        CUDA with `check_duplicates`: int32 ``[P]``, zero, left zero.
    stamp : Stamp, optional
        Fingerprint the rows while they are in cache.
    report : Report, optional
        Takes what was written, skipped and, on CUDA, left out and why.
    stream : optional
        CUDA stream: an int, torch.cuda.Stream or cupy.cuda.Stream; None = the current one.

    Returns
    -------
    (q_rot, k_rot, k_pool, v_pool)

    Raises
    ------
    KVCanaryError
        Also a ValueError, TypeError or IndexError as the catalogue says. Nothing is written then.

    Examples
    --------
    >>> import numpy as np, kvcanary
    >>> q = np.ones((1, 2, 8), np.float32)
    >>> k, v = np.ones((1, 1, 8), np.float32), np.full((1, 1, 8), 2, np.float32)
    >>> k_pool, v_pool = np.zeros((4, 1, 8), np.float32), np.zeros((4, 1, 8), np.float32)
    >>> out = kvcanary.rope_pool_fused(q, k, v, np.array([0]), np.array([3]), k_pool, v_pool,
    ...                                head_dim=8, num_qo_heads=2, num_kv_heads=1, rope_base=1e4)
    >>> float(k_pool[3].sum()), float(v_pool[3].sum())
    (8.0, 16.0)
    """
    if rope is None:
        dim = rotary_dim if rotary_dim is not None else head_dim or _head_dim(k)
        rope = _plain_ropes.get((dim, style, rope_base)) or _plain_rope(dim, style, rope_base)
    elif type(rope) is not Rope:
        expect(rope, Rope, "rope")
    if q_out is None:
        q_out = empty_like(q, "q", options.get("stream"))
    elif q_out is True:  # which means in place below here
        view(q_out, "q_out")
    if k_out is None:
        k_out = empty_like(k, "k", options.get("stream"))
    elif k_out is True:
        view(k_out, "k_out")
    fast = quick.rope_pool_fused
    if not options and fast is not None and type(q) is quick.tensor_type:
        # As in call(), without its detours: this one runs for every layer of every step.
        try:
            fast(
                q, k, v, positions, slots, k_pool, v_pool,
                True if q_out is q else q_out, True if k_out is k else k_out,
                rope.address, head_dim, num_qo_heads, num_kv_heads, None,
            )  # fmt: skip
            return q_out, k_out, k_pool, v_pool
        except Exception:
            pass
    call(
        "rope_pool_fused", q,
        q, k, v, positions, slots, k_pool, v_pool,
        True if q_out is q else q_out, True if k_out is k else k_out,
        rope.address, head_dim, num_qo_heads, num_kv_heads, *_further(q, **options),
    )  # fmt: skip
    return q_out, k_out, k_pool, v_pool


def _further(
    q: Array,
    *,
    n_valid: int = -1,
    rotary_offset: int = 0,
    q_rotary_offset: int = 0,
    reserved_slot: int = -1,
    check_duplicates: bool = False,
    check_finite: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    scratch: Array | None = None,
    stamp: Stamp | None = None,
    report: Report | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """The arguments that may be left out together, in C's order, and the stream."""
    return (
        n_valid, rotary_offset, q_rotary_offset, reserved_slot, check_duplicates, check_finite,
        k_scale, v_scale, scratch,
        0 if stamp is None else expect(stamp, Stamp, "stamp").address_for(q),
        0 if report is None else expect(report, Report, "report").address_for(q),
        None if stream is None else stream_of(q, stream),
    )  # fmt: skip


_further.__qualname__ = "rope_pool_fused"  # which is what a TypeError over a keyword should name


def _head_dim(k: Array) -> int:
    shape = view(k, "k").shape
    return shape[-1] if shape else 0
