"""Numbers on their way to C, where ctypes would keep their low bits and say nothing."""

import ctypes
from operator import index
from typing import Any


def _too_large(name: str, value: int, bits: int) -> Exception:
    from ._abi import Status  # which is made of what this module defines
    from .errors import fault

    return fault("integer-too-large", Status.E_CONFIG, name=name, value=value, bits=bits)


class Struct(ctypes.Structure):
    """A C struct whose integers are what they were given as."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(*values, **fields)
        for name, value in fields.items():
            if type(value) is not int:
                if not hasattr(value, "__index__"):
                    continue
                value = index(value)
            if not 0 <= value < 2**31 and getattr(self, name) != value:
                raise _too_large(name, value, 8 * getattr(type(self), name).size)


def fit(
    value: int, name: str, ctype: type[ctypes.c_int32 | ctypes.c_int64 | ctypes.c_uint64]
) -> int:
    """`value`, an argument of C of this type; refused if it does not fit."""
    number = index(value)
    if ctype(number).value != number:
        raise _too_large(name, number, 8 * ctypes.sizeof(ctype))
    return number
