#!/usr/bin/env python3
"""Runs 'kvcanary diff' over what data/llamacpp and data/safetensors describe, compares what it says.

Goal: the verdict, exit code and place of every fault; of sound pairs that drift is drift and nothing
else is claimed. Method: for every file whose manifest has expect.diff, and for every entry of pairs:
A against B, B against A (the same verdict), and every sound file against itself (identical).
Prints counts; exit 0 if all agree. Standard library only.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

SETS = ["llamacpp", "safetensors"]
CELL_KINDS = ("position", "sequence", "token_mismatch")
CELL_BYTES = 64


class Run:
    def __init__(self, command, folder, heads):
        self.command, self.folder, self.heads = command, folder, heads
        self.cache = {}

    def diff(self, a, b, heads=None):
        """(exit code, parsed JSON or None)"""
        key = (a, b, heads)
        if key not in self.cache:
            command = [self.command, "diff", "--json", "--jobs", "2", a, b]
            if heads:
                command += ["--heads", str(heads)]
            done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
            if done.returncode not in (0, 1, 2):
                raise SystemExit(f"diff {a} {b}: ended with {done.returncode}: "
                                 f"{done.stderr.decode()[-300:]}")
            try:
                answer = json.loads(done.stdout)
            except ValueError:
                answer = None
            self.cache[key] = done.returncode, answer
        return self.cache[key]


def heads_of(manifest, entry):
    """KV heads for llama.cpp's files, which do not tell."""
    model = manifest.get("models", {}).get(entry.get("model"), {})
    return None if "rank" in model else model.get("n_head_kv")


def allowed(expected, name):
    return expected.get(name + "_one_of", [expected[name]] if name in expected else None)


def place_of_tensor(name):
    """'layers.1.k' of transformers, '0.1' of mlx-lm: (layer, 'K' or 'V')."""
    parts = name.split(".")
    if parts[0] == "layers":
        return int(parts[1]), parts[2].upper()
    return int(parts[0]), "KV"[int(parts[1])]


def normal_llamacpp(finding):
    """The manifest's finding in the words of diff --json."""
    wanted = {"kind": finding["kind"]}
    names = {"tensor": "tensor", "head": "head", "cell": "row", "position": "position",
             "token": "token", "offset": "offset", "bit": "bit", "fits_position": "other",
             "same_as_cell": "other", "dim": "element"}
    for name, ours in names.items():
        if name in finding:
            wanted[ours] = finding[name]
    if "layer" in finding:
        wanted["layer"] = finding.get("layer_in_cache", finding["layer"])
    if finding["kind"] == "layers_swapped":
        wanted["layer"], wanted["other"] = finding["layers"]
    if finding["kind"] == "token_changed":
        wanted["position"] = finding["index"]
        wanted.pop("offset", None)
    if finding["kind"] in ("position", "sequence", "token_changed"):
        for name in ("was", "now"):
            value = finding[name]
            wanted[name] = value[0] if isinstance(value, list) else value
        if finding["kind"] != "token_changed":
            wanted.pop("token", None)
    if finding["kind"] == "token_mismatch":
        wanted["now"] = finding["cell_token"]
        wanted.pop("token", None)
    if "block" in finding:
        wanted.pop("element", None)
    return [wanted]


def normal_safetensors(finding):
    kind = finding["kind"]
    if kind == "token_changed":
        return [{"kind": kind, "position": finding["index"], "was": finding["was"],
                 "now": finding["now"]}]
    if kind in ("kv_swapped", "layers_swapped"):
        places = [place_of_tensor(name) for name in finding["tensors"]]
        wanted = {"kind": kind, "layer": places[0][0]}
        if kind == "layers_swapped":
            wanted |= {"tensor": places[0][1], "other": places[1][0]}
        return [wanted]
    layer, tensor = place_of_tensor(finding["tensor"])
    wanted = {"kind": kind, "layer": layer, "tensor": tensor}
    for name, ours in {"head": "head", "dim": "element"}.items():
        if name in finding:
            wanted[ours] = finding[name]
    if kind == "rows_permuted":
        return [wanted | {"position": token} for token in finding["tokens"]]
    if "bit" in finding:
        wanted["bit"] = finding["bit"] % 8
    return [wanted | {"position": finding["token"]}]


