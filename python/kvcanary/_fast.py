"""Which way a call takes: for torch's tensors a built-in function or tvm-ffi, else ctypes."""

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from . import _calls
from ._builtin import builtins
from ._lib import TVM_FFI_READY, C, library_path
from ._tensor import device_of

__all__ = ["call", "quick"]

_NAMES = (
    "rope_pool_fused",
    "scatter_req_token_ids",
    "plan",
    "check_plan",
    "write",
    "verify",
    "void",
    "copy",
    "fingerprint",
    "scan_finite",
    "sglang_plan",
    "sglang_verify",
    "sglang_write",
    "sglang_scatter",
)


class _Quick:
    """The library's entry points, found at the first torch tensor."""

    __slots__ = ("functions", "rope_pool_fused", "tensor_type")

    def __init__(self) -> None:
        #: torch.Tensor, once one was seen; subclasses go over ctypes.
        self.tensor_type: type | None = None
        self.functions: dict[str, Callable[..., Any]] = {}
        #: The one that is called for every layer of every step; None = over ctypes.
        self.rope_pool_fused: Callable[..., Any] | None = None

    def load(self) -> None:
        self.tensor_type = sys.modules["torch"].Tensor
        if os.environ.get("KVCANARY_BINDING") == "ctypes":
            return
        self.functions = self._built_in() or self._over_tvm_ffi()
        self.rope_pool_fused = self.functions.get("rope_pool_fused")

    def _built_in(self) -> dict[str, Callable[..., Any]]:
        if os.environ.get("KVCANARY_BINDING") == "tvm-ffi":
            return {}
        try:
            entries = {name: getattr(C, f"__tvm_ffi_{name}") for name in _NAMES}
            return builtins(self.tensor_type, entries)
        except (AttributeError, ValueError):
            # A build without entry points, another interpreter, an older torch.
            return {}

    def _over_tvm_ffi(self) -> dict[str, Callable[..., Any]]:
        if not TVM_FFI_READY or not self._cheap():
            return {}
        try:
            tvm_ffi = importlib.import_module("tvm_ffi")
            module = tvm_ffi.load_module(library_path())
            found = {name: module.get_function(name) for name in _NAMES}
        except Exception:  # a build without these entry points
            return {}
        for function in found.values():
            function.release_gil = True
        return found

    def _cheap(self) -> bool:
        """Can tvm-ffi look into torch's tensors without compiling something first?"""
        return (
            hasattr(self.tensor_type, "__dlpack_c_exchange_api__")  # torch 2.10 and later
            or importlib.util.find_spec("torch_c_dlpack_ext") is not None
            or os.environ.get("KVCANARY_BINDING") == "tvm-ffi"
        )


quick = _Quick()


def call(name: str, first: object, *arguments: object) -> None:
    """Call the function `name` of :mod:`kvcanary._calls` by the quickest way that takes it.

    `first` is the array that says which framework is at work. A call that fails there has
    written nothing and is made again over ctypes, which says why in the catalogue's words, or
    succeeds where the quick way alone could not take an argument.
    """
    if quick.tensor_type is None and type(first).__module__ == "torch":
        quick.load()
    function = quick.functions.get(name)
    if function is not None and type(first) is quick.tensor_type:
        try:
            function(*arguments)
            return
        except Exception:
            pass
    with device_of(first):
        getattr(_calls, name)(*arguments)
