"""No array leads C outside its own memory: what C sees as a bare pointer is looked at here."""

import _datetime
import ctypes
import gc
import sys

import kvcanary
import numpy as np
import pytest
from kvcanary import KVCanaryError
from kvcanary._tensor import _DLManagedTensorVersioned, capsule_pointer, view

P = 4
ONE = np.zeros(1, np.int64)


def group(**options):
    return kvcanary.Group(np.zeros((P, 4), np.int64), **options)


def source(rows, **options):
    return kvcanary.fingerprint(
        group(sources=[kvcanary.Source(rows, id=0, **options)]), np.arange(P)
    )


def plan(**options):
    out = kvcanary.Plan.allocate(verify_capacity=4, write_req_capacity=1)
    requests = kvcanary.Requests(req_pool_indices=ONE, prefix_lens=ONE, extend_seq_lens=ONE)
    return kvcanary.plan(out, requests=requests, req_to_token=np.zeros((2, 8), np.int32), **options)


def unaligned(count, dtype):
    memory = np.zeros(count * np.dtype(dtype).itemsize + 1, np.uint8)
    return memory[1:].view(dtype)


def frozen(array):
    array.flags.writeable = False
    return array


BYTES = np.zeros((P, 128), np.uint8)
WORDS = np.zeros((P, 8), np.int64)
TABLE = np.arange(16, dtype=np.int32)[None]


@pytest.mark.parametrize(
    ("function", "slug"),
    [
        # Records: 32 bytes side by side.
        (lambda: kvcanary.Group(WORDS[:, 7:]), "group-record-stride"),
        (lambda: kvcanary.Group(np.zeros((P, 1), np.uint8)), "group-record-stride"),
        (lambda: kvcanary.Group(WORDS[:1, 7:]), "group-record-stride"),
        (lambda: kvcanary.Group(WORDS[:, 3::-1]), "canary-tensor-must-be-contiguous"),
        (lambda: kvcanary.Group(WORDS[:, ::2]), "canary-tensor-must-be-contiguous"),
        (lambda: kvcanary.Group(np.zeros((P, 4))), "canary-tensor-dtype"),
        # Sources: the bytes of a row of the array, the last one's too.
        (lambda: source(BYTES[:, ::-1]), "canary-tensor-must-be-contiguous"),
        (lambda: source(BYTES[:, ::-1], head_bytes=64), "canary-tensor-must-be-contiguous"),
        (lambda: source(BYTES[:, ::2]), "canary-tensor-must-be-contiguous"),
        (lambda: source(BYTES[:, 64:], head_bytes=65), "source-slot-leaves-row"),
        (lambda: source(BYTES[:, 64:], head_bytes=128), "source-slot-leaves-row"),
        (lambda: source(np.lib.stride_tricks.as_strided(BYTES[:1], (1, 8), (10**6, 1)),
                        page_size=P, head_bytes=128), "source-slot-leaves-row"),
        # A table of offsets: an entry for each unit, none beyond the row.
        (lambda: source(BYTES, gather=TABLE, unit_bytes=1), "canary-tensor-length"),
        (lambda: source(BYTES[:, 112:], gather=TABLE + 1, unit_bytes=1),
         "source-gather-leaves-row"),
        # Scalars: NumPy's own are copies that are gone by the time C looks.
        (lambda: plan(rotation=np.int64(0)), "array-expected"),
        (lambda: kvcanary.write(group(), plan(), ONE, ONE, ONE, step=np.int64(5)),
         "array-expected"),
        (lambda: plan(rotation=unaligned(1, np.int64)), "tensor-misaligned"),
        (lambda: kvcanary.Ring(rows=unaligned(32, np.int64).reshape(2, 16)), "tensor-misaligned"),
        (lambda: plan(rotation=frozen(np.zeros(1, np.int64))), "array-read-only"),
    ],
)  # fmt: skip
def test_what_would_lead_outside(function, slug):
    with pytest.raises(KVCanaryError) as caught:
        function()
    assert caught.value.slug == slug


