"""Which way a call takes: tvm-ffi where it is installed and the arrays are torch's, else ctypes."""

from typing import Any

from . import _calls
from ._tensor import Array, current_stream

__all__ = ["calls", "stream_of", "to_host"]


def calls(first: Array) -> Any:
    return _calls


def stream_of(first: Array, stream: Any) -> int:
    """A stream as its number: what the caller gave, else the current one of the framework."""
    if stream is None:
        return current_stream(first)
    for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    return int(stream)


def to_host(words: Array) -> list[int]:
    """An int64 array of any framework as Python ints."""
    return [int(word) for word in words.tolist()]
