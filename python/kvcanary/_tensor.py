"""Arrays of any framework as the kvc_tensor that C takes, without a copy.

Three ways in, tried in this order:

- torch: its own attributes, which know every dtype and are quick;
- NumPy's ``__array_interface__`` of its arrays, which also carries ml_dtypes' bfloat16 and float8
  (that of its scalars leads to a copy that is gone by then);
- DLPack, for everything else (CuPy, JAX, MLX, ...), ordered on the call's stream.

A :class:`View` keeps alive what its pointers point to; hold it as long as C uses them.
"""

import ctypes
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import Any

from ._abi import (
    KVC_CODE_BFLOAT,
    KVC_CODE_BOOL,
    KVC_CODE_FLOAT,
    KVC_CODE_FLOAT8_E4M3FN,
    KVC_CODE_FLOAT8_E5M2,
    KVC_CODE_INT,
    KVC_CODE_UINT,
    KVC_DEVICE_CPU,
    KVC_DEVICE_CUDA,
    KVC_DEVICE_CUDA_HOST,
    KVC_DEVICE_CUDA_MANAGED,
    Status,
    kvc_tensor,
)
from ._struct import fit
from .errors import KVCanaryError, fault

#: Anything that holds an array: a torch, NumPy, CuPy, JAX or MLX array.
Array = Any

_CODE_COMPLEX = 5

# Name of an element type, as NumPy, ml_dtypes, torch and the library print it -> (code, bits).
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (KVC_CODE_BOOL, 8),
    "int8": (KVC_CODE_INT, 8),
    "int16": (KVC_CODE_INT, 16),
    "int32": (KVC_CODE_INT, 32),
    "int64": (KVC_CODE_INT, 64),
    "uint8": (KVC_CODE_UINT, 8),
    "uint16": (KVC_CODE_UINT, 16),
    "uint32": (KVC_CODE_UINT, 32),
    "uint64": (KVC_CODE_UINT, 64),
    "float16": (KVC_CODE_FLOAT, 16),
    "float32": (KVC_CODE_FLOAT, 32),
    "float64": (KVC_CODE_FLOAT, 64),
    "bfloat16": (KVC_CODE_BFLOAT, 16),
    "float8_e4m3fn": (KVC_CODE_FLOAT8_E4M3FN, 8),
    "float8_e5m2": (KVC_CODE_FLOAT8_E5M2, 8),
    "complex64": (_CODE_COMPLEX, 64),
    "complex128": (_CODE_COMPLEX, 128),
}
NAMES = {value: name for name, value in DTYPES.items()}

# DLPack's device types of torch's: where one is missing C is told 0, which it does not know.
_TORCH_DEVICES = {"cpu": KVC_DEVICE_CPU, "cuda": KVC_DEVICE_CUDA}

_HOSTS = (KVC_DEVICE_CPU, KVC_DEVICE_CUDA_HOST)
_CUDAS = (KVC_DEVICE_CUDA, KVC_DEVICE_CUDA_MANAGED)

_READ_ONLY = 1  # DLPack's DLPACK_FLAG_BITMASK_READ_ONLY


class _DLManagedTensorVersioned(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned. The unversioned one begins with its kvc_tensor."""

    major: int
    flags: int
    dl_tensor: Any
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", kvc_tensor),
    ]


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = [ctypes.py_object]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Pinned:
    """Something with addresses inside: a copy would lead into the memory of the original, which
    nothing would keep alive."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"a kvcanary {type(self).__name__} holds addresses: it cannot be copied or pickled"
        )