def agrees(finding, item):
    """Of a cell the reader keeps where its record begins; the field in question lies in it."""
    for name, value in item.items():
        got = finding.get(name)
        if name == "offset" and finding["kind"] in CELL_KINDS:
            if not 0 <= value - got < CELL_BYTES:
                return False
        elif name == "head" and value == 0 and got is None:
            continue  # the only one, or all of them
        elif got != value:
            return False
    return True


def compare_findings(expected, answer, normal):
    """What is wrong, or None. Nothing may be claimed beyond what the manifest has."""
    claimed = [f for f in answer["findings"] if f["weight"] == "damage"]
    wanted = [item for finding in expected["findings"] for item in normal(finding)]
    if "verdict_one_of" in expected and not claimed:
        return None
    left = list(claimed)
    for item in wanted:
        match = next((f for f in left if agrees(f, item)), None)
        if match is None:
            near = [f for f in claimed if f["kind"] == item["kind"]] or claimed
            return f"not found: {item}; said {near[:2]}"
        left.remove(match)
    return f"claimed as well: {left[:2]}" if left else None


def check_expected(run, a, b, expected, heads, normal):
    code, answer = run.diff(a, b, heads)
    codes, verdicts = allowed(expected, "exit"), allowed(expected, "verdict")
    if code not in codes:
        return f"exit {code}, not {codes}: {answer and answer.get('verdict')}"
    if code == 2:
        return None
    if verdicts and answer["verdict"] not in verdicts:
        return f"verdict {answer['verdict']}, not {verdicts}"
    if "findings" in expected:
        return compare_findings(expected, answer, normal)
    if code == 0 and answer["findings"] and any(
            f["weight"] == "damage" for f in answer["findings"]):
        return "damage claimed in a sound pair"
    if "by" in expected:
        found = [f for f in answer["findings"] if f["kind"] == "shifted"]
        if [(f["was"], f["other"]) for f in found] != [(expected["from_position"], expected["by"])]:
            return f"shift: {found}"
    return None


def same_both_ways(run, a, b, heads):
    (code, answer), (code_back, back) = run.diff(a, b, heads), run.diff(b, a, heads)
    if code != code_back:
        return f"exit {code}, and {code_back} the other way"
    if answer and "verdict" in answer and answer["verdict"] != back["verdict"]:
        return f"verdict {answer['verdict']}, and {back['verdict']} the other way"
    return None


def check_set(command, folder, counts, problems):
    manifest = json.loads((folder / "manifest.json").read_text())
    run = Run(command, folder, None)
    by_name = {entry["file"]: entry for entry in manifest["files"]}
    normal = normal_llamacpp if folder.name == "llamacpp" else normal_safetensors

    def count(what, a, b, problem):
        counts[what] = counts.get(what, 0) + 1
        if problem:
            problems.append(f"{what}: {a} {b}: {problem}")

    for entry in manifest["files"]:
        heads, name = heads_of(manifest, entry), entry["file"]
        expected = entry["expect"].get("diff")
        if expected:
            base = expected["against"]
            count("faults", base, name, check_expected(run, base, name, expected, heads, normal))
            count("both ways", base, name, same_both_ways(run, base, name, heads))
            without = {key: value for key, value in expected.items() if key != "findings"}
            if heads and heads > 1:
                count("heads not given", base, name,
                      check_expected(run, base, name, without, None, normal))
        if entry["role"] == "clean" and entry["expect"]["check"].get("exit") == 0:
            code, answer = run.diff(name, name, heads)
            count("same file", name, name, None if code == 0 and answer["verdict"] == "identical"
                  else f"exit {code}: {answer and answer.get('verdict')}")
    for pair in manifest["pairs"]:
        a, b = pair["a"], pair["b"]
        heads = heads_of(manifest, by_name[a])
        count("pairs", a, b, check_expected(run, a, b, pair, heads, normal))
        count("both ways", a, b, same_both_ways(run, a, b, heads))
        if heads and heads > 1:
            count("heads not given", a, b, check_expected(run, a, b, pair, None, normal))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--command", default="build/kvcanary", type=Path)
    parser.add_argument("--data", default="data", type=Path)
    parser.add_argument("--sets", nargs="*", default=SETS)
    options = parser.parse_args()
    counts, problems = {}, []
    for name in options.sets:
        check_set(options.command.resolve(), options.data / name, counts, problems)
    for problem in problems:
        print(problem)
    print(", ".join(f"{what} {number}" for what, number in counts.items()) +
          f"; wrong {len(problems)}")
    return 1 if problems or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
