"""python -m kvcanary export: pickled caches become files that the command reads."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from kvcanary.export import main

torch = pytest.importorskip("torch")
DATA = Path(__file__).parents[2] / "data/safetensors"


def tensors(path):
    """Name -> (dtype, shape, bytes), and the metadata."""
    whole = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = whole[8 + length :]
    return {
        name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
        for name, t in header.items()
    }, metadata


def test_tuples_of_k_and_v(tmp_path):
    layers = tuple(
        (torch.randn(1, 2, 3, 4, dtype=dtype), torch.randn(1, 2, 3, 4, dtype=dtype).transpose(2, 3)
         .contiguous().transpose(2, 3))
        for dtype in (torch.float32, torch.bfloat16)
    )  # fmt: skip
    torch.save(layers, tmp_path / "cache.pt")
    out = str(tmp_path / "cache.safetensors")
    given = ["--tokens", "5,17 5", "--model", "m@1", "--rope", "10000,neox"]
    assert main([str(tmp_path / "cache.pt"), "-o", out, *given]) == 0
    (tmp_path / "new").touch()
    assert Path(out).stat().st_mode == (tmp_path / "new").stat().st_mode
    found, metadata = tensors(out)
    assert sorted(found) == ["layers.0.k", "layers.0.v", "layers.1.k", "layers.1.v"]
    assert found["layers.0.v"][:2] == ("F32", [1, 2, 3, 4])
    values = struct.unpack("<24f", found["layers.0.v"][2])
    assert list(values) == layers[0][1].flatten().tolist()
    assert found["layers.1.k"][0] == "BF16"
    assert metadata == {
        "kvc.schema": "cache 1", "kvc.writer": "kvcanary export", "kvc.tokens": "5 17 5",
        "kvc.model": "m@1", "kvc.rope.base": "10000", "kvc.rope.style": "neox",
    }  # fmt: skip


@pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"), reason="torch before 2.5 loads no classes"
)
def test_a_dynamic_cache_of_transformers(tmp_path):
    """The same cache as in tr-hf.safetensors, pickled."""
    out = str(tmp_path / "cache.safetensors")
    assert main([str(DATA / "tr-hf.pt"), "-o", out]) == 0
    assert tensors(out)[0] == tensors(DATA / "tr-hf.safetensors")[0]


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize("content", [Evil(), {"a": 1}, (), [(1, 2)]])
def test_what_is_no_cache_is_refused(tmp_path, capsys, content):
    torch.save(content, tmp_path / "x.pt")
    assert main([str(tmp_path / "x.pt"), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "x.pt" in said.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.pt"]


def test_the_module_takes_the_command(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "kvcanary", "export", str(tmp_path / "none.pt"), "-o", "out"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2 and "none.pt" in ran.stderr
