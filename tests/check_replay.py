#!/usr/bin/env python3
"""Replays a short, scaled part of the trace and checks what the verdict says.

check_replay.py --command build/kvcanary GROUP, where GROUP is one of: faults, together, control,
mutations, clean, threads, interrupt, apart.
"""
import argparse
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "data/mooncake_conversation_trace.jsonl"
SMALL = ["--requests", "60", "--block-tokens", "32", "--pool-slots", "12288", "--chunk", "512",
         "--layers", "2"]
FIELDS = ["requests", "requests_in_trace", "steps", "tokens_written", "bytes_written",
          "slots_verified", "bytes_verified", "slots_left_out", "seconds", "canary_seconds", "mode",
          "fingerprint", "seed", "violations", "false_alarms", "faults", "evictions", "preemptions",
          "aborts", "prefill_chunks", "prefix_hit_tokens"]
FAULT_FIELDS = ["name", "declared", "injected", "detected", "missed", "seen_otherwise", "expired",
                "tainted_slots", "reason", "steps_to_detect", "culprit_right"]
BYTES_FAULTS = ["bit-flip-k", "bit-flip-v", "late-raw-write", "lost-write", "zeroed-page",
                "swapped-layers", "swapped-slots", "truncated-copy", "step-cut-short"]
WITH_CULPRIT = ["free-live-page", "double-alloc", "stale-table-entry", "page-off-by-one",
                "stale-prefix", "foreign-prefix", "late-raw-write"]

command = None
problems = 0


def expect(condition, text):
    global problems
    if not condition:
        problems += 1
        print(f"FAILED: {text}")


def run(*options, trace=TRACE):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([command, "replay", str(trace), *options], capture_output=True, text=True,
                          timeout=600)
    return done.returncode, done.stdout, done.stderr


def replay(*options, trace=TRACE, base=SMALL):
    code, out, err = run(*base, "--json", *options, trace=trace)
    expect(err == "", f"{options}: standard error is {err!r}")
    result = json.loads(out)
    for row in result["faults"]:
        expect(list(row) == FAULT_FIELDS, f"{options}: fields of a fault are {list(row)}")
        expect(row["injected"] == row["detected"] + row["missed"] + row["expired"],
               f"{options}: {row}")
    return code, result


def fault_names():
    out = subprocess.run([command, "replay", "--list-faults"], capture_output=True, text=True,
                         check=True).stdout
    return [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]


def is_found(row, what):
    declared = set(row["declared"].split("+"))
    expect(row["detected"] >= 3 and row["missed"] == 0, f"{what}: {row}")
    expect(declared & set((row["reason"] or "").split("+")), f"{what}: reason of {row}")
    expect((row["culprit_right"] is not None) == (row["name"] in WITH_CULPRIT),
           f"{what}: culprit of {row}")


def faults():
    names = fault_names()
    expect(len(names) >= 18, f"only {len(names)} faults")
    for name in names:
        code, result = replay("--fault", name)
        expect(code == 0, f"{name} alone: exit code {code}")
        expect(result["false_alarms"] == 0, f"{name} alone: {result['false_alarms']} false alarms")
        expect([row["name"] for row in result["faults"]] == [name], f"{name}: rows")
        is_found(result["faults"][0], f"{name} alone")


def together():
    code, result = replay("--fault", "all", "--requests", "120", "--pool-slots", "10240")
    expect(code == 0, f"all faults: exit code {code}: {json.dumps(result, indent=1)}")
    expect(list(result) == FIELDS, f"fields are {list(result)}")
    expect(result["false_alarms"] == 0, f"all faults: {result['false_alarms']} false alarms")
    expect([row["name"] for row in result["faults"]] == fault_names(), "all faults: rows")
    for row in result["faults"]:
        is_found(row, "all faults")
    # Everything that an engine goes through has to occur in such a run.
    for field in ("evictions", "preemptions", "aborts", "prefix_hit_tokens"):
        expect(result[field] > 0, f"{field} is 0")
    expect(result["prefill_chunks"] > result["requests"], "no prompt took two chunks")
    expect(result["requests"] == 120 and result["requests_in_trace"] == 12031, "requests")


def control():
    """With the checks off nothing may be found: what is found otherwise is the guard's doing."""
    code, result = replay("--fault", "all", "--canary", "off")
    expect(code == 0 and result["mode"] == "off", f"control: exit code {code}")
    expect(result["violations"] == 0 and result["slots_verified"] == 0, "control: violations")
    for row in result["faults"]:
        expect(row["injected"] > 0 and row["detected"] == 0 and row["missed"] == row["injected"],
               f"control: {row}")
    code, out, _ = run(*SMALL, "--fault", "zeroed-page", "--canary", "off")
    expect("not checked: --canary on" in out, f"control: {out}")
    expect("0 slots checked: nothing can be said" in out, f"control: {out}")


