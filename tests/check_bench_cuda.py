#!/usr/bin/env python3
"""bench/peers/verdicts.py: which target a time meets, which bare time excuses a miss, and who counts as ahead."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench" / "peers"))
import verdicts

failures = 0


def expect(what, got, want):
    global failures
    if got != want:
        print(f"{what}: {got}, not {want}")
        failures += 1


def row(suite, case, mode, name, us, **more):
    return {"suite": suite, "case": case, "mode": mode, "name": name, "us": us, **more}


def verdict_of(rows, op, mode="cold"):
    return [c.verdict for c in verdicts.judge(rows) if c.op == op and c.mode == mode]


def rope_rows(ours, moves, sglang, tokens=64, shape="(64,8,64)"):
    case = f"{shape} T={tokens}"
    return [row("rope", case, "cold", "kvcanary", ours), row("rope", case, "cold", "moves", moves),
            row("rope", case, "cold", "sglang pdl", sglang, is_peer=True), row("rope", case, "cold", "sglang plain", sglang + 1, is_peer=True)]


def main():
    # 0.85 of SGLang's at T = 64.
    expect("at the limit", verdict_of(rope_rows(1.7, 1.0, 2.0), "rope"), ["met"])
    expect("just over", verdict_of(rope_rows(1.71, 1.0, 2.0), "rope"), ["missed"])
    expect("bare as slow", verdict_of(rope_rows(1.71, 1.64, 2.0), "rope"), ["excused"])
    expect("bare 5 % faster", verdict_of(rope_rows(1.71, 1.62, 2.0), "rope"), ["missed"])
    # Microseconds, and ahead of SGLang besides.
    expect("a number", verdict_of(rope_rows(2.0, 1.0, 3.0, shape="(32,8,128)"), "rope"), ["met"])
    expect("not ahead", verdict_of(rope_rows(2.0, 1.0, 2.01, shape="(32,8,128)"), "rope"), ["missed"])
    expect("nothing to hold it against", verdict_of(rope_rows(2.0, 1.0, 3.0)[:2], "rope"), ["not run"])
    # 94.5 % of the copy, which is tighter than SGLang here.
    large = rope_rows(107, 90, 200, 65536, "(64,8,128)") + [row("rope", "(64,8,128) T=65536", "cold", "copy u1", 100)]
    expect("slower than the copy allows", verdict_of(large, "rope"), ["missed"])

    stamped = rope_rows(2.0, 1.9, 3.0) + [row("rope", "(64,8,64) T=64", "cold", "kvcanary stamp", 2.4)]
    expect("stamping", verdict_of(stamped, "stamping"), ["met"])
    expect("verify", verdict_of([row("verify", "sweep 9 slots, all", "cold", "kvcanary", 112), row("verify", "sweep 9 slots, all", "cold", "read rows", 100)],
                                "verify"), ["missed"])
    chain = [row("write", "1 req, 131072 tokens, all", "cold", n, us) for n, us in (("kvcanary", 14500), ("moves", 900), ("chain only", 14100))]
    expect("a long write is held against its chain", verdict_of(chain, "write"), ["excused"])

    standing = verdicts.standing(rope_rows(1.0, 1, 1.02) + rope_rows(1.0, 1, 1.0, 1) + rope_rows(1.0, 1, 0.98, 4))
    expect("standing", {k: len(v) for k, v in standing.items()}, {"ahead": 1, "level": 1, "behind": 1})
    expect("names of the table", [len(verdicts.columns(c)) for c in verdicts.judge(chain)], [len(verdicts.HEAD)])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
