#!/usr/bin/env python3
"""Our kernels on this machine's GPU, beside the ceilings, themselves without arithmetic and checks, and the peers. See README.md.

    python3 bench/peers/peers.py [--only rope,verify] [--quick] [--json FILE] [--contestants sglang,copy]
"""
import argparse
import importlib
import json
import sys
import time
import traceback

try:
    import torch
except ImportError:
    sys.exit("nothing was run: this Python has no torch")
if not torch.cuda.is_available():
    sys.exit("nothing was run: torch sees no GPU on this machine")

import canary
import harness
import rope
import verdicts
from contestants import Skip
from contestants.ceilings import arena, copies, reads
from harness import base, capture, measure, must, stream

CONTESTANTS = ["ceilings", "sglang", "flashinfer", "triton_ops", "plain", "torch_ops", "kvcanary"]
QUICK_SKIPS = ["flashinfer", "torch_ops"]  # minutes of compiling and loading
# torch.compile last: SGLang's older scatter takes twice as long in a process where it has run.
OPERATIONS = ["scatter", "plan", "check_plan", "verify", "write", "checksum", "scan_finite", "fp8", "rope"]
QUICK_TOKENS = (1, 64, 1024, 16384)
rows, skipped, failures = [], {}, []
started = time.time()


def say(text):
    print(f"[{time.time() - started:6.1f}] {text}", flush=True)


def run_once(call, before=lambda: None):
    """One launch through a graph; `before` runs after the warm-up calls, so that it decides what the launch sees."""
    graph = capture(call, [0])
    before()
    graph.replay()


def contestants(suite, case, a):
    """All entries of a suite; a missing contestant is named once, a broken one is kept with its error."""
    out = []
    for name in CONTESTANTS:
        if a.quick and name in QUICK_SKIPS:
            skipped[name] = "--quick"
            continue
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
    if a.quick:
        out = [e for e in out if not e.get("sketch") and e["name"] not in ("copy u1 again", "torch eager", "kvcanary computed", "moves computed")]
    return [e for e in out if not a.contestants or any(o in e["name"] for o in a.contestants)]


def add(suite, case, entry, mode, order, nbytes, reps=None, **more):
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
    if entry.get("peer"):
        row["is_peer"] = True
    for key in ("ceiling", "sketch", "ours", "note"):
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
    for kind, label in (("ceiling", "copy"), ("is_peer", "peer"), ("ours", "ours"), ("sketch", "sketch")):
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
            entries = contestants("rope_fp8" if fp8 else "rope", case, a)
            full = rope.bytes_moved(hq, hkv, d, tokens, **({"k_out": False, "pool_item": 1} if fp8 else {}))
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
                        failures.append({"where": f"check {key} {e['name']}", "error": str(result)})
                own = full if e.get("k_out", True) else rope.bytes_moved(hq, hkv, d, tokens, k_out=False)
                if fp8 and e.get("peer"):  # those store q as fp8, too
                    own = rope.bytes_moved(hq, hkv, d, tokens, k_out=False, pool_item=1, q_out_item=1)
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
        for e in contestants("scatter", case, a):
            result = case.check(e["call"], run_once) if e.get("check") else None
            if result and not result["ok"]:
                failures.append({"where": f"check {key} {e['name']}", "error": "wrong tokens"})
            for mode in ("cold", "hot"):
                add(suite, key, e, mode, launches[mode], nbytes, **({"check": result} if result else {}))
        ratios(suite, key)
        say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" for r in rows if r["suite"] == suite and r["case"] == key))
        del case
        torch.cuda.empty_cache()


def add_all(suite, key, entries, orders, nbytes):
    """Every entry, in each mode of `orders`; then one line about them."""
    for e in entries:
        for mode, order in orders.items():
            r = add(suite, key, e, mode, order, nbytes)
            if r and "violations" in e:
                r["violations"] = e["violations"]()
    ratios(suite, key)
    say(key + "  " + "  ".join(f"{r['name']} {r['mode']} {r['us']:.2f}" + (f" ({r['violations']} violations)" if r.get("violations") else "")
                               for r in rows if r["suite"] == suite and r["case"] == key))


