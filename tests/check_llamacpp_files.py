#!/usr/bin/env python3
"""Every file of data/llamacpp through 'kvcanary info --json', against data/llamacpp/manifest.json.

Sound files and those with a fault in their rows must be read as exactly what the manifest says:
container, version, tokens, cells, positions, sequences, types, and the offset of every block. The
malformed ones must be refused with the manifest's kind, field and offset. The manifest was made by
another program."""
import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data/llamacpp"
FORMATS = {"ggsq": "llamacpp-seq", "ggsn": "llamacpp-ctx", "blob": "llamacpp-blob"}
PARTS = {"kv": "kv", "base": "base", "swa": "window"}


class Findings:
    def __init__(self):
        self.count, self.checked = 0, 0

    def equal(self, file, what, got, want):
        self.checked += 1
        if got != want:
            self.count += 1
            print(f"{file}: {what}: got {got}, want {want}")


def check_tensors(found, file, part, cache):
    where = f"{cache['cache']} {cache['stream']}"
    for side in ("k", "v"):
        tensors = [layer[side] for layer in part["layers"] if layer[side]]
        found.equal(file, f"{where} {side} offsets", [t["offset"] for t in tensors],
                    cache.get(f"{side}_offsets", []))
        if not tensors:
            continue
        found.equal(file, f"{where} {side} type", {t["type"] for t in tensors},
                    {cache[f"{side}_type"]})
        width = {t["heads"] * t["dim"] for t in tensors}
        if side == "k":
            found.equal(file, f"{where} row bytes", {t["row_bytes"] for t in tensors},
                        {cache["k_row_bytes"]})
        else:
            found.equal(file, f"{where} width", width, {cache["v_width"]})
            found.equal(file, f"{where} transposed",
                        {t.get("transposed", False) for t in tensors}, {cache["v_trans"] == 1})


def check_format(found, file, got, want):
    found.equal(file, "format", got["format"], FORMATS[want["container"]])
    if want["version"] is not None:
        found.equal(file, "version", got["version"].split(",")[0],
                    f"{want['container']} {want['version']}")
    found.equal(file, "tokens", got["tokens"], want["tokens"])
    arch = [n["text"] for n in got["notes"] if n["kind"] == "arch"]
    found.equal(file, "arch", arch, [want["arch"]] if want["arch"] else [])
    recurrent = [n["offset"] for n in got["notes"] if n["kind"] == "recurrent_state"]
    found.equal(file, "recurrent", recurrent,
                [want["recurrent"]["offset"]] if "recurrent" in want else [])
    found.equal(file, "parts", [(p["part"], p["stream"], p["rows"]) for p in got["parts"]],
                [(PARTS[c["cache"]], c["stream"], c["cells"]) for c in want["caches"]])
    for part, cache in zip(got["parts"], want["caches"]):
        positions = [p for first, last in part["positions"] for p in range(first, last + 1)]
        found.equal(file, "positions", positions, cache.get("positions", []))
        found.equal(file, "sequences", sorted(map(int, part["sequences"] or {})),
                    cache.get("sequences", []))
        check_tensors(found, file, part, cache)
        if want["layout"]["ext_bytes"] == 12:
            found.equal(file, "tokens in cells", part["cell_tokens"], want["tokens"])


def check_file(found, entry, got, sound):
    file = entry["file"]
    data = (DATA / file).read_bytes()
    found.equal(file, "sha256", hashlib.sha256(data).hexdigest(), entry["sha256"])
    if entry["role"] == "malformed":
        want = entry["expect"]["check"]["findings"][0]
        error = got.get("error", {})
        found.equal(file, "refused", {k: error.get(k) for k in want}, want)
    elif "error" in got:
        found.equal(file, "read", got["error"]["message"], "")
    elif "format" in entry:
        check_format(found, file, got, entry["format"])
    else:  # a fault in one place: as its base, but for what was changed
        base = sound[entry["base"]]
        found.equal(file, "blocks", [p["layers"] for p in got["parts"]],
                    [p["layers"] for p in base["parts"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", type=Path, required=True)
    options = parser.parse_args()
    files = json.loads((DATA / "manifest.json").read_text())["files"]
    ran = subprocess.run([str(options.command.resolve()), "info", "--json"] + [f["file"] for f in files],
                         cwd=DATA, capture_output=True, text=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    found = Findings()
    found.equal("all", "exit", ran.returncode, 2)
    found.equal("all", "files", [line["file"] for line in lines], [f["file"] for f in files])
    found.equal("all", "messages", ran.stderr.count("kvcanary: "),
                sum(f["role"] == "malformed" for f in files))
    if not found.count:
        sound = {f["file"]: line for f, line in zip(files, lines) if "format" in f}
        for entry, line in zip(files, lines):
            check_file(found, entry, line, sound)
    print(f"{len(files)} files, {found.checked} checks, {found.count} wrong")
    return 1 if found.count else 0


if __name__ == "__main__":
    sys.exit(main())
