"""Putting the launchers in the place of an installed SGLang's, and taking them out again."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from .._lib import library_has_cuda, library_path
from . import launchers

__all__ = ["install", "uninstall"]

_PACKAGE = "sglang.kernels.ops.kv_canary"
# Where SGLang defines each launcher. Its users bind them by name when they are imported.
_HOMES = {
    "launch_canary_plan_kernels": "plan.api",
    "launch_canary_verify_kernel": "verify",
    "launch_canary_write_kernel": "write",
    "launch_scatter_req_token_ids_kernel": "scatter_req_token_ids",
}

_replaced: dict[str, Callable[..., None]] = {}
"""SGLang's own launchers by name, while ours stand in for them."""


def _ours(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(launchers, name)
    return function


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith("kvcanary"):
            yield name, module


def _rebind(old: Callable[..., None], new: Callable[..., None]) -> list[str]:
    """Let every global of every module that is `old` be `new`; says which."""
    found = []
    for name, module in _modules():
        for key, value in list(vars(module).items()):
            if value is old:
                setattr(module, key, new)
                found.append(f"{name}.{key}")
    return found


def _takes_the_same(theirs: Callable[..., Any], ours: Callable[..., Any]) -> bool:
    return list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)


def _warn_without_cuda() -> None:
    """Once a process: SGLang's GPU tensors would be refused at its first step, not here."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or library_has_cuda():
        return
    if not _warned:
        _warned.append(True)
        warnings.warn(
            f"kvcanary.sglang: torch sees a GPU, but {library_path()} was built without CUDA and "
            "will refuse SGLang's CUDA tensors; build it with 'pip install . "
            "-C cmake.define.KVC_CUDA=ON', or call kvcanary.sglang.uninstall()",
            RuntimeWarning,
            stacklevel=3,
        )


_warned: list[bool] = []


def install() -> list[str]:
    """Let an installed SGLang use this library's kv-canary kernels.

    Replaces the launchers where SGLang defines them and in every module that has bound one of them
    by name. Call it in the process that runs the model, before CUDA graphs are captured: a graph
    keeps the kernels that it was captured with. Calling it again finds what was imported since.

    Warns once, with a RuntimeWarning, where torch sees a GPU and the library was built without CUDA.

    Returns
    -------
    list of str
        What was replaced: ``sglang.srt.kv_canary.endpoint.launch_canary_write_kernel``, ...

    Raises
    ------
    ImportError
        SGLang is not installed, has no kv-canary, or one whose launchers take other arguments than
        those of 0.5.23. Nothing was replaced.
    """
    theirs = {}
    for name, home in _HOMES.items():
        module = importlib.import_module(f"{_PACKAGE}.{home}")
        current = getattr(module, name)
        theirs[name] = _replaced.get(name, current) if current is _ours(name) else current
        if not _takes_the_same(theirs[name], _ours(name)):
            raise ImportError(
                f"kvcanary.sglang: {module.__name__}.{name} takes other arguments than in SGLang "
                "0.5.23; nothing was replaced",
                name=module.__name__,
            )
    _warn_without_cuda()
    found = []
    for name, original in theirs.items():
        _replaced[name] = original
        found += _rebind(original, _ours(name))
    return sorted(found)


def uninstall() -> list[str]:
    """Undo :func:`install`, also in modules that were imported since. Returns what was put back."""
    found = []
    for name, original in list(_replaced.items()):
        found += _rebind(_ours(name), original)
        del _replaced[name]
    return sorted(found)
