#!/usr/bin/env python3
"""Peer benchmark: every contestant, same inputs, same run. See README.md.

    python3 bench/peers/peers.py [--suites rope,fp8,scatter,write,verify,plan,checksum] [--quick] [--slots sequential] [--json FILE] [--shapes 0,1] [--tokens 1,64]
"""
import argparse
import importlib
import json
import sys
import time
import traceback

import torch

import canary
import harness
import rope
from contestants import Skip
from contestants.ceilings import copies, reads
from harness import base, capture, measure, must, stream

CONTESTANTS = ["ceilings", "sglang", "flashinfer", "torch_ops", "kvcanary"]
rows, skipped, failures = [], {}, []
started = time.time()


def say(text):
    print(f"[{time.time() - started:6.1f}] {text}", flush=True)


def run_once(call, before=lambda: None):
    """One launch through a graph; `before` runs after the warm-up calls, so that it decides what the launch sees."""
    graph = capture(call, [0])
    before()
    graph.replay()


def contestants(suite, case, names=CONTESTANTS):
    """All entries of a suite; a missing contestant is named once, a broken one is kept with its error."""
    out = []
    for name in names:
        m = importlib.import_module(f"contestants.{name}")
        if not hasattr(m, suite):
            continue
        try:
            out += getattr(m, suite)(case)
        except Skip as e:
            skipped[f"{name}.{suite}"] = str(e)
        except Exception as e:
            failures.append({"where": f"{name}.{suite}", "error": repr(e)[:300]})
            traceback.print_exc()
    return out


def add(suite, case, entry, mode, order, nbytes, reps=harness.REPS, **more):
    try:
        if "prepare" in entry:
            entry["prepare"]()
            torch.cuda.synchronize()
        m = measure(entry["call"], order, mode == "cold", reps)
    except Exception as e:
        failures.append({"where": f"{suite} {case} {entry['name']} {mode}", "error": repr(e)[:300]})
        traceback.print_exc()
        return None
    row = {"suite": suite, "case": case, "name": entry["name"], "mode": mode, **m, "bytes": nbytes, "gb_s": nbytes / m["us"] / 1e3, **more}
    for key in ("peer", "ceiling", "sketch", "note"):
        if entry.get(key):
            row[key] = entry[key]
    rows.append(row)
    return row


def ratios(suite, case):
    """Time of the faster copy (or read) over the row's time: 1.00 is the ceiling."""
    mine = [r for r in rows if r["suite"] == suite and r["case"] == case]
    for mode in ("cold", "hot"):
        best = min((r["us"] for r in mine if r["mode"] == mode and (r["name"].startswith("copy") or r["name"] in ("memcpy", "read rows"))), default=None)
        for r in mine:
            if r["mode"] == mode and best:
                r["to_ceiling"] = best * r["bytes"] / r["bytes_ceiling"] / r["us"] if "bytes_ceiling" in r else best / r["us"]


def best(suite, case, mode):
    """The fastest of the ceilings, the peers and the sketches, in words."""
    words = [mode]
    for kind, label in (("ceiling", "copy"), ("peer", "peer"), ("sketch", "sketch")):
        part = [r for r in rows if r["suite"] == suite and r["case"] == case and r["mode"] == mode and r.get(kind) and (kind != "ceiling" or r["name"][:4] in ("copy", "memc"))]
        if part:
            r = min(part, key=lambda r: r["us"])
            words.append(f"{label} {r['us']:.2f} ({r['name']})")
    return "  ".join(words)


