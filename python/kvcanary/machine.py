"""Threads, CPU variants and the error catalogue."""

import ctypes
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._lib import C, c_string, string
from ._struct import fit
from .errors import check

__all__ = [
    "CpuVariant",
    "Explanation",
    "cpu_variants",
    "explain",
    "get_num_threads",
    "set_num_threads",
]


def set_num_threads(count: int) -> None:
    """How many threads the library may use, the calling one included; 0 = one per CPU.

    Raises
    ------
    KVCanaryError
        Also a ValueError: negative, or above 1024.
    """
    check(C.kvc_set_num_threads(fit(count, "count", ctypes.c_int32)))


def get_num_threads() -> int:
    """The number of threads in use, never 0."""
    return int(C.kvc_get_num_threads())


@dataclass(frozen=True, slots=True)
class CpuVariant:
    """Kernels written for one set of instructions. All store the same bytes."""

    name: str
    supported: bool
    chosen: bool


def cpu_variants() -> list[CpuVariant]:
    """The CPU variants of this build, best first; the environment's KVC_CPU forces one."""
    found = [C.kvc_cpu_variant_at(i) for i in range(C.kvc_cpu_variant_count())]
    return [CpuVariant(string(v.name), bool(v.supported), bool(v.chosen)) for v in found]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One entry of the catalogue: everything there is to say about an error or a violation."""

    id: str
    slug: str
    kind: str
    message: str
    pattern: str
    error_type: str
    error_class: str
    severity: str
    hint: str
    documentation: str
    trigger_scenarios: str
    common_situations: str
    solutions: tuple[str, ...]
    fix_language: str
    fix_before: str
    fix_after: str
    validation_code: str
    prevention_tips: tuple[str, ...]
    tags: tuple[str, ...]
    record_json: str


def _strings(address: int | None) -> tuple[str, ...]:
    found: list[str] = []
    entries = ctypes.cast(address or 0, ctypes.POINTER(ctypes.c_char_p))
    while entries[len(found)] is not None:
        found.append(string(entries[len(found)]))
    return tuple(found)


def _explanation(entry: _abi.kvc_catalog_entry) -> Explanation:
    lists = ("solutions", "prevention_tips", "tags")
    values: dict[str, Any] = {}
    for name in Explanation.__slots__:
        value = getattr(entry, name)
        values[name] = _strings(value) if name in lists else string(value)
    return Explanation(**values)


def explain(what: str) -> Explanation:
    """The catalogue entry of a slug, or of a pasted message or log line.

    Parameters
    ----------
    what : str
        A slug such as "pool-slot-out-of-range", or any text with a message of the library in it.

    Raises
    ------
    KeyError
        There is no such entry.

    Examples
    --------
    >>> import kvcanary
    >>> kvcanary.explain("pool-dtypes-must-match").error_class
    'ValueError'
    """
    text = c_string(str(what))
    entry = C.kvc_catalog_find(text) or C.kvc_catalog_match(text, None, None, 0, None)
    if not entry:
        raise KeyError(what)
    return _explanation(entry.contents)
