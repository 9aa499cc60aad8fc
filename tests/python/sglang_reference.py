"""SGLang's own kv-canary, from its unpacked wheel, without the rest of SGLang.

``KVC_SGLANG`` names a folder that holds the wheel's ``sglang`` (tools/sglang.sh makes one). Its
packages import half of the project when they are imported; what kv-canary needs is torch and
triton. So the parent packages become empty ones that only say where their modules lie.
"""

import importlib
import os
import sys
import types
from pathlib import Path

FOLDER = os.environ.get("KVC_SGLANG", "")
_EMPTY = (
    "",
    "kernels",
    "kernels.ops",
    "kernels.ops.kv_canary",
    "kernels.jit",
    "srt",
    "srt.utils",
    "test",
    "test.kernels",
)


def _package(name, path):
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def _stub(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)


def _unused(*args, **kwargs):
    raise AssertionError("this part of SGLang is not there")


def load():
    """Make ``import sglang.kernels.ops.kv_canary`` and ``sglang.srt.kv_canary`` work, once."""
    if "sglang" in sys.modules:
        return
    root = Path(FOLDER) / "sglang"
    for tail in _EMPTY:
        _package(f"sglang.{tail}" if tail else "sglang", root.joinpath(*tail.split(".")))
    _stub(
        "sglang.kernels.jit.utils",
        cache_once=lambda function: function,
        load_jit=_unused,
        make_cpp_args=_unused,
    )
    _stub("sglang.srt.utils.common", flatten_arrays_to_int64_tensor=_unused)
    _stub("sglang.srt.environ", envs=types.SimpleNamespace())
    _stub("sglang.srt.runtime_context", get_observability=_unused)


def module(name):
    """A module of kv-canary: ``kernels.ops.kv_canary.verify_ref``, ``test.kernels....``."""
    load()
    return importlib.import_module(f"sglang.{name}")