def bench_write(suite, a):
    c = inputs()
    for requests, tokens in canary.WRITES:
        for name, mode in canary.MODES.items():
            small = tokens <= 4096
            distinct = 64 if requests == 64 else (8 if small else 1)
            if a.quick and tokens > 4096 and requests < 256 and name != "all":
                continue
            case = canary.Write(c, requests, tokens, mode, distinct)
            entries = contestants(suite, case, a)
            if name == "all" and tokens > 64 and (a.quick or tokens // requests > 8192):
                skipped[f"peers of write, all bytes, {requests} requests of {tokens // requests}"] = "they take seconds"
                entries = [e for e in entries if not e.get("peer")]
            orders = {"cold": list(range(distinct)), **({"hot": [0] * distinct} if small else {})}
            add_all(suite, f"{requests} req, {tokens} tokens, {name}", entries, orders, tokens * (32 + 24 + {0: 0, 1: 16, 2: canary.ROW_BYTES}[mode]))


def bench_verify(suite, a):
    c = inputs()
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for label, requests, tokens in canary.VERIFIES:
        for name, mode in canary.MODES.items():
            case = canary.Verify(c, tokens, mode, 1024 if label == "sweep" else canary.PREFIX)
            entries = contestants(suite, case, a)
            bytes_all = tokens * canary.ROW_BYTES
            if mode == 2:
                entries.append({"name": "read rows", "ceiling": True, "call": lambda i: must(base().kp_read_rows(
                    c.source.data_ptr(), case.slots.data_ptr(), tokens, canary.ROW_BYTES, out.data_ptr(), stream()))})
                entries.append({"name": "read", "ceiling": True, "call": reads(bytes_all)})
            covered = {0: 0, 1: 16, 2: canary.ROW_BYTES}[mode]
            # record, four plan words, source bytes
            add_all(suite, f"{label} {tokens} slots, {name}", entries, {"cold": [0], "hot": [0] * 4}, bytes_all if mode == 2 else tokens * (64 + covered))


def bench_plan(suite, a):
    for bs in canary.PLANS:
        case = canary.Plan(bs)
        key = f"bs {bs} x {canary.PREFIX}"
        entries = contestants(suite, case, a)
        for e in entries:
            if e.get("check") or e["name"] == "sglang":
                case.clear()
                run_once(e["call"], case.clear)
                torch.cuda.synchronize()
                if not case.check(e["name"] == "sglang")["ok"]:
                    failures.append({"where": f"check {key} {e['name']}", "error": "the plan is wrong"})
        add_all(suite, key, entries, {"cold": [0], "hot": [0] * 16}, bs * canary.PREFIX * (8 + 32))


def bench_check_plan(suite, a):
    for label, requests, tokens in canary.VERIFIES:
        case = canary.Verify(inputs(), tokens, 0, 1024 if label == "sweep" else canary.PREFIX)
        # entries thrice, marks of one buffer read and written thrice
        add_all(suite, f"{label} {tokens} slots", contestants(suite, case, a), {"cold": [0], "hot": [0] * 4}, tokens * 3 * (8 + 16))


def bench_checksum(suite, a):
    for items, row in ((131072, 2048), (1 << 20, 2048), (8192, 32768)):
        case = canary.Checksum(inputs(), items, row)
        entries = contestants(suite, case, a) + [{"name": "read", "call": reads(items * row), "ceiling": True}]
        add_all(suite, f"{items} rows of {row}", entries, {"cold": [0]}, items * row)


def bench_scan_finite(suite, a):
    case = canary.Finite(inputs(), 131072)
    entries = contestants(suite, case, a) + [{"name": "read", "call": reads(case.items * canary.ROW_BYTES), "ceiling": True}]
    add_all(suite, f"{case.items} rows of {canary.ROW_BYTES}", entries, {"cold": [0], "hot": [0] * 4}, case.items * canary.ROW_BYTES)


_inputs = []


def inputs():
    if not _inputs:
        _inputs.append(canary.Canary())
    return _inputs[0]


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
    order = torch.randperm(1 << 19, device="cuda")
    source, _, sink = arena()
    r = measure(lambda i: must(base().kp_read_rows(source.data_ptr(), order.data_ptr(), 1 << 19, 2048, sink.data_ptr(), stream())), [0], True)
    out["random rows of 2 KiB 1024 MB, GB/s"] = (1 << 30) / r["us"] / 1e3
    rows.append({"suite": "ceilings", "case": "ceilings", "values": out})
    for k, v in out.items():
        say(f"{k}: {v:.2f}")


def bench_row(r):
    """A row with the fields that kvcanary-bench --json prints, besides its own."""
    same = [x for x in rows if (x["suite"], x.get("case"), x.get("mode")) == (r["suite"], r["case"], r["mode"])]
    bare = next((x["us"] for x in same if r.get("ours") and x["name"] == r["name"].replace("kvcanary", "moves")), None)
    peer = min((x for x in same if x.get("is_peer") and r.get("ours")), key=lambda x: x["us"], default=None)
    return {"op": r["suite"], "variant": r["name"], "beside": "", "dtype": "bf16" if r["suite"] in ("rope", "fp8") else "", "shape": r["case"],
            "tokens": verdicts.tokens_of(r["case"]) if "T=" in r["case"] else None, "threads": None, "cache": r["mode"], "ns": r["us"] * 1e3, "bytes": r["bytes"],
            "best_of": r["reps"], "of_ceiling": r.get("to_ceiling"), "of_bare": bare and bare / r["us"], "peer": peer and peer["name"],
            "times_peer": peer and peer["us"] / r["us"], **r}


def save(path, info, a):
    with open(path, "w") as f:
        json.dump({"machine": info, "slots": a.slots, "quick": a.quick, "rows": [r if r["suite"] == "ceilings" else bench_row(r) for r in rows],
                   "targets": [c.json() for c in verdicts.judge(rows)], "skipped": skipped, "failures": failures, "seconds": time.time() - started}, f, indent=0)


def conclude():
    cells = verdicts.judge(rows)
    print("\n" + verdicts.table(cells))
    print("\nbare: the same kernel without its arithmetic and checks; of long writes the chain alone, if that is slower. A miss is excused where that is less than 5 % faster.\n")
    for op, count, met, excused, missed, not_run in verdicts.summary(cells):
        print(f"{op:18} {count:3} cells: {met} met, {excused} excused, {missed} missed" + (f", {not_run} not run" if not_run else ""))
    standing = verdicts.standing(rows)
    if any(standing.values()):
        print("rope against SGLang: " + ", ".join(f"{len(cells)} {what}" for what, cells in standing.items()))
    for where, why in skipped.items():
        print(f"not run: {where}: {why}")
    for f in failures:
        print(f"FAILED {f['where']}: {f['error']}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default=",".join(OPERATIONS), help="operations, of " + ",".join(OPERATIONS))
    ap.add_argument("--shapes", default="0,1,2,3")
    ap.add_argument("--tokens")
    ap.add_argument("--contestants", default="", help="only those with one of these words in their name")
    ap.add_argument("--slots", choices=("random", "sequential"), default="random", help="order of the pool rows in suites rope and fp8")
    ap.add_argument("--quick", action="store_true", help="a minute: fewer repetitions, tokens and peers")
    ap.add_argument("--json")
    a = ap.parse_args()
    a.only = a.only.split(",")
    if set(a.only) - set(OPERATIONS):
        ap.error("--only takes " + ",".join(OPERATIONS))
    a.shapes = [int(x) for x in a.shapes.split(",")]
    a.tokens = [int(x) for x in a.tokens.split(",")] if a.tokens else list(QUICK_TOKENS if a.quick else rope.TOKENS)
    a.contestants = [x for x in a.contestants.split(",") if x]
    if a.quick:
        harness.REPS = 5
    info = harness.machine()
    say(json.dumps(info))
    ceilings()
    for suite in [o for o in OPERATIONS if o in a.only]:
        try:
            (bench_rope if suite in ("rope", "fp8") else globals()[f"bench_{suite}"])(suite, a)
        except Exception as e:
            failures.append({"where": suite, "error": repr(e)[:300]})
            traceback.print_exc()
        torch.cuda.empty_cache()
        if a.json:
            save(a.json, info, a)
    conclude()
    if a.json:
        save(a.json, info, a)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