def test_what_stays_inside():
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 255, (P, 128)).astype(np.uint8)
    wanted = source(rows[:, 112:].copy()).tolist()
    assert source(rows[:, 112:]).tolist() == wanted
    assert source(rows[:, 112:], gather=frozen(TABLE.copy()), unit_bytes=1).tolist() == wanted
    # Heads apart inside a row, by hand.
    heads = rows.reshape(P, 4, 32)[:, ::2]
    spread = source(heads, head_count=2, head_bytes=32, head_stride_bytes=64).tolist()
    assert spread == source(heads.copy()).tolist()
    number = frozen(np.array([5]))  # only read
    kvcanary.write(group(), plan(), ONE, ONE, ONE, step=number)
    wide = np.zeros((P, 64), np.uint8)
    kvcanary.void(kvcanary.Group(wide[:, :32]), np.arange(P))


class Lying:
    """Has DLPack's methods, which give what they are told to."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


def of_version(major):
    capsule = np.arange(4).__dlpack__(max_version=(1, 1))
    address = capsule_pointer(capsule, b"dltensor_versioned")
    _DLManagedTensorVersioned.from_address(address).major = major
    return capsule


class Duck:
    dtype, shape, data_ptr, is_cuda = np.dtype(np.int64), (4,), None, False


class Interface:
    dtype = np.dtype(np.int64)
    __array_interface__ = np.arange(4).__array_interface__


@pytest.mark.parametrize(
    "array",
    [
        Lying(None),
        Lying(_datetime.datetime_CAPI),
        Lying(of_version(2)),
        Lying(None, device=()),
        Lying(None, device=None),
        Lying(ZeroDivisionError("of the producer")),
        Duck(),
        Interface(),
        np.ndarray,
        np.float32(1),
    ],
)  # fmt: skip
def test_what_only_looks_like_an_array(array):
    with pytest.raises(KVCanaryError) as caught:
        view(array, "positions")
    assert caught.value.slug == "array-expected"


def test_a_capsule_that_somebody_else_has_emptied():
    capsule = np.arange(4).__dlpack__()
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used, fresh = b"used_dltensor", b"dltensor"  # the capsule holds their addresses
    rename(capsule, used)
    with pytest.raises(KVCanaryError) as caught:
        view(Lying(capsule), "positions")
    assert caught.value.slug == "array-expected"
    rename(capsule, fresh)
    del caught, capsule


def test_what_a_capsule_says_of_its_version_is_read():
    assert view(Lying(of_version(1)), "positions").shape == (4,)


@pytest.mark.parametrize("kind", [MemoryError, RecursionError])
def test_no_memory_in_a_producer_is_said_as_it_is(kind):
    with pytest.raises(kind) as caught:
        view(Lying(kind("of the producer")), "positions")
    assert not isinstance(caught.value, KVCanaryError)


def test_torch_tensors_that_are_not_what_lies_in_memory():
    from frameworks import ALL, Torch

    found = next((f for f in ALL if isinstance(f, Torch)), None)
    if found is None:
        pytest.skip("no torch")
    torch = found.torch
    for tensor in (
        torch._neg_view(torch.ones(4)),
        torch.ones(4, dtype=torch.complex64).conj(),
        torch.ones(4, dtype=torch.complex64).conj().imag,
        torch.zeros([1] * 65),
        torch.zeros(4).to_sparse(),
        torch.Tensor,
    ):
        with pytest.raises(KVCanaryError) as caught:
            view(tensor, "v")
        assert caught.value.slug == "array-expected"


def test_views_free_what_they_took():
    array = np.arange(4)
    before = sys.getrefcount(array)
    producers = [array, Lying(array.__dlpack__()), Lying(array.__dlpack__(max_version=(1, 1)))]
    held = sys.getrefcount(array)
    for i in range(len(producers)):
        for _ in range(100):
            view(producers[i], "positions")
        assert sys.getrefcount(array) == held
    producers.clear()
    gc.collect()
    assert sys.getrefcount(array) == before
