#!/usr/bin/env python3
"""Runs kvcanary check, without and with --rope, and stamp, on files with a manifest of what is wrong
with each: nothing may be missed, and nothing else claimed.

usage: check_saved.py --command build/kvcanary FOLDER [NAME...]
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Notes and doubts that say nothing about damage.
HARMLESS = {"position_gap", "content_sampled", "no_tokens", "spare_rows", "recurrent_state"}
STYLES = {"norm": "norm", "neox": "neox", "mrope": "mrope"}


def run(command, *arguments):
    ran = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
    try:
        return ran.returncode, json.loads(ran.stdout) if ran.stdout else {}
    except ValueError:
        raise SystemExit(f"{arguments}: no JSON: {ran.stdout[:300]} {ran.stderr[:300]}")


def rope_arguments(model):
    if not model or model.get("rope") not in STYLES:
        return None
    rope = f"{model['theta']:g},{STYLES[model['rope']]}"
    if "rope_first" in model:
        return ["--rope", f"{rope},{model['n_rot']},{model['rope_first']}"]
    return ["--rope", rope, "--heads", model["n_head_kv"]]


def tensor_of(want):
    """K or V and the layer, from "K" and a number or from a name in the file."""
    name = want.get("tensor", "")
    if name in ("K", "V", ""):
        return name or None, want.get("layer")
    match = re.fullmatch(r"layers\.(\d+)\.([kv])", name)
    if match:
        return match[2].upper(), int(match[1])
    layer, which = name.split(".")[:2]
    return "KV"[int(which)], int(layer)


def matches(want, got, head_dim):
    tensor, layer = tensor_of(want)
    cell = want.get("cell", want.get("token") if "tensor" in want and "." in want["tensor"] else None)
    pairs = [("tensor", tensor), ("cell", cell), ("head", want.get("head")),
             ("element", want.get("dim"))]
    if "layer_in_cache" in want:
        pairs.append(("layer", want["layer_in_cache"]))
    else:
        pairs.append(("layer", layer))
    if cell is not None and "position" in want and want["kind"] != "position":
        pairs.append(("position", want["position"]))
    if "cell" in want and want["kind"] not in ("sequence", "position") and "token" in want:
        pairs.append(("token", want["token"]))
    if "head" in want and "head" not in got:  # the format does not tell heads: one long row
        pairs = [p for p in pairs if p[0] not in ("head", "element")]
        if "dim" in want and head_dim:
            pairs.append(("element", want["head"] * head_dim + want["dim"]))
    if "offset" in want:
        pairs.append(("offset", want["offset"]))
    return all(value is None or got.get(key) == value for key, value in pairs)


def expand(findings):
    """One entry for each row that the manifest names."""
    out = []
    for want in findings:
        if want["kind"] == "repeated_row" and "positions" in want:
            out += [dict(want, cell=p) for p in want["positions"][1:]]
        else:
            out.append(want)
    return out


class Runner:
    def __init__(self, command, folder):
        self.command, self.folder, self.bad, self.count = command, folder, 0, 0
        self.manifest = json.loads((folder / "manifest.json").read_text())

    def complain(self, name, text, report=None):
        self.bad += 1
        print(f"{name}: {text}")
        for got in (report or {}).get("findings", []):
            print("    ", json.dumps({k: v for k, v in got.items() if k != "slug"}))

    def plain(self, entry):
        expect = entry["expect"]["check"]
        code, report = run(self.command, "check", "--json", self.folder / entry["file"])
        allowed = expect.get("exit_one_of", [expect.get("exit")])
        if code not in allowed:
            return self.complain(entry["file"], f"exit {code}, expected {allowed}", report)
        if code == 2:
            return self.refused(entry, expect, report)
        got = report["findings"]
        dim = self.manifest.get("models", {}).get(entry.get("model"), {}).get("dk")
        left = [f for f in got if f["weight"] == "damage"]
        for want in expand(expect["findings"]):
            if want["kind"] in ("position_gap", "recurrent_state", "token_count"):
                if want["kind"] not in report["counts"]:
                    self.complain(entry["file"], f"missing {want}", report)
                left = [f for f in left if f["kind"] != want["kind"]]
                continue
            found = [f for f in left if f["kind"] == want["kind"] and matches(want, f, dim)]
            # A row that repeats in all heads is one finding; the manifest has one for each head.
            if not any(f["kind"] == want["kind"] and matches(want, f, dim) for f in got):
                self.complain(entry["file"], f"missing {want}", report)
            for f in found[:1]:
                left.remove(f)
        extra = left + [f for f in got if f["weight"] != "damage" and f["kind"] not in HARMLESS]
        if extra:
            self.complain(entry["file"], f"claims too much: {extra}", report)

    def refused(self, entry, expect, report):
        want = expect["findings"][0] if expect["findings"] else {}
        got = report.get("error", {})
        if want.get("kind") in ("recurrent_state", "no_cache"):
            return
        if not got:
            self.complain(entry["file"], f"no error, expected {want}", report)

    def with_rope(self, entry):
        rope = rope_arguments(self.manifest.get("models", {}).get(entry.get("model")))
        plain = entry["expect"]["check"]
        if not rope or plain.get("exit") == 2:
            return
        expect = plain.get("with_rope", {"findings": []})
        code, report = run(self.command, "check", "--json", self.folder / entry["file"], *rope)
        kinds = ("token_rows_differ", "rotation")
        got = [f for f in report.get("findings", []) if f["kind"] in kinds]
        left = list(got)
        for want in expect["findings"]:
            heads = self.manifest["models"][entry["model"]]["n_head_kv"]
            found = [f for f in got if f["tensor"] == want["tensor"] and
                     f["layer"] == want["layer"] and f["token"] == want["token"] and
                     (f["position"] in want["positions"] if "position" in f else True) and
                     (f["head"] in want["heads"] if "head" in f
                      else want["heads"] == list(range(heads)))]
            if not found:
                self.complain(entry["file"], f"--rope misses {want}", report)
            left = [f for f in left if f not in found]
        if left:
            self.complain(entry["file"], f"--rope claims too much: {left}", report)
        doubts = [f for f in report.get("findings", []) if f["weight"] == "doubt"]
        if doubts and "tl-blob" not in entry["file"]:
            self.complain(entry["file"], f"--rope doubts: {doubts}")
        want_code = 1 if expect["findings"] or plain.get("exit") == 1 else 0
        if code != want_code and "exit_one_of" not in plain and "tl-blob" not in entry["file"]:
            self.complain(entry["file"], f"--rope: exit {code}, expected {want_code}", report)

    def with_side(self, entry, folder):
        """Against a stamp of the sound file: the places that a comparison of both has."""
        diff = entry["expect"].get("diff")
        if entry["role"] != "fault" or not diff:
            return
        base = self.folder / diff["against"]
        side = Path(folder) / (diff["against"] + ".stamp")
        heads = self.manifest.get("models", {}).get(entry.get("model"), {}).get("n_head_kv")
        more = ["--heads", heads] if heads and "mla" not in entry.get("model", "") else []
        if not side.exists():
            run(self.command, "stamp", "--json", base, "-o", side, *more)
            code, report = run(self.command, "check", "--json", base, side, *more)
            if code != 0:
                self.complain(diff["against"], f"does not pass its own stamp: {code}", report)
        code, report = run(self.command, "check", "--json", "--side", side, *more,
                           self.folder / entry["file"])
        if code not in diff.get("exit_one_of", [diff.get("exit", 1)]):
            return self.complain(entry["file"], f"stamp: exit {code}", report)
        for want in diff.get("findings", []):
            if not self.named(want, report["findings"]):
                self.complain(entry["file"], f"stamp: misses {want}", report)

    @staticmethod
    def named(want, findings):
        rows = ("row_changed", "rows_permuted", "rotation", "zero_row", "nonfinite")
        ours = {"position": ("position",), "sequence": ("sequence",),
                "token_mismatch": ("token_mismatch",), "token_changed": ("token_changed",)}
        kinds = ours.get(want["kind"], rows + ("layers_swapped", "kv_swapped", "repeated_row"))
        wants = [want]
        if "layers" in want:
            wants = [dict(want, layer=layer) for layer in want["layers"]]
        elif "tensors" in want:
            wants = [dict(want, tensor=tensor) for tensor in want["tensors"]]
        elif "tokens" in want and "tensor" in want:
            wants = [dict(want, token=token) for token in want["tokens"]]
        for one in wants:
            place = {k: v for k, v in one.items()
                     if k in ("kind", "tensor", "layer", "layer_in_cache", "cell", "token", "head")}
            if one["kind"] in ("token_changed",):
                place = {"kind": one["kind"]}
            if not any(f["kind"] in kinds and
                       matches(place, f, None) for f in findings):
                return False
        return True

    def all(self, names):
        with tempfile.TemporaryDirectory() as folder:
            for entry in self.manifest["files"]:
                if names and entry["file"] not in names:
                    continue
                if not (self.folder / entry["file"]).exists():
                    continue
                self.count += 1
                self.plain(entry)
                self.with_rope(entry)
                self.with_side(entry, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="all, if none is given")
    options = parser.parse_args()
    runner = Runner(options.command, options.folder)
    runner.all(set(options.names))
    print(f"{runner.count} files, {runner.bad} complaints")
    return 1 if runner.bad or not runner.count else 0


if __name__ == "__main__":
    sys.exit(main())
