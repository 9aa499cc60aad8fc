"""Finds and loads libkvcanary.so, once."""

import ctypes
import importlib.util
import os
from pathlib import Path

from . import _abi

#: The folder of the wheel that holds the shared library and the command.
PACKAGED = Path(__file__).parent / "lib"


def library_path() -> str:
    """The library in use: KVCANARY_LIBRARY, else the wheel's own, else what the loader finds."""
    named = os.environ.get("KVCANARY_LIBRARY")
    if named:
        return named
    own = PACKAGED / "libkvcanary.so"
    return str(own) if own.exists() else "libkvcanary.so.0"


def _load_tvm_ffi() -> bool:
    """Load libtvm_ffi, if it is installed, so that our library finds its functions.

    Only the shared library; the Python module, which imports torch, waits for a torch tensor.
    """
    try:
        spec = importlib.util.find_spec("tvm_ffi")
    except ValueError:  # a stand-in for it among the modules
        return False
    if os.environ.get("KVCANARY_BINDING") == "ctypes" or spec is None or spec.origin is None:
        return False
    try:
        ctypes.CDLL(str(Path(spec.origin).parent / "lib/libtvm_ffi.so"), ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
        _abi.declare(library)
    except (OSError, AttributeError) as error:  # not there, or of another version
        raise ImportError(
            f"kvcanary: cannot load '{path}' ({error}); install the wheel, "
            "or set KVCANARY_LIBRARY to a built libkvcanary.so"
        ) from None
    return library


def string(text: bytes | None) -> str:
    """A C string as Python's."""
    return "" if text is None else text.decode("utf-8", "replace")


def c_string(text: str) -> bytes:
    """Any text as a C string: surrogates, as in lines of a log, become "?", and zeros blanks."""
    return text.encode("utf-8", "replace").replace(b"\0", b" ")


#: libtvm_ffi is loaded. False too if the environment says KVCANARY_BINDING=ctypes.
TVM_FFI_READY = _load_tvm_ffi()

#: Every function of the library, with its types. A call releases the GIL.
C = _load()

__version__: str = string(C.kvc_version())


def library_has_cuda() -> bool:
    """Whether the library was built with CUDA."""
    return bool(C.kvc_cuda_architectures())