class View(Pinned):
    """A kvc_tensor at an address, and what must live as long as it."""

    __slots__ = ("_keep", "address")

    def __init__(self, address: int, keep: Any) -> None:
        self.address = address
        self._keep = keep

    @property
    def tensor(self) -> kvc_tensor:
        return kvc_tensor.from_address(self.address)

    @property
    def shape(self) -> tuple[int, ...]:
        return _int64s(self.tensor.shape, self.tensor.ndim)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        if self.tensor.strides is not None or self.tensor.ndim == 0:
            return _int64s(self.tensor.strides, self.tensor.ndim)
        return _compact(self.shape)

    @property
    def data(self) -> int:
        return (self.tensor.data or 0) + self.tensor.byte_offset

    @property
    def itemsize(self) -> int:
        return (self.tensor.dtype.bits + 7) // 8

    @property
    def dtype(self) -> str:
        dtype = self.tensor.dtype
        word = f"type {dtype.code}:{dtype.bits}:{dtype.lanes}"
        return NAMES.get((dtype.code, dtype.bits), word) if dtype.lanes == 1 else word

    @property
    def device(self) -> tuple[int, int]:
        return self.tensor.device.device_type, self.tensor.device.device_id


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements that lie side by side, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _int64s(address: int | None, count: int) -> tuple[int, ...]:
    if not address or not count:
        return ()
    return tuple((ctypes.c_int64 * count).from_address(address))


# A kvc_tensor (data, device type and id, ndim, dtype code, bits and lanes, shape, strides, offset)
# and then the entries of its shape and strides, packed in one go: ctypes takes ten times as long
# field by field.
_LAYOUTS = [struct.Struct(f"=QiiiBBHQQQ{2 * ndim}q") for ndim in range(65)]
_HEAD = ctypes.sizeof(kvc_tensor)


