#!/usr/bin/env python3
"""A damaged byte anywhere in the rows of a cache is named by its layer, K or V, head and cell.

usage: check_saved_changes.py --command build/kvcanary
Makes a cache of known geometry, stamps it, and damages one byte at a time, at every k-th offset.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

LAYERS, HEADS, ROWS, DIM, EVERY = 3, 2, 40, 16, 37


def build(path):
    row, at, header = DIM * 2, 0, {}
    for layer in range(LAYERS):
        for name in "kv":
            size = HEADS * ROWS * row
            header[f"layers.{layer}.{name}"] = {"dtype": "F16", "shape": [1, HEADS, ROWS, DIM],
                                                "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(7)
    data = bytes(draw.randrange(0x80) if i % 2 else draw.randrange(256) for i in range(at))
    data = bytes(b & 0x3F if i % 2 else b for i, b in enumerate(data))  # finite
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return 8 + len(text), at


def place(offset):
    tensor, rest = divmod(offset, HEADS * ROWS * DIM * 2)
    head, rest = divmod(rest, ROWS * DIM * 2)
    return {"layer": tensor // 2, "tensor": "KV"[tensor % 2], "head": head,
            "cell": rest // (DIM * 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", required=True)
    command = os.path.abspath(parser.parse_args().command)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        begin, size = build("cache.safetensors")
        subprocess.run([command, "stamp", "cache.safetensors", "-o", "side"], check=True,
                       capture_output=True)
        data = bytearray(open("cache.safetensors", "rb").read())
        names, wanted = [], {}
        for number, offset in enumerate(range(0, size, EVERY)):
            name = f"damaged{number:04}"
            damaged = bytearray(data)
            damaged[begin + offset] ^= 1 << number % 8
            with open(name, "wb") as file:
                file.write(damaged)
            wanted[name] = place(offset)
            names.append(name)
        ran = subprocess.run([command, "check", "--jsonl", "--side", "side", "--from-file", "-"],
                             input="\n".join(names), capture_output=True, text=True)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        if ran.returncode != 1 or len(lines) != len(names):
            print(f"exit {ran.returncode}, {len(lines)} lines of {len(names)}: {ran.stderr}")
            bad += 1
        for line in lines:
            got = [{key: f.get(key) for key in ("layer", "tensor", "head", "cell")}
                   for f in line["findings"]]
            if line["exit"] != 1 or got != [wanted[line["file"]]]:
                bad += 1
                print(f"{line['file']}: {got}, expected {wanted[line['file']]}")
    print(f"{len(names)} damaged bytes, {bad} not named")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
