"""Bad arguments give the catalogue's words and classes, never a crash, and nothing is written."""

import dataclasses
import pickle

import kvcanary
import numpy as np
import pytest
from kvcanary import KVCanaryError, Status, _abi
from kvcanary._lib import C


def fixture():
    """What the examples of the catalogue's Python entries see."""
    q = np.ones((4, 2, 8), np.float32)
    k = np.ones((4, 1, 8), np.float32)
    return {
        "kvcanary": kvcanary,
        "np": np,
        "rope_pool_fused": kvcanary.rope_pool_fused,
        "q": q,
        "k": k,
        "v": k.copy(),
        "positions": np.arange(4),
        "slots": np.arange(4, 8),
        "k_pool": np.zeros((32, 1, 8), np.float32),
        "v_pool": np.zeros((32, 1, 8), np.float32),
    }


def entries():
    found = [C.kvc_catalog_at(i).contents for i in range(C.kvc_catalog_count())]
    return [kvcanary.explain(e.slug.decode()) for e in found]


PYTHON_ENTRIES = [e for e in entries() if e.fix_language == "python"]


@pytest.mark.parametrize("entry", PYTHON_ENTRIES, ids=lambda e: e.slug)
def test_examples_of_the_catalogue(entry):
    with pytest.raises(KVCanaryError) as caught:
        exec(entry.fix_before, fixture())
    assert caught.value.slug == entry.slug
    assert type(caught.value).__mro__[2].__name__ == entry.error_class
    assert kvcanary.explain(str(caught.value)).slug == entry.slug
    exec(entry.fix_after, fixture())


def test_every_python_entry_is_here():
    assert {e.slug for e in PYTHON_ENTRIES} == {
        "array-dtype-unknown",
        "array-expected",
        "array-read-only",
        "array-stride-bytes",
        "integer-too-large",
        "object-expected",
        "option-unknown",
    }


def call(**changes):
    names = fixture()
    arguments = {
        n: names[n] for n in ["q", "k", "v", "positions", "slots", "k_pool", "v_pool"]
    } | changes
    return kvcanary.rope_pool_fused(**arguments)


@pytest.mark.parametrize(
    ("changes", "slug", "builtin", "status"),
    [
        ({"q": np.ones((4, 8), np.float32)}, "qkv-must-be-3-d", ValueError, Status.E_SHAPE),
        ({"v_pool": np.zeros((31, 1, 8), np.float32)}, "v-pool-shape-must-match-k-pool-shape",
         ValueError, Status.E_SHAPE),
        ({"k": np.ones((4, 1, 8), np.float16)}, "qkv-dtypes-must-match", ValueError,
         Status.E_DTYPE),
        ({"slots": np.full(4, 32)}, "pool-slot-out-of-range", IndexError, Status.E_SLOT_RANGE),
        ({"positions": np.full(4, -1)}, "position-out-of-range", IndexError,
         Status.E_POSITION_RANGE),
        ({"k": np.ones((4, 1, 16), np.float32)[:, :, ::2]}, "last-dimension-not-contiguous",
         ValueError, Status.E_STRIDE),
        ({"positions": np.ones(4, np.float32)}, "index-dtype-unsupported", TypeError,
         Status.E_DTYPE),
        ({"positions": None}, "null-argument", ValueError, Status.E_INVALID_ARGUMENT),
    ],
)  # fmt: skip
def test_refusals(changes, slug, builtin, status):
    with pytest.raises(builtin) as caught:
        call(**changes)
    error = caught.value
    assert isinstance(error, KVCanaryError)
    assert (error.slug, error.status) == (slug, status)
    assert str(error) == error.message


