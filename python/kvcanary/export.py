"""``python -m kvcanary export``: a cache that torch.save pickled, as safetensors that the tools read.

The pickle is loaded by torch's own restricted loader (``weights_only``), which builds tensors and
plain containers and runs nothing else; the classes of transformers' caches are stood in for by ones
that only hold attributes. transformers itself is not needed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["caches_of", "main", "write"]

_DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.uint8": "U8",
    "torch.int8": "I8",
}

_TRANSFORMERS = "transformers.cache_utils."
_CLASSES = (
    "Cache", "DynamicCache", "DynamicLayer", "DynamicSlidingWindowLayer", "StaticCache",
    "StaticLayer", "StaticSlidingWindowLayer", "SlidingWindowLayer",
)  # fmt: skip


class _Held:
    """Stands in for a class of a cache; holds the attributes that were pickled."""

    def __init__(self, *arguments: object) -> None:
        del arguments


def _load(path: str) -> Any:
    import torch

    names: list[Any] = [(type(name, (_Held,), {}), _TRANSFORMERS + name) for name in _CLASSES]
    allow = getattr(torch.serialization, "safe_globals", None)
    options = {"map_location": "cpu", "weights_only": True}
    if allow is None:  # torch before 2.5: tensors in plain containers only
        return torch.load(path, **options)
    with allow([*names, torch.device]):
        return torch.load(path, **options)


def caches_of(loaded: Any) -> list[tuple[Any, Any]]:
    """K and V of each layer: of a DynamicCache as transformers has had it since 4.36, of a tuple or
    list of (K, V), or of a dict with ``key_cache`` and ``value_cache``. Raises ValueError."""
    fields = loaded if isinstance(loaded, Mapping) else getattr(loaded, "__dict__", {})
    if "key_cache" in fields:
        return list(zip(fields["key_cache"], fields["value_cache"], strict=True))
    layers: Iterable[Any] = fields.get("layers", loaded)
    if not isinstance(layers, (list, tuple)) or not layers:
        raise ValueError(f"a {type(loaded).__name__} holds no layers of K and V that are known")
    pairs = []
    for i, layer in enumerate(layers):
        pair = layer[:2] if isinstance(layer, (list, tuple)) else (
            getattr(layer, "keys", None), getattr(layer, "values", None))  # fmt: skip
        if len(pair) != 2 or not all(hasattr(tensor, "data_ptr") for tensor in pair):
            raise ValueError(f"layer {i} holds no K and V")
        pairs.append((pair[0], pair[1]))
    return pairs


def _bytes_of(tensor: Any) -> bytes:
    packed = tensor.detach().cpu().contiguous()
    return ctypes.string_at(packed.data_ptr(), packed.numel() * packed.element_size())


def write(path: str, layers: list[tuple[Any, Any]], metadata: Mapping[str, str]) -> None:
    """Write K and V ``[batch, heads, tokens, dim]`` of each layer in the schema ``cache 1``
    (docs/snapshots-schema.md); the file appears whole or not at all."""
    header: dict[str, Any] = {"__metadata__": {"kvc.schema": "cache 1", **metadata}}
    tensors, end = [], 0
    for i, pair in enumerate(layers):
        for name, tensor in zip("kv", pair, strict=True):
            if str(tensor.dtype) not in _DTYPES:
                raise ValueError(f"layer {i}: {tensor.dtype} is no type of a cache")
            begin, end = end, end + tensor.numel() * tensor.element_size()
            header[f"layers.{i}.{name}"] = {
                "dtype": _DTYPES[str(tensor.dtype)],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            tensors.append(tensor)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # As any new file (tempfile's would be the owner's alone).
    partial = os.path.join(os.path.dirname(path), f".kvcanary-{secrets.token_hex(8)}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors:
                out.write(_bytes_of(tensor))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def main(arguments: list[str]) -> int:
    """The command; 0, or 2 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m kvcanary export",
        description="Write a cache that torch.save pickled as safetensors. Runs nothing of the file.",
        epilog="example: python -m kvcanary export cache.pt -o cache.safetensors --model org/m@1",
    )
    parser.add_argument("file")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    parser.add_argument("--tokens", metavar="IDS", help="token ids, '5 17 5'")
    parser.add_argument("--model", help="identity of the weights: a hash, or name and revision")
    parser.add_argument("--rope", metavar="BASE,STYLE", help="STYLE is neox or interleaved")
    given = parser.parse_args(arguments)
    metadata = {"kvc.writer": "kvcanary export"}
    if given.tokens:
        metadata["kvc.tokens"] = " ".join(given.tokens.replace(",", " ").split())
    if given.model:
        metadata["kvc.model"] = given.model
    if given.rope:
        base, _, style = given.rope.partition(",")
        metadata |= {"kvc.rope.base": base, "kvc.rope.style": style or "neox"}
    try:
        write(given.output, caches_of(_load(given.file)), metadata)
    except Exception as error:  # torch raises pickle.UnpicklingError, RuntimeError, OSError, ...
        print(f"kvcanary export: {given.file}: {error}", file=sys.stderr)
        return 2
    return 0