def bench_rope(suite, a):
    fp8 = suite == "fp8"
    for hq, hkv, d in [rope.SHAPES[i] for i in a.shapes]:
        pools = rope.Pools(hq, hkv, d)
        for tokens in a.tokens:
            case = rope.Case(pools, tokens, a.slots == "sequential")
            key = f"({hq},{hkv},{d}) T={tokens}"
            entries = contestants("rope_fp8" if fp8 else "rope", case)
            if a.only:
                entries = [e for e in entries if any(o in e["name"] for o in a.only)]
            full = rope.bytes_moved(hq, hkv, d, tokens)
            if fp8:
                full = rope.bytes_moved(hq, hkv, d, tokens, k_out=False, pool_item=1, q_out_item=1)
                entries += copies(full // 2)
            for e in entries:
                result = None
                if e.get("check") and tokens in (4, 64, 1024):
                    try:
                        result = rope.check(case, e, run_once)
                    except Exception as x:
                        failures.append({"where": f"check {key} {e['name']}", "error": repr(x)[:300]})
                        traceback.print_exc()
                        torch.cuda.synchronize()
                        continue
                    if not result["ok"]:
                        say(f"CHECK {key} {e['name']}: {result}")
                own = full if fp8 or e.get("k_out", True) else rope.bytes_moved(hq, hkv, d, tokens, k_out=False)
                for mode in ("cold", "hot"):
                    add(suite, key, e, mode, case.cold_order if mode == "cold" else case.hot_order, own, bytes_ceiling=full,
                        **({"check": result} if result else {}))
            ratios(suite, key)
            say(key + "  " + "  |  ".join(best(suite, key, m) for m in ("cold", "hot")))
            del case, entries
            torch.cuda.empty_cache()


def bench_scatter(suite, a):
    for bs, length in canary.SCATTER:
        nbytes = bs * length * 12
        n = max(2, min(64, (1 << 30) // nbytes))
        case = canary.Scatter(bs, length, n)
        key = f"{bs}x{length}"
        launches = {"cold": list(range(n)), "hot": [0] * max(n, 8)}
        for e in contestants("scatter", case):
            result = case.check(e["call"], run_once) if e.get("check") else None
            for mode in ("cold", "hot"):
                add(suite, key, e, mode, launches[mode], nbytes, **({"check": result} if result else {}))
        ratios(suite, key)
        say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" for r in rows if r["suite"] == suite and r["case"] == key))
        del case
        torch.cuda.empty_cache()


def bench_canary(suite, a):
    c = canary.Canary()
    if suite == "write":
        for requests, tokens in canary.WRITES:
            for name, mode in canary.MODES.items():
                small = tokens <= 4096
                distinct = 64 if requests == 64 else (8 if small else 1)
                case = canary.Write(c, requests, tokens, mode, distinct)
                key = f"{requests} req, {tokens} tokens, {name}"
                nbytes = tokens * (32 + 24 + {0: 0, 1: 16, 2: canary.ROW_BYTES}[mode])
                if a.quick and tokens > 4096 and requests < 256:
                    continue
                slow = tokens == 131072 and mode == 2 and requests == 1
                for e in contestants(suite, case):
                    for heat in ("cold", "hot") if small else ("cold",):
                        r = add(suite, key, e, heat, list(range(distinct)) if heat == "cold" else [0] * distinct, nbytes,
                                reps=3 if slow else (harness.REPS if requests != 1 or small else 5))
                        if r and "violations" in e:
                            r["violations"] = e["violations"]()
                say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" for r in rows if r["suite"] == suite and r["case"] == key))
    if suite == "verify":
        from contestants import sglang
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        for label, requests, tokens in canary.VERIFIES:
            for name, mode in canary.MODES.items():
                case = canary.Verify(c, tokens, mode, 1024 if label == "sweep" else canary.PREFIX)
                run_once(sglang.write_call(case))  # the records that are then verified
                torch.cuda.synchronize()
                sglang.sinks().write_index.zero_()
                key = f"{label} {tokens} slots, {name}"
                covered = {0: 0, 1: 16, 2: canary.ROW_BYTES}[mode]
                nbytes = tokens * (32 + 32 + covered)  # record, four plan words, source bytes
                entries = contestants(suite, case)
                if mode == 2:
                    entries.append({"name": "read rows", "ceiling": True, "call": lambda i: must(base().kp_read_rows(
                        c.source.data_ptr(), case.slots.data_ptr(), tokens, canary.ROW_BYTES, out.data_ptr(), stream()))})
                    entries.append({"name": "read", "ceiling": True, "call": reads(tokens * canary.ROW_BYTES)})
                for e in entries:
                    for heat in ("cold", "hot"):
                        r = add(suite, key, e, heat, [0] * (1 if heat == "cold" else 4), nbytes if not e.get("ceiling") else tokens * canary.ROW_BYTES)
                        if r and "violations" in e:
                            r["violations"] = e["violations"]()
                ratios(suite, key)
                say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" + (f" ({r['violations']} violations)" if r.get("violations") else "")
                                           for r in rows if r["suite"] == suite and r["case"] == key))
    if suite == "plan":
        for bs in canary.PLANS:
            case = canary.Plan(bs)
            key = f"bs {bs} x {canary.PREFIX}"
            for e in contestants(suite, case):
                if e["name"] in ("sglang", "sketch", "kvcanary"):
                    case.clear()
                    run_once(e["call"], case.clear)
                    torch.cuda.synchronize()
                    say(f"{key} {e['name']} check {case.check(e['name'] == 'sglang')}")
                for heat in ("cold", "hot"):
                    add(suite, key, e, heat, [0] * (1 if heat == "cold" else 16), bs * canary.PREFIX * (8 + 32))
            say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" for r in rows if r["suite"] == suite and r["case"] == key))
    if suite == "checksum":
        for items, row in ((131072, 2048), (1 << 20, 2048), (8192, 32768)):
            case = canary.Checksum(c, items, row)
            key = f"{items} rows of {row}"
            for e in contestants(suite, case) + [{"name": "read", "call": reads(items * row), "ceiling": True}]:
                add(suite, key, e, "cold", [0], items * row)
            say(key + "  " + "  ".join(f"{r['name']} {r['us']:.1f} us {r['gb_s']:.0f} GB/s" for r in rows if r["suite"] == suite and r["case"] == key))


def ceilings():
    """Large copies and reads, and empty launches: the numbers everything else is held against."""
    until = time.time() + 0.7  # the clocks of an idle GPU are low
    call = reads(1 << 30)
    while time.time() < until:
        call(0)
        torch.cuda.synchronize()
    out = {}
    for mb in (256, 1024, 3072):
        half = mb << 20
        for e in copies(half) + [{"name": "read", "call": reads(half)}]:
            r = measure(e["call"], [0, 0], True)
            out[f"{e['name']} {mb} MB, GB/s"] = (1 if e["name"] == "read" else 2) * half / r["us"] / 1e3
    for blocks, threads in ((1, 32), (132, 128), (1056, 128), (16384, 128)):
        for pdl in (0, 1):
            r = measure(lambda i: must(base().kp_empty(blocks, threads, pdl, stream())), [0] * 256, False)
            out[f"empty {blocks}x{threads}{' pdl' if pdl else ''} us"] = r["us"]
    one = measure(lambda i: must(base().kp_empty(1, 32, 0, stream())), [0], False)
    out["a graph of one empty launch, us"] = one["us"]
    rows.append({"suite": "ceilings", "case": "ceilings", "values": out})
    for k, v in out.items():
        say(f"{k}: {v:.2f}")


def table(suite):
    """One block a shape and mode: T down, contestants across, microseconds; the best peer and its share of the ceiling last."""
    mine = [r for r in rows if r["suite"] == suite]
    groups = {}
    for r in mine:
        shape = r["case"].split(" T=")[0] if " T=" in r["case"] else ""
        groups.setdefault((shape, r["mode"]), []).append(r)
    for (shape, mode), part in groups.items():
        names = list(dict.fromkeys(r["name"] for r in part))
        print(f"\n{suite} {shape} {mode}: us")
        print("case".ljust(30) + "".join(n[:15].rjust(16) for n in names))
        for case in dict.fromkeys(r["case"] for r in part):
            by = {r["name"]: r for r in part if r["case"] == case}
            print(case.ljust(30) + "".join((f"{by[n]['us']:.2f}" if n in by else "-").rjust(16) for n in names))
            if any("to_ceiling" in r for r in by.values()):
                print("  of the ceiling".ljust(30) + "".join((f"{by[n]['to_ceiling']:.2f}" if n in by and "to_ceiling" in by[n] else "-").rjust(16) for n in names))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--suites", default="rope,fp8,scatter,write,verify,plan,checksum")
    ap.add_argument("--shapes", default="0,1,2,3")
    ap.add_argument("--tokens", default=",".join(map(str, rope.TOKENS)))
    ap.add_argument("--only", default="")
    ap.add_argument("--slots", choices=("random", "sequential"), default="random", help="order of the pool rows in suites rope and fp8")
    ap.add_argument("--quick", action="store_true", help="leave out the slowest cases")
    ap.add_argument("--json")
    a = ap.parse_args()
    a.shapes = [int(x) for x in a.shapes.split(",")]
    a.tokens = [int(x) for x in a.tokens.split(",")]
    a.only = [x for x in a.only.split(",") if x]
    info = harness.machine()
    say(json.dumps(info))

    def save():
        if a.json:
            with open(a.json, "w") as f:
                json.dump({"machine": info, "slots": a.slots, "rows": rows, "skipped": skipped, "failures": failures, "seconds": time.time() - started}, f, indent=0)

    ceilings()
    for suite in a.suites.split(","):
        try:
            {"rope": bench_rope, "fp8": bench_rope, "scatter": bench_scatter}.get(suite, bench_canary)(suite, a)
        except Exception as e:
            failures.append({"where": suite, "error": repr(e)[:300]})
            traceback.print_exc()
        torch.cuda.empty_cache()
        save()
    for suite in a.suites.split(","):
        table(suite)
    for where, why in skipped.items():
        print(f"skipped {where}: {why}")
    for f in failures:
        print(f"FAILED {f['where']}: {f['error']}")
    save()


if __name__ == "__main__":
    main()