def blind(options, names, wanted):
    """These options take the eyes from these faults: the rows say missed, and what would see."""
    code, result = replay("--fault", ",".join(names), *options)
    for row in result["faults"]:
        expect(row["missed"] > 0 and row["detected"] == 0, f"{options}: {row}")
    expect(code == 0, f"{options}: exit code {code}, though no check is on")
    _, out, _ = run(*SMALL, "--fault", ",".join(names), *options)
    expect(out.count(f"not checked: {wanted}") == len(names), f"{options}: {out}")


def mutations():
    blind(["--finite", "off"], ["nan-written"], "--finite on")
    blind(["--expected-tokens", "off"], ["foreign-prefix", "token-swap"], "--expected-tokens on")
    blind(["--verify", "none"], [n for n in BYTES_FAULTS if "flip" not in n], "--verify partial")
    blind(["--verify", "none"], ["bit-flip-k", "bit-flip-v"], "--verify all")
    blind(["--stamping", "off"], ["lost-write", "step-cut-short"], "--stamping on")
    # 16 of 128 bytes of a head are covered: most flips go unseen, whole rows do not.
    code, result = replay("--fault", "all", "--verify", "partial", "--requests", "120")
    expect(code == 0 and result["mode"] == "partial", f"partial: exit code {code}")
    for row in result["faults"]:
        if row["name"].startswith("bit-flip"):
            expect(row["missed"] > 0, f"partial: {row}")
        else:
            is_found(row, "partial")
    # A check that is on and finds too little is a failure: with nothing read twice, flips in what
    # was verified before wait for the sweep and the release.
    code, result = replay("--fault", "bit-flip-k", "--injections", "2")
    expect(code == 1, f"two injections cannot be three detections: exit code {code}")


def clean():
    for options in ([], ["--dtype", "f32"], ["--dtype", "f16"], ["--dtype", "fp8_e4m3"],
                    ["--dtype", "fp8_e5m2"], ["--fingerprint", "splitmix"], ["--stamping", "off"],
                    ["--expected-tokens", "off"], ["--input-check", "on"], ["--verify", "none"],
                    ["--verify", "partial"], ["--verify-budget", "all"], ["--verify-budget", "0"],
                    ["--speed", "40"], ["--page-size", "1"], ["--page-size", "32"],
                    ["--move-interval", "1"], ["--sweep-interval", "1"], ["--heads", "3"],
                    ["--query-heads", "8", "--heads", "1"], ["--seed", "7"], ["--layers", "1"],
                    ["--batch", "1"], ["--batch", "64"], ["--abort-every", "1"],
                    ["--pool-slots", "6144"], ["--release-check", "off"]):
        code, result = replay(*options)
        expect(code == 0, f"clean {options}: exit code {code}")
        expect(result["violations"] == 0 and result["slots_verified"] > 0,
               f"clean {options}: {result}")
        expect(result["faults"] == [], f"clean {options}: faults")
    code, result = replay(trace=ROOT / "data/azure_llm_2023_conv.csv")
    expect(code == 0 and result["requests_in_trace"] == 19366, f"clean azure: {code} {result}")


def without_times(result):
    return {k: v for k, v in result.items() if k not in ("seconds", "canary_seconds")}


def threads():
    results = [replay("--fault", "all", "--threads", n) for n in ("1", "2", "4")]
    for code, result in results[1:]:
        expect(code == results[0][0], "exit codes differ between thread counts")
        expect(without_times(result) == without_times(results[0][1]),
               "results differ between thread counts")
    other = replay("--fault", "all", "--seed", "2")[1]
    expect(without_times(other) != without_times(results[0][1]), "another seed, same result")


def interrupt():
    process = subprocess.Popen([command, "replay", str(TRACE), "--requests", "all"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    expect(re.match(r"12,031 of 12,031 requests, ", first), f"first line is {first!r}")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    expect(process.returncode == 130, f"exit code {process.returncode} after Ctrl-C")
    expect(err == "" and "interrupted: the numbers above are of the part that ran" in out, out)


def apart():
    """Neither injector nor observer calls the guard, and the guard does not know of them."""
    for name in ("faults.c", "injector.c", "taint.c"):
        text = (ROOT / "cli/replay" / name).read_text()
        expect(not re.search(r"kvc_guard_|canary_|->guard|stamps", text), f"{name} knows the guard")
    for name in ("engine.c", "scheduler.c", "canary.c", "recover.c"):
        text = (ROOT / "cli/replay" / name).read_text()
        expect(not re.search(r"taint|inject|fault_", re.sub(r"/\*.*?\*/", "", text, flags=re.S)),
               f"{name} knows of faults")
    for file in (ROOT / "src").rglob("*.[ch]"):
        expect("replay/" not in file.read_text(), f"{file} knows the replay")


GROUPS = {f.__name__: f for f in (faults, together, control, mutations, clean, threads, interrupt,
                                  apart)}


def main():
    global command
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", default=str(ROOT / "build/kvcanary"))
    parser.add_argument("groups", nargs="+", choices=sorted(GROUPS))
    options = parser.parse_args()
    command = options.command
    for group in options.groups:
        GROUPS[group]()
    print(f"{problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