WORLD = fixture()
GROUP = kvcanary.Group(np.zeros((4, 4), np.int64))
PLAN = kvcanary.Plan.allocate(verify_capacity=4, write_req_capacity=1)
ONE = np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("function", "slug"),
    [
        # No arrays, or none whose memory says all.
        (lambda: call(q="q"), "array-expected"),
        (lambda: call(q=None), "array-expected"),
        (lambda: call(k=[1.0]), "array-expected"),
        (lambda: call(q_out=True), "array-expected"),
        (lambda: call(k_out=True), "array-expected"),
        (lambda: call(k_out=False), "array-expected"),
        (lambda: call(slots=np.ma.masked_array(np.arange(4), mask=True)), "array-expected"),
        (lambda: kvcanary.copy(GROUP, [1], [2]), "array-expected"),
        (lambda: kvcanary.fingerprint(GROUP, None), "array-expected"),
        (lambda: kvcanary.Requests(req_pool_indices=[1]), "array-expected"),
        (lambda: kvcanary.Ring(rows=[[0] * 16]), "array-expected"),
        (lambda: dataclasses.replace(PLAN, verify_slot_indices=[1]), "array-expected"),
        (lambda: dataclasses.replace(PLAN, write_seed_slot_indices=None), "array-expected"),
        (lambda: call(positions=np.arange(4).astype(">i8")), "array-dtype-unknown"),
        (lambda: call(q=WORLD["q"].astype(object)), "array-dtype-unknown"),
        # Other objects than those of the package.
        (lambda: call(rope={}), "object-expected"),
        (lambda: call(stamp=GROUP), "object-expected"),
        (lambda: call(report={}), "object-expected"),
        (lambda: kvcanary.verify(None, PLAN), "object-expected"),
        (lambda: kvcanary.verify(GROUP, GROUP), "object-expected"),
        (lambda: kvcanary.verify(GROUP, PLAN, ring=[]), "object-expected"),
        (lambda: kvcanary.write(GROUP, None, ONE, ONE, ONE), "object-expected"),
        (lambda: kvcanary.plan(PLAN, requests={}, req_to_token=ONE), "object-expected"),
        (lambda: kvcanary.check_plan(PLAN, 0), "object-expected"),
        (lambda: kvcanary.void(0, ONE), "object-expected"),
        (lambda: kvcanary.scan_finite(0, ONE), "object-expected"),
        (lambda: kvcanary.Guard(request_rows=4).attach_group(slot_count=4, sources=[ONE]),
         "object-expected"),
        # Numbers that C would cut.
        (lambda: call(head_dim=2**70), "integer-too-large"),
        (lambda: call(n_valid=-(2**64) - 1), "integer-too-large"),
        (lambda: kvcanary.rope_init(2**32 + 8), "integer-too-large"),
        (lambda: kvcanary.rope_init(np.int64(2**32 + 8)), "integer-too-large"),
        (lambda: kvcanary.Source(WORLD["q"], id=-1), "integer-too-large"),
        (lambda: kvcanary.Source.from_pool(WORLD["q"], 2**64), "integer-too-large"),
        (lambda: kvcanary.Guard(request_rows=4).stamp(2**32, 0), "integer-too-large"),
        (lambda: kvcanary.Guard(request_rows=4).void(2**32, ONE), "integer-too-large"),
        (lambda: kvcanary.chain_extend(1, [2**63]), "integer-too-large"),
        (lambda: call(stream=2**64), "integer-too-large"),
        (lambda: call(stream=-1), "integer-too-large"),
        (lambda: kvcanary.Violation.from_row([2**64] * 8), "integer-too-large"),
        (lambda: kvcanary.Violation.from_row([1, 2]), "ring-columns-unknown"),
        (lambda: kvcanary.Violation.from_row([1] * 17), "ring-columns-unknown"),
    ],
)  # fmt: skip
def test_what_only_python_sees(function, slug):
    with pytest.raises(KVCanaryError) as caught:
        function()
    assert caught.value.slug == slug


@pytest.mark.parametrize(
    "function",
    [
        lambda: call(stream=1.5),
        lambda: call(stream="1"),
        lambda: kvcanary.verify(GROUP, PLAN, launch_tag=1.9),
        lambda: kvcanary.chain_extend("5", [1]),
        lambda: kvcanary.chain_extend(1.5, [1]),
    ],
)
def test_numbers_are_whole_and_no_texts(function):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        function()


def test_any_text_will_do():
    line = kvcanary.Violation.from_row(range(8)).text().splitlines()[0]
    for before in ("", "\udc80 ", "\0", "é"):
        assert kvcanary.Violation.parse(before + line).position == 2, before
    guard = kvcanary.Guard(request_rows=4)
    assert guard.attach_group(slot_count=4, name="a\udc80\0b") == 0


def test_an_error_survives_pickling():
    with pytest.raises(KVCanaryError) as caught:
        call(slots=np.full(4, 32))
    error = caught.value
    error.step = 5
    if hasattr(error, "add_note"):
        error.add_note("on rank 3")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.__dict__ == error.__dict__
    assert (copy.slug, copy.where, copy.hint, str(copy)) == (
        error.slug,
        error.where,
        error.hint,
        str(error),
    )


def test_every_class_of_the_catalogue_has_an_exception():
    from kvcanary import errors

    assert {e.error_class for e in entries() if e.kind in ("error", "python")} <= set(
        errors._CLASSES
    )


def test_every_status_has_its_name():
    for status in Status:
        assert C.kvc_status_name(status).decode() == ("KVC_" + status.name)


def test_constants_are_the_header_s():
    assert _abi.KVC_ROTARY_DIM_MAX == 512
    assert _abi.KVC_POSITION_MAX == 1 << 24
