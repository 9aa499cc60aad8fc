#!/usr/bin/env python3
"""kvcanary-bench runs, in a size that means nothing, and its JSON has what scripts read.
usage: check_bench.py PROGRAM"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FIELDS = {"op": str, "variant": str, "dtype": str, "shape": str, "tokens": int, "threads": int,
          "cache": str, "ns": float, "bytes": int, "of_ceiling": float, "best_of": int}
OPERATIONS = {"rope_pool_fused", "rope_pool_fused+stamp", "rope_pool_fused in place", "scatter",
              "plan", "write", "verify", "scan_finite"}
failures = []


def expect(condition, text):
    if not condition:
        failures.append(text)


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "KVC_CPU": ""})


def check_json(program):
    done = run(program, "--tiny", "--json")
    expect(done.returncode == 0, f"--tiny --json: exit {done.returncode}: {done.stderr}")
    result = json.loads(done.stdout)
    for name in ("cpu", "compiler", "build", "variants", "date", "cpus", "llc_bytes"):
        expect(result["machine"].get(name), f"machine.{name} is missing")
    expect(isinstance(result["ratios_count"], bool), "ratios_count is no boolean")
    ceilings = {(c["name"], c["threads"], c["cache"]) for c in result["ceilings"]}
    for name in ("memcpy", "copy-nt", "read"):
        for threads in (1, 2):
            for cache in ("hot", "cold"):
                expect((name, threads, cache) in ceilings, f"no ceiling {name} {threads} {cache}")
    for row in result["rows"]:
        for name, kind in FIELDS.items():
            expect(isinstance(row.get(name), kind), f"{name} is no {kind.__name__}: {row}")
        expect(row["ns"] > 0 and row["bytes"] > 0 and row["of_ceiling"] > 0, f"nothing timed: {row}")
        expect("peer" in row and "times_peer" in row, f"no peer: {row}")
    names = {row["op"] for row in result["rows"]}
    expect(OPERATIONS <= names, f"not timed: {sorted(OPERATIONS - names)}")
    variants = {row["variant"] for row in result["rows"]}
    expect({"portable", "bare"} <= variants, f"variants are only {sorted(variants)}")
    return done.stdout


def check_filters(program):
    done = run(program, "--tiny", "--json", "--op", "scatter", "--threads", "1", "--variant",
               "portable")
    expect(done.returncode == 0, f"filters: exit {done.returncode}: {done.stderr}")
    rows = json.loads(done.stdout)["rows"]
    expect(rows and all(r["op"] == "scatter" and r["threads"] == 1 for r in rows),
           "--op or --threads let others through")
    done = run(program, "--tiny", "--json", "--op", "scatter,scan", "--variant", "portable")
    expect(done.returncode == 0, f"a list of operations: exit {done.returncode}: {done.stderr}")
    names = {row["op"] for row in json.loads(done.stdout)["rows"]}
    expect(names == {"scatter", "scan_finite"}, f"--op scatter,scan gives {sorted(names)}")


ALL_OPS = ("plan, rope_pool_fused, rope_pool_fused fp8, rope_pool_fused in place, rope_pool_fused+stamp, "
           "scan_finite, scatter, verify, write")
# Command line and what stands on stderr, all of it.
REFUSALS = (
    ("--op abacus", f"--op 'abacus' matches nothing; there are: {ALL_OPS}"),
    ("--op verify,abacus,nor", f"--op 'abacus' matches nothing; there are: {ALL_OPS}"),
    ("--tiny --op rope_pool_fused_fp8", "--op 'rope_pool_fused_fp8' matches nothing; with --tiny "
     "there are: " + ALL_OPS.replace(" rope_pool_fused fp8,", "")),
    ("--op plan,abac --tokens 7", f"--op 'abac' matches nothing; there are: {ALL_OPS}"),
    ("--op scatter --tokens 7",
     "--tokens '7' matches nothing; with --op 'scatter' there are: 8192, 131072, 2097152"),
    ("--quick --tokens 7", "--tokens '7' matches nothing; with --quick there are: 1, 64, 4096, 8192, "
     "32768, 131072, 262144, 524288, 2097152"),
    ("--quick --op plan,rope --threads 2 --tokens 1", "--tokens '1' matches nothing; with --quick "
     "--op 'plan,rope' --threads '2' there are: 64, 4096, 131072, 524288"),
    ("--op plan --variant abacus",
     "--variant 'abacus' matches nothing; with --op 'plan' there are: portable"),
    ("--op scatter,", "bad value 'scatter,' for --op; see --help"),
    ("--op scatter,,plan", "bad value 'scatter,,plan' for --op; see --help"),
    ("--tokens 64.5", "bad value '64.5' for --tokens; see --help"),
)


def check_refusals(program):
    for line, message in REFUSALS:
        done = run(program, *line.split())
        expect((done.returncode, done.stdout, done.stderr) == (2, "", f"kvcanary-bench: {message}\n"),
               f"{line}: exit {done.returncode}, stdout {done.stdout[:99]!r}, stderr {done.stderr}")


def check_words(program):
    done = run(program, "--help")
    expect(done.returncode == 0 and "example:" in done.stdout, "--help has no example")
    done = run(program, "--tiny", "--op", "plan")
    expect(done.stdout.startswith("machine ") and "ceilings, GB/s" in done.stdout,
           f"the table does not begin with the machine: {done.stdout[:200]}{done.stderr}")
    for arguments in (["--nonsense"], ["--threads", "0"], ["--variant", "abacus"], ["stray"],
                      ["--reference", "8"], ["--seconds", "soon"]):
        done = run(program, *arguments)
        expect(done.returncode == 2 and done.stderr, f"{arguments} is taken: {done.returncode}")


def check_report(text):
    report = Path(__file__).resolve().parents[1] / "bench" / "report.py"
    with tempfile.TemporaryDirectory() as folder:
        bench, peers = Path(folder, "bench.json"), Path(folder, "peers.json")
        bench.write_text(text, encoding="utf-8")
        peer = {"op": "rope_pool_fused", "variant": "ggml", "dtype": "f16", "shape": "32,8,128",
                "tokens": 16, "threads": 1, "ns": 1e9, "best_of": 9}
        peers.write_text(json.dumps({"rows": [peer], "not_run": ["torch (absent)"]}),
                         encoding="utf-8")
        done = subprocess.run([sys.executable, report, bench, peers, "--out", folder, "--name", "x",
                               "--json", Path(folder, "merged.json")],
                              capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"report.py: {done.stderr}")
        page = Path(done.stdout.strip()).read_text(encoding="utf-8")
        expect("Not run: torch (absent)." in page and "## Targets" in page, "the page lacks a part")
        merged = json.loads(Path(folder, "merged.json").read_text(encoding="utf-8"))["rows"]
        faster = [r for r in merged if r["peer"] == "ggml f16"]
        expect(faster and all(r["times_peer"] > 1 for r in faster), "the peer was not merged")


def main():
    program = sys.argv[1]
    text = check_json(program)
    check_filters(program)
    check_refusals(program)
    check_words(program)
    check_report(text)
    for failure in failures[:20]:
        print(failure)
    print(f"check_bench: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
