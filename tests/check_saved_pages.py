#!/usr/bin/env python3
"""Raw pages of SGLang's HiCache, vLLM's fs tier and LMCache: info, stamp, check and diff on each layout.

usage: check_saved_pages.py --command build/kvcanary
Goal: rows are read from where the engines put them, and one fault in a page is named by layer, K or V,
head and position. Method: pages are written here from the shapes that the engines document, by the
strides of those shapes; the same rows written as plain safetensors must be identical to them by diff.
Every layout gets each of the faults; the same bytes under another layout's name are told as such.
"""
import argparse
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

L, H, D, P, PAGES = 3, 2, 8, 4, 4  # layers, KV heads, head size, tokens of a page, pages
TOKENS = P * PAGES
MODEL = "org/small-model"

# Name in the manifest: the engine, and the axes of a page as its source has them; '1' is of size 1.
LAYOUTS = {
    "layer_first": ("hicache", "clthd"),
    "page_first": ("hicache", "ctlhd"),
    "page_first_direct": ("hicache", "c1lthd"),
    "page_head": ("hicache", "c1htld"),
    "split_nhd": ("fs", "lcthd"),
    "split_hnd": ("fs", "lchtd"),
    "packed_nhd": ("fs", "lthcd"),  # [block, heads, 2 x dim]: K and V side by side in a head
    "packed_hnd": ("fs", "lhtcd"),
    "KV_2LTD": ("lmcache", "clthd"),
    "KV_MLA_FMT": ("lmcache", "ltd"),
}
DRAW = random.Random(1)
VALUES = [DRAW.randrange(0x3000, 0x4000) | DRAW.choice((0, 0x8000)) for _ in range(2 * L * TOKENS * H * D)]
SLACK = {"fs": 96}  # bytes behind the last layer: a block has the stride of the largest group


def size_of(axis, rows):
    return {"c": 2, "l": L, "t": rows, "h": H, "d": D, "1": 1}[axis]


def value(c, l, t, h, d):
    """The bits of an f16 for every element, +-0.125 to 2."""
    return VALUES[(((c * L + l) * TOKENS + t) * H + h) * D + d]


def offset_of(axes, rows, **at):
    """Byte of an element in a row-major tensor of these axes."""
    place = 0
    for axis in axes:
        place = place * size_of(axis, rows) + at.get(axis, 0)
    return 2 * place


def elements(layout, rows):
    has = LAYOUTS[layout][1]
    for c in range(2 if "c" in has else 1):
        for l in range(L):
            for t in range(rows):
                for h in range(H if "h" in has else 1):
                    for d in range(D):
                        yield c, l, t, h, d


def page(layout, number, rows):
    engine, axes = LAYOUTS[layout]
    count = 1
    for axis in axes:
        count *= size_of(axis, rows)
    out = bytearray(2 * count + (SLACK.get(engine, 0)))
    for c, l, t, h, d in elements(layout, rows):
        at = offset_of(axes, rows, c=c, l=l, t=t, h=h, d=d)
        struct.pack_into("<H", out, at, value(c, l, number * P + t, h, d))
    return out


def plain(layout, rows):
    """The same rows as safetensors: [heads, tokens, dim] of each layer."""
    has, tensors, data = LAYOUTS[layout][1], {}, b""
    for l in range(L):
        for c, name in enumerate("kv"[:2 if "c" in has else 1]):
            heads = H if "h" in has else 1
            begin = len(data)
            data += b"".join(struct.pack("<H", value(c, l, t, h, d)) for h in range(heads)
                             for t in range(rows) for d in range(D))
            tensors[f"layers.{l}.{name}"] = {"dtype": "F16", "shape": [1, heads, rows, D],
                                             "data_offsets": [begin, len(data)]}
    tensors["__metadata__"] = {"kvc.schema": "cache 1"}
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


def page_name(engine, number):
    key = hashlib.sha256(b"page %d" % number).hexdigest()
    if engine == "hicache":
        return f"{key}_{MODEL.replace('/', '-')}_0_1.bin"
    if engine == "fs":
        return f"{key[:3]}/{key[3:5]}_g0/{key}.bin"
    return f"vllm@{MODEL.replace('/', '-')}@1@0@{key[:16]}.pt"


