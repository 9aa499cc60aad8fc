"""Every case of data/sglang_vectors through kvcanary.sglang, on NumPy arrays and torch tensors."""

import kvcanary
import pytest
import sglang_vectors as vectors
from kvcanary._fast import quick

COUNTS = {
    "hash": 119,
    "plan": 146,
    "write": 122,
    "verify": 136,
    "scatter": 43,
    "errors": 103,
    "report": 103,
}


def maker(framework):
    if framework == "numpy":
        return vectors.Maker()
    pytest.importorskip("torch")
    return vectors.TorchMaker("cpu")


def test_there_are_772_cases():
    assert {name: len(vectors.cases_of(name)) for name in vectors.FILES} == COUNTS
    assert sum(COUNTS.values()) == 772


@pytest.mark.parametrize("framework", ["numpy", "torch", "torch over ctypes"])
@pytest.mark.parametrize("name", vectors.FILES)
def test_every_case_is_sglangs(name, framework, capsys, monkeypatch):
    if framework == "torch over ctypes":  # where tvm-ffi is at hand, torch's way is that
        monkeypatch.setattr(quick, "functions", {})
    count, differing = vectors.run_file(name, maker(framework))
    with capsys.disabled():
        print(f" {name} {count - len(differing)}/{count}", end=" ")
    assert not differing
    assert count == COUNTS[name]


def test_the_number_of_threads_does_not_matter():
    kvcanary.set_num_threads(3)
    for name in ("write", "verify"):
        assert vectors.run_file(name, vectors.Maker())[1] == []
