"""What an operation wrote, skipped and left out."""

import ctypes
from typing import Any

from . import _abi
from ._abi import ReportReason
from ._tensor import (
    Array,
    Pinned,
    device_like,
    flat,
    new_array,
    on_stream,
    require_device,
    to_host,
)

__all__ = ["Report"]

_REASONS = _abi.KVC_REPORT_REASON_COUNT
_WORDS = ctypes.sizeof(_abi.kvc_report) // 8


class Report(Pinned):
    """Optional output of rope_pool_fused, scatter_req_token_ids and plan. Calls add to it.

    On the CPU bad input is refused as a whole, so that only `rows_written`, `rows_skipped` and
    `tokens_truncated` move; on CUDA `counts` and `first` say which rows were left out and why.

    Parameters
    ----------
    like : array, optional
        An array on the device of the calls that use the report; None = host memory.
    stream : optional
        CUDA stream of those calls, on which the report is made, cleared and read; None = the
        current one each time.

    Examples
    --------
    >>> import kvcanary
    >>> kvcanary.Report().rows_written
    0
    """

    __slots__ = ("_stream", "_view", "address", "words")

    def __init__(self, like: Array | None = None, *, stream: Any = None) -> None:
        self._stream = stream
        with on_stream(like, stream):
            #: int64 ``[35]``, the memory of the C struct.
            self.words = new_array(like, (_WORDS,), "int64", zero=True)
        self._view = flat(self.words, "report", "int64", length=_WORDS)
        #: Address of the C struct, on the device.
        self.address = self._view.data
        self.clear()

    def address_for(self, array: Array) -> int:
        """The address, for a call over `array`: the report must lie on the same device."""
        require_device(self._view.device, "report", device_like(array), "the call")
        return self.address

    def clear(self) -> None:
        """Make it empty."""
        with on_stream(self.words, self._stream):
            self.words[:] = 0
            self.words[_REASONS : 2 * _REASONS] = -1

    def _read(self) -> list[int]:
        with on_stream(self.words, self._stream):
            return to_host(self.words)

    @property
    def counts(self) -> dict[ReportReason, int]:
        """Offending entries by reason, those above 0. Waits for the device."""
        words = self._read()
        return {r: words[r] for r in ReportReason if words[r]}

    @property
    def first(self) -> dict[ReportReason, int]:
        """Index of the first offending entry by reason. Waits for the device."""
        words = self._read()
        return {r: words[_REASONS + r] for r in ReportReason if words[r]}

    @property
    def rows_written(self) -> int:
        """Pool rows, token rows or plan entries written."""
        return self._read()[2 * _REASONS]

    @property
    def rows_skipped(self) -> int:
        """Legal skips: negative or reserved slot, empty request."""
        return self._read()[2 * _REASONS + 1]

    @property
    def tokens_truncated(self) -> int:
        """Tokens that did not fit their row."""
        return self._read()[2 * _REASONS + 2]
