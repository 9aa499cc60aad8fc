"""The entry points as built-in functions, with an exchange API for NumPy arrays in torch's place."""

import ctypes
import gc
import importlib
import sys
import threading
import time

import kvcanary
import numpy as np
import pytest
from kvcanary import _builtin, _fast
from kvcanary._lib import C
from kvcanary._tensor import HOST, View, view

TENSOR_BYTES = 48  # of a DLTensor
DEVICE_AT = 8
CUDA = 2

capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype = ctypes.py_object
capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exchange:
    """A framework whose arrays are NumPy's, on a device of our choice."""

    def __init__(self, device: tuple[int, int] = HOST) -> None:
        self.device = device
        self.asked: list[tuple[int, int]] = []
        self.views: list[View] = []
        # The functions stay referenced as long as C may call them.
        self._tensor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(self._look)
        self._stream = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
        )(self._current)
        address = [ctypes.cast(f, ctypes.c_void_p).value for f in (self._tensor, self._stream)]
        self._api = _builtin._ExchangeAPI(1, 3, None, None, None, None, *address)
        self.__dlpack_c_exchange_api__ = capsule_new(
            ctypes.addressof(self._api), b"dlpack_exchange_api", None
        )

    def _look(self, array: object, out: int) -> int:
        if not isinstance(array, np.ndarray):
            return -1
        made = view(array, "array")
        self.views.append(made)
        ctypes.memmove(out, made.address, TENSOR_BYTES)
        (ctypes.c_int32 * 2).from_address(out + DEVICE_AT)[:] = self.device
        return 0

    def _current(self, kind: int, number: int, out: object) -> int:
        self.asked.append((kind, number))
        out[0] = 0x1000
        return 0

    def functions(self) -> dict:
        entries = {name: getattr(C, f"__tvm_ffi_{name}", None) for name in _fast._NAMES}
        if None in entries.values():
            pytest.skip("a library without entry points")
        return _builtin.builtins(self, entries)


def rope_arguments():
    x, index = np.arange(16, dtype=np.float32).reshape(2, 1, 8), np.arange(2)
    pools = [np.zeros((4, 1, 8), np.float32) for _ in range(2)]
    return [x.copy(), x.copy(), x, index, index, *pools, True, True]


def test_rope_pool_fused_of_few_and_of_all_arguments():
    exchange = Exchange()
    function = exchange.functions()["rope_pool_fused"]
    rope = kvcanary.rope_init(8)
    wanted = rope_arguments()
    kvcanary.rope_pool_fused(*wanted[:7], q_out=wanted[0], k_out=wanted[1], rope=rope)
    few = (rope.address, 8, 1, 1)
    report = kvcanary.Report()
    everything = (-1, 0, 0, -1, False, False, 1.0, 1, None, None, report.address_for(wanted[0]))
    for rest in ((*few, None), (*few, *everything, None)):
        given = rope_arguments()
        assert function(*given, *rest) is None
        for one, other in zip(given[:7], wanted[:7], strict=True):
            assert one.tobytes() == other.tobytes()
    assert report.rows_written == 2
    assert exchange.asked == []


def test_what_is_refused_raises_and_leaks_nothing():
    exchange = Exchange()
    function = exchange.functions()["rope_pool_fused"]
    rope = kvcanary.rope_init(8)
    given = [*rope_arguments(), rope.address, 8, 1, 1, None]
    function(*given)
    exchange.views.clear()
    stored = given[5].tobytes()
    before = [sys.getrefcount(array) for array in given[:7]]
    cases = {
        "arguments missing": given[:-1],
        "none": [],
        "too many": [None] * 41,
        "a shape that does not fit": [*given[:10], 16, *given[11:]],
        "an int beyond 64 bits": [*given[:10], 1 << 70, *given[11:]],
        "a string": [*given[:4], "slots", *given[5:]],
        "a float for an int": [*given[:10], 8.0, *given[11:]],
        "a head_dim below 0": [*given[:10], -1, *given[11:]],
        "False for an output": [*given[:7], False, *given[8:]],
        "a flag beyond 32 bits": [*given[:13], -1, 0, 0, -1, 1 << 32, 0, 1.0, 1.0, *[None] * 4],
    }
    for name, arguments in cases.items():
        for _ in range(3):
            with pytest.raises((RuntimeError, OverflowError)):
                function(*arguments)
                pytest.fail(name)
    assert given[5].tobytes() == stored
    exchange.views.clear()
    del arguments, cases
    assert [sys.getrefcount(array) for array in given[:7]] == before


def test_the_current_stream_is_asked_for_where_none_is_given():
    exchange = Exchange((CUDA, 3))
    function = exchange.functions()["rope_pool_fused"]
    rope = kvcanary.rope_init(8)
    given = [*rope_arguments(), rope.address, 8, 1, 1]
    for stream in (None, 0x2000):
        with pytest.raises(RuntimeError):  # these arrays are on no GPU
            function(*given, stream)
    assert exchange.asked == [(CUDA, 3)]


def test_a_call_releases_the_gil():
    function = Exchange().functions()["fingerprint"]
    kvcanary.set_num_threads(1)
    rows, slots = np.ones((64, 1 << 20), np.uint8), np.arange(64)
    group = kvcanary.Group(np.zeros((64, 4), np.int64), sources=[kvcanary.Source(rows, id=0)],
                           fingerprint="splitmix")  # fmt: skip
    out = np.zeros(64, np.uint64)
    inside, seen = threading.Event(), []

    def work():
        began = time.monotonic()
        inside.set()
        function(out.ctypes.data, group.address, slots, None)
        seen.extend((began, time.monotonic()))

    old = sys.getswitchinterval()
    sys.setswitchinterval(10)  # the GIL is not taken away from whoever holds it
    try:
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        before = time.monotonic()  # reached while the call runs, only if it let go
        thread.join()
    finally:
        sys.setswitchinterval(old)
    began, ended = seen
    assert ended - before > (ended - began) / 2
    assert out.tolist() == [int(x) & (2**64 - 1) for x in kvcanary.fingerprint(group, slots)]


def test_the_longest_entry_points():
    """The longest of them, and None for each argument: that the operation refuses, not the call."""
    functions = Exchange().functions()
    for name, count in {"sglang_verify": 33, "sglang_write": 35}.items():
        with pytest.raises(RuntimeError, match="refused"):
            functions[name](*[None] * count)
        assert functions[name].__name__ == name


def test_a_function_outlives_its_module():
    """Two versions of the package in one process, or a module loaded again."""
    function = Exchange().functions()["void"]
    importlib.reload(_builtin)
    gc.collect()
    junk = [ctypes.create_string_buffer(b"x" * size) for size in (32, 72) for _ in range(1000)]
    with pytest.raises(RuntimeError, match="refused"):
        function(None, None, None)
    del function, junk
    gc.collect()


def test_an_exchange_api_of_another_version_is_left_alone():
    exchange = Exchange()
    exchange._api.major = 2
    with pytest.raises(AttributeError):
        exchange.functions()
    exchange.__dlpack_c_exchange_api__ = 0x1000
    with pytest.raises(ValueError):
        exchange.functions()
