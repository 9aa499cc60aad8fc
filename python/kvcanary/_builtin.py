"""The library's entry points as built-in functions that take torch's tensors (src/ffi/python.c)."""

import ctypes
from collections.abc import Callable
from typing import Any

from ._lib import C
from ._tensor import capsule_pointer

_METH_FASTCALL = 0x80


class _ExchangeAPI(ctypes.Structure):
    """DLPack's DLPackExchangeAPI, version 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    ]


class _Builtin(ctypes.Structure):
    """struct builtin of src/ffi/python.c."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("tensor_of", ctypes.c_void_p),
        ("stream_on", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("none", "yes", "no", "int", "float", "error")),
    ]


class _MethodDef(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def builtins(tensor_type: Any, entries: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The entry points `entries`, functions of ctypes, for tensors of a type with an exchange API.

    Raises AttributeError where the library, the interpreter or torch lacks what that takes, and
    ValueError where what torch has is not an exchange API.
    """
    capsule = tensor_type.__dlpack_c_exchange_api__
    exchange = _ExchangeAPI.from_address(capsule_pointer(capsule, b"dlpack_exchange_api"))
    if exchange.major != 1 or not exchange.dltensor_from_py_object_no_sync:
        raise AttributeError("no DLPack exchange API of version 1 that makes a bare DLTensor")
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    made = {}
    for name, entry in entries.items():
        builtin = _Builtin(
            _address(entry),
            exchange.dltensor_from_py_object_no_sync,
            exchange.current_work_stream,
            *(id(thing) for thing in (None, True, False, int, float, RuntimeError)),
        )
        method = _MethodDef(name.encode(), _address(C.kvc__python_call), _METH_FASTCALL, None)
        # The function keeps what it leads to: it may outlive this module.
        kept = (ctypes.addressof(builtin), builtin, method)
        made[name] = new(ctypes.addressof(method), kept, None)
    return made