class World:
    """A folder of pages of one layout, and the answers of the command."""

    def __init__(self, command, layout):
        self.command, self.layout = command, layout
        self.engine, self.axes = LAYOUTS[layout]
        self.last = 2 if self.engine == "lmcache" else P  # its last chunk may be short
        self.rows = TOKENS - P + self.last
        self.names = [page_name(self.engine, n) for n in range(PAGES)]
        self.data = [page(layout, n, self.page_rows(n)) for n in range(PAGES)]
        self.wrong = []

    def page_rows(self, number):
        return self.last if number == PAGES - 1 else P

    def write(self, folder, faults=()):
        """faults: (c, layer, token, head, dim, bits that are stored in its place)"""
        pages = [bytearray(data) for data in self.data]
        for c, l, t, h, d, bits in faults:
            at = offset_of(self.axes, self.page_rows(t // P), c=c, l=l, t=t % P, h=h, d=d)
            struct.pack_into("<H", pages[t // P], at, bits)
        for name, data in zip(self.names, pages):
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def manifest(self, layout=None):
        mla = "c" not in self.axes
        pages = self.names[:-1] + [{"file": self.names[-1], "rows": self.last}
                                   if self.last < P else self.names[-1]]
        return {"kvc.pages": 1, "what": self.engine, "dtype": "F16", "layers": L, "head_dim": D,
                "kv_heads": 1 if mla else H, "tensors": 1 if mla else 2, "page_rows": P,
                "layout": layout or self.layout, "pages": pages}

    def run(self, *arguments):
        done = subprocess.run([self.command, *arguments], capture_output=True, text=True)
        if done.returncode not in (0, 1, 2):
            raise SystemExit(f"{arguments}: ended with {done.returncode}: {done.stderr[-300:]}")
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            return done.returncode, {"text": done.stdout + done.stderr}

    def expect(self, what, got, wanted):
        if got != wanted:
            self.wrong.append(f"{self.layout}, {what}: got {got}, expected {wanted}")


def check_sound(world):
    code, report = world.run("info", "pages", "--manifest", "m.json", "--json")
    parts = report.get("parts", [])
    world.expect("info", (code, sum(p["rows"] for p in parts), {len(p["layers"]) for p in parts}),
                 (0, world.rows, {L}))
    tensor = parts[0]["layers"][0]["k"] if parts else {}
    mla = "c" not in world.axes
    world.expect("geometry", (tensor.get("type"), tensor.get("heads"), tensor.get("dim")),
                 ("F16", 1 if mla else H, D))
    world.expect("V", parts and (parts[0]["layers"][0]["v"] is None), mla)
    code, _ = world.run("stamp", "pages", "--manifest", "m.json", "-o", "side")
    world.expect("stamp", code, 0)
    code, report = world.run("check", "pages", "--manifest", "m.json", "--side", "side", "--json")
    world.expect("check", (code, report.get("counts")), (0, {}))
    Path("plain.safetensors").write_bytes(plain(world.layout, world.rows))
    code, report = world.run("diff", "pages", "plain.safetensors", "--manifest", "m.json", "--json")
    world.expect("diff of a folder", (code, report.get("verdict")), (0, "identical"))
    code, report = diff(world, "pages")
    world.expect("diff with plain rows", (code, report.get("verdict"), report.get("rows_compared")),
                 (0, "identical", world.rows))


def diff(world, folder):
    """The pages in B, so that places are theirs. --manifest would be for both: it lies in the folder."""
    Path(folder, "m.json").write_text(json.dumps(world.manifest()))
    return world.run("diff", "plain.safetensors", f"{folder}/m.json", "--json")


def check_fault(world, draw):
    """One bit, a row of zeros, a NaN: named by check with the stamp, by check alone, by diff."""
    has = world.axes
    c, l = draw.randrange(2 if "c" in has else 1), draw.randrange(L)
    t, h = draw.randrange(world.rows), draw.randrange(H if "h" in has else 1)
    d = draw.randrange(D)
    place = {"layer": l, "tensor": "KV"[c], "head": h if "h" in has else None, "position": t}
    zero = [(c, l, t, h, i, 0) for i in range(D)]
    for name, faults, alone, by_diff in (
            ("flip", [(c, l, t, h, d, value(c, l, t, h, d) ^ 0x0400)], None, "row_changed"),
            ("zero", zero, "zero_row", "zero_row"),
            ("nan", [(c, l, t, h, d, 0x7E01)], "nonfinite", "nonfinite")):
        world.write("damaged", faults)
        got = world.run("check", "damaged", "--manifest", "m.json", "--side", "side", "--json")
        found = [{k: f.get(k) for k in place} for f in got[1].get("findings", [])]
        world.expect(f"{name}, stamp", (got[0], found),
                     (1, [place]))
        got = world.run("check", "damaged", "--manifest", "m.json", "--json")
        found = [(f["kind"], {k: f.get(k) for k in place}) for f in got[1].get("findings", [])]
        world.expect(f"{name}, alone", (got[0], found), (1, [(alone, place)]) if alone else (0, []))
        got = diff(world, "damaged")
        found = [(f["kind"], {k: f.get(k) for k in place}) for f in got[1].get("findings", [])]
        world.expect(f"{name}, diff", (got[0], found), (1, [(by_diff, place)]))
        world.expect(f"{name}, file", [f.get("file") for f in got[1].get("findings", [])],
                     [f"damaged/{world.names[t // P]}"])


def check_groups(world):
    """Layers in two groups of a page, in a manifest of the fs tier: the same rows as without groups."""
    if world.engine != "fs":
        return
    layer = 2 * 2 * P * H * D
    grouped = world.manifest() | {"groups": [{"layers": [0, 2], "layer_bytes": 2 * layer},
                                             {"layers": [1], "offset": layer}]}
    del grouped["layers"]
    Path("pages/m.json").write_text(json.dumps(grouped))
    code, report = world.run("diff", "plain.safetensors", "pages/m.json", "--json")
    world.expect("groups", (code, report.get("verdict"), len(report.get("layers", []))),
                 (0, "identical", 2 * L))
    Path("pages/m.json").unlink()


def check_wrong_layout(world):
    """The same bytes under the name of each other layout of the engine with the same size of a page."""
    for other, (engine, axes) in LAYOUTS.items():
        if engine != world.engine or ("c" in axes) != ("c" in world.axes):
            continue
        same = axes.replace("1", "") == world.axes.replace("1", "")
        Path("pages/other.json").write_text(json.dumps(world.manifest(other)))
        Path("pages/m.json").write_text(json.dumps(world.manifest()))
        code, report = world.run("diff", "pages/m.json", "pages/other.json", "--json")
        world.expect(f"read as {other}", (code, report.get("verdict")),
                     (0, "identical") if same else (1, "wrong_layout"))
    for name in ("m.json", "other.json"):
        Path("pages", name).unlink()


def check_structure(world):
    """What check and info say of a page that is cut or gone."""
    world.write("cut")
    cut = Path("cut", world.names[1])
    needed = len(world.data[1]) - SLACK.get(world.engine, 0)
    cut.write_bytes(world.data[1][:needed - 1])
    code, report = world.run("check", "cut", "--manifest", "m.json", "--json")
    world.expect("cut", (code, report.get("error", {}).get("offset")), (2, needed - 1))
    cut.unlink()
    code, report = world.run("check", "cut", "--manifest", "m.json", "--json")
    world.expect("gone", (code, report.get("error", {}).get("slug")), (2, "cli-input-unreadable"))


def notes_of(world, folder):
    code, report = world.run("info", folder, "--json")
    return code, report.get("format"), {n["kind"]: n["damage"] for n in report.get("notes", [])}


def check_directory(world):
    """Without a manifest: sizes, places and leftovers, by name."""
    formats = {"hicache": "hicache", "fs": "vllm-fs"}
    if world.engine not in formats:
        return
    sound = {"no_manifest": False, "pages": False}
    world.expect("directory", notes_of(world, "pages"), (0, formats[world.engine], sound))
    world.write("folder")
    first = Path("folder", world.names[0])
    Path(str(first) + ".tmp.17.1.2f").write_bytes(b"half")
    world.expect("leftover", notes_of(world, "folder")[2], sound | {"leftover": False})
    first.write_bytes(world.data[0][:-2])
    world.expect("page size", notes_of(world, "folder")[2],
                 sound | {"leftover": False, "page_size": True})
    code, report = world.run("check", "folder", "--json")
    world.expect("check of a folder", (code, set(report.get("counts", {}))),
                 (1, {"no_manifest", "pages", "leftover", "page_size"}))
    if world.engine == "fs":
        first.write_bytes(world.data[0])
        os.rename(first, Path("folder", world.names[1]).parent / first.name)
        world.expect("misplaced", notes_of(world, "folder")[2],
                     sound | {"leftover": False, "misplaced": True})


def check_layout(command, layout):
    draw = random.Random(layout)
    world = World(command, layout)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        world.write("pages")
        Path("m.json").write_text(json.dumps(world.manifest()))
        check_sound(world)
        for _ in range(3):
            check_fault(world, draw)
        check_groups(world)
        check_wrong_layout(world)
        check_structure(world)
        check_directory(world)
        os.chdir("/")
    return world.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", required=True)
    command = os.path.abspath(parser.parse_args().command)
    wrong = [line for layout in LAYOUTS for line in check_layout(command, layout)]
    print("\n".join(wrong + [f"{len(LAYOUTS)} layouts, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