def _make(
    data: int,
    device: tuple[int, int],
    dtype: tuple[int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    keep: Any,
) -> View:
    ndim = len(shape)
    layout = _LAYOUTS[ndim]
    memory = ctypes.create_string_buffer(layout.size)
    at = ctypes.addressof(memory) + _HEAD
    layout.pack_into(
        memory, 0, data, *device, ndim, *dtype, 1, at, at + 8 * ndim, 0, *shape, *strides
    )  # fmt: skip
    return View(at - _HEAD, (memory, keep))


def is_torch(array: Array) -> bool:
    """Is this a torch.Tensor? Asked without importing torch."""
    return hasattr(array, "data_ptr") and hasattr(array, "is_cuda")


def _is_numpy(array: Array) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


# Element types met so far, by the framework's own object.
_MET: dict[Any, tuple[int, int]] = {}


def _dtype_of(name: str, dtype: Any) -> tuple[int, int]:
    """(code, bits) of a torch or NumPy element type."""
    met = _MET.get(dtype)
    if met is not None:
        return met
    native = getattr(dtype, "isnative", True)
    word = str(dtype).rpartition(".")[2] if native else str(dtype.str)
    found = DTYPES.get(word)
    if found is None:
        raise fault("array-dtype-unknown", Status.E_DTYPE, name=name, dtype=word)
    _MET[dtype] = found
    return found


def _from_torch(array: Array, name: str) -> View:
    if array.is_neg() or array.is_conj():  # what lies in memory is not its elements
        raise _no_array(array, name)
    device = array.device
    return _make(
        array.data_ptr(),
        (_TORCH_DEVICES.get(device.type, 0), device.index or 0),
        _dtype_of(name, array.dtype),
        tuple(array.shape),
        array.stride(),
        array,
    )


def _from_numpy(array: Array, name: str, writable: bool) -> View:
    if hasattr(array, "mask"):  # of numpy.ma: what it hides would be read all the same
        raise _no_array(array, name)
    data, read_only = array.__array_interface__["data"]
    if writable and read_only:
        raise fault("array-read-only", Status.E_INVALID_ARGUMENT, name=name)
    dtype = _dtype_of(name, array.dtype)
    itemsize = dtype[1] // 8
    for stride in array.strides:
        if stride % itemsize:
            raise fault(
                "array-stride-bytes", Status.E_STRIDE, name=name, stride=stride, bytes=itemsize
            )
    strides = tuple(stride // itemsize for stride in array.strides)
    if not array.size:  # NumPy 2.4 gives zeros for what has no elements
        strides = _compact(array.shape)
    return _make(data, (KVC_DEVICE_CPU, 0), dtype, array.shape, strides, array)


def _capsule_of(array: Array, stream: int) -> Any:
    """The DLPack capsule, the versioned one where the producer has it (only that says read-only).

    On CUDA the producer is told the stream that the call runs on (1 = the legacy default one).
    """
    options: dict[str, Any] = {}
    if array.__dlpack_device__()[0] in _CUDAS:
        options["stream"] = stream or 1
    try:
        return array.__dlpack__(max_version=(1, 1), **options)
    except TypeError:
        return array.__dlpack__(**options)


def _from_dlpack(array: Array, name: str, writable: bool, stream: int) -> View:
    capsule = _capsule_of(array, stream)
    versioned = _capsule_name(capsule) == b"dltensor_versioned"
    # The name says what the capsule holds, and that nobody has taken it out yet.
    address = capsule_pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    if versioned:
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise _no_array(array, name)
        if writable and managed.flags & _READ_ONLY:
            raise fault("array-read-only", Status.E_INVALID_ARGUMENT, name=name)
        address += _DLManagedTensorVersioned.dl_tensor.offset
    return View(address, (capsule, array))


def _no_array(array: Array, name: str) -> Exception:
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    return fault("array-expected", Status.E_INVALID_ARGUMENT, name=name, type=kind)


def view(array: Array, name: str, *, writable: bool = False, stream: int = 0) -> View:
    """`array` as a kvc_tensor. Raises in the catalogue's words what only Python can see."""
    try:
        if is_torch(array):
            return _from_torch(array, name)
        if _is_numpy(array):
            return _from_numpy(array, name, writable)
        if hasattr(array, "__dlpack__"):
            return _from_dlpack(array, name, writable, stream)
    except (KVCanaryError, MemoryError, RecursionError):
        raise
    except Exception as error:  # sparse, deleted, under a transformation, or it only looks like one
        raise _no_array(array, name) from error
    raise _no_array(array, name)


#: A device as (type, number), DLPack's.
Device = tuple[int, int]
HOST: Device = (KVC_DEVICE_CPU, 0)


def memory_of(device: Device) -> Device:
    """Pinned memory is the host's, managed memory CUDA's on any device; all host memory is one."""
    kind, number = device
    return HOST if kind in _HOSTS else (KVC_DEVICE_CUDA if kind in _CUDAS else kind, number)


def require_device(found: Device, name: str, wanted: Device, other: str) -> None:
    """Refuse memory that a call over `wanted` could not touch. C sees a bare pointer there."""
    if memory_of(found) != memory_of(wanted):
        raise fault(
            "device-mismatch", Status.E_DEVICE, name=name, device_type=found[0],
            device_id=found[1], other=other, other_type=wanted[0], other_id=wanted[1],
        )  # fmt: skip


def device_like(array: Array) -> Device:
    """The device of an array of any framework."""
    if is_torch(array):
        device = array.device
        return _TORCH_DEVICES.get(device.type, 0), device.index or 0
    if not _is_numpy(array) and hasattr(array, "__dlpack_device__"):
        kind, number = array.__dlpack_device__()
        return int(kind), int(number)
    return HOST


def require_contiguous(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Refuse elements of this shape that do not lie side by side."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            raise fault(
                "canary-tensor-must-be-contiguous", Status.E_STRIDE, name=name, stride=stride
            )
        step *= extent


def flat(
    array: Array, name: str, dtype: str, *, length: int | None = None, writable: bool = True
) -> View:
    """A contiguous array of one dtype that C takes as a plain pointer.

    `length` is the least number of elements. Any number of dimensions.
    """
    found = view(array, name, writable=writable)
    if found.dtype != dtype:
        raise fault(
            "canary-tensor-dtype", Status.E_DTYPE, name=name, expected=dtype, dtype=found.dtype
        )
    require_contiguous(name, found.shape, found.strides)
    if found.data % found.itemsize:
        raise fault(
            "tensor-misaligned", Status.E_STRIDE, name=name, bytes=found.itemsize, dtype=dtype
        )
    count = prod(found.shape)
    if length is not None and count < length:
        raise fault(
            "canary-tensor-length", Status.E_LENGTH, name=name, expected=length, length=count
        )
    return found


def stream_of(array: Array, stream: Any) -> int:
    """A stream as its number: the caller's, else the current one of the array's framework."""
    if stream is None:
        return _current_stream(array)
    for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
    return fit(stream, "stream", ctypes.c_uint64)


def _current_stream(array: Array) -> int:
    if getattr(array, "is_cuda", False):
        import torch

        return int(torch.cuda.current_stream(array.device).cuda_stream)
    if type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)
    return 0


_bound = threading.local()  # .devices: those whose context this thread has had


@contextmanager
def _torch_device(device: Any) -> Iterator[None]:
    """torch's own guard does nothing in a thread that already counts as on that device, although it
    has no context yet; a call of the runtime that needs one gives it one."""
    import torch

    with torch.cuda.device(device):
        devices: set[int] = _bound.__dict__.setdefault("devices", set())
        if device.index not in devices:
            torch.cuda.mem_get_info(device)
            devices.add(device.index)
        yield


def device_of(array: Array) -> AbstractContextManager[Any]:
    """Makes the GPU of `array` this thread's current one for a ``with`` block, as its framework does.

    C works on the current context, which a new thread does not have.
    """
    if getattr(array, "is_cuda", False):
        return _torch_device(array.device)
    if type(array).__module__.partition(".")[0] == "cupy":
        device: AbstractContextManager[Any] = array.device
        return device
    return nullcontext()


def on_stream(array: Array, stream: Any) -> AbstractContextManager[Any]:
    """Memory of a ``with`` block is made, filled and read on the caller's stream, if there is one."""
    if stream is None:
        return nullcontext()
    number = stream_of(array, stream)
    scope: AbstractContextManager[Any] = nullcontext()
    if getattr(array, "is_cuda", False):
        import torch

        scope = torch.cuda.stream(torch.cuda.ExternalStream(number, device=array.device))
    elif type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        scope = cupy.cuda.ExternalStream(number)
    return scope


def to_host(words: Array) -> list[int]:
    """An int64 array of any framework as Python ints."""
    return [int(word) for word in words.tolist()]


def shape_of(array: Array, name: str) -> tuple[int, ...]:
    """The shape of an array of any framework."""
    try:
        return tuple(array.shape)
    except (AttributeError, TypeError):
        raise _no_array(array, name) from None


def length_of(array: Array, name: str) -> int:
    """Extent of the first dimension; 0 without one, which C will refuse."""
    shape = shape_of(array, name)
    return int(shape[0]) if shape else 0


def empty_like(array: Array, name: str, stream: Any = None) -> Array:
    """A new array of the framework, shape, dtype and device of `array`, for the library to fill."""
    shape = shape_of(array, name)
    try:
        with on_stream(array, stream):
            return new_array(array, shape, None)
    except (AttributeError, RuntimeError):
        if is_torch(array):
            raise
        raise _no_array(array, name) from None  # a JAX array inside jit, or deleted


def new_array(
    like: Array, shape: tuple[int, ...], dtype: str | None, *, zero: bool = False
) -> Array:
    """A new writable array of the framework and device of `like`.

    Frameworks whose arrays are immutable (JAX, MLX) get NumPy arrays on the CPU, except for results
    of their own dtype (`dtype` None).
    """
    if is_torch(like):
        import torch

        make = torch.zeros if zero else torch.empty
        kind = like.dtype if dtype is None else getattr(torch, dtype)
        return make(shape, dtype=kind, device=like.device)
    root = type(like).__module__.partition(".")[0]
    if root == "cupy":
        import cupy

        return (cupy.zeros if zero else cupy.empty)(shape, dtype or like.dtype)
    if dtype is None and root in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy.zeros(shape, like.dtype, device=like.device)
    if dtype is None and root == "mlx":
        import mlx.core

        made = mlx.core.zeros(shape, like.dtype) + 0
        mlx.core.eval(made)
        return made
    import numpy

    return (numpy.zeros if zero else numpy.empty)(shape, dtype or like.dtype)
