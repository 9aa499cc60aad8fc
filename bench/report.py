#!/usr/bin/env python3
"""Merges a run of kvcanary-bench --json with one of bench/peers_cpu.py and writes a page about it:
bench/report.py BENCH.json [PEERS.json] [--out FOLDER] [--name MACHINE] [--json MERGED.json]

Each row's 'peer' is the fastest peer of the same shape, tokens, threads and kind of bytes; the page
lists the targets first, then every row."""
import argparse
import json
import re
from pathlib import Path

# What a row is compared with: ggml has no bf16 rope, torch is timed in bf16 only.
PEER_DTYPES = {"bf16": ("bf16", "f16"), "f16": ("f16", "bf16"), "f32": ("f32>f16",)}


def merge(bench, peers):
    for row in bench["rows"]:
        if row["op"] != "rope_pool_fused" or row["variant"] == "bare":
            continue
        for dtype in PEER_DTYPES.get(row["dtype"], ()):
            same = [p for p in peers["rows"]
                    if all(p[key] == row[key] for key in ("op", "shape", "tokens", "threads"))
                    and p["dtype"] == dtype]
            if same:
                best = min(same, key=lambda p: p["ns"])
                row["peer"] = f"{best['variant']} {best['dtype']}"
                row["times_peer"] = round(best["ns"] / row["ns"], 2)
                break


def time_text(ns):
    for limit, unit, scale in ((1e4, "ns", 1), (1e7, "us", 1e3), (float("inf"), "ms", 1e6)):
        if ns < limit:
            return f"{ns / scale:.4g} {unit}"
    return "-"


def per_cent(value):
    return "-" if value is None else f"{100 * value:.0f} %"


class Targets:
    """Each target: what was measured, and met, excused or missed."""

    def __init__(self, bench, peers):
        self.rows = [r for r in bench["rows"] if r["variant"] != "bare"]
        self.peers = peers["rows"]
        self.lines = []

    def best(self, **wanted):
        """The fastest row with these fields."""
        rows = [r for r in self.rows if all(r[key] == value for key, value in wanted.items())]
        return min(rows, key=lambda r: r["ns"]) if rows else None

    def add(self, name, target, measured, verdict):
        self.lines.append(f"| {name} | {target} | {measured} | {verdict} |")

    def share(self, name, least, row):
        """At least this share of the ceiling; excused if the bare loop is less than 5 % faster."""
        if not row:
            return self.add(name, per_cent(least), "not run", "-")
        bare = row["of_bare"]
        met = row["of_ceiling"] >= least
        verdict = "met" if met else "excused" if bare is not None and bare > 1 / 1.05 else "missed"
        return self.add(name, f">= {per_cent(least)} of the ceiling",
                        f"{per_cent(row['of_ceiling'])}, {per_cent(bare)} of bare, "
                        f"{time_text(row['ns'])} ({row['variant']})", verdict)

    def at_most(self, name, most_ns, row):
        if not row:
            return self.add(name, time_text(most_ns), "not run", "-")
        bare = row["of_bare"]
        verdict = "met" if row["ns"] <= most_ns else \
            "excused" if bare is not None and bare > 1 / 1.05 else "missed"
        return self.add(name, f"<= {time_text(most_ns)}",
                        f"{time_text(row['ns'])}, {per_cent(bare)} of bare ({row['variant']})",
                        verdict)

    def at_least_rate(self, name, gb_s, row):
        if not row:
            return self.add(name, f">= {gb_s} GB/s", "not run", "-")
        rate = row["bytes"] / row["ns"]
        return self.add(name, f">= {gb_s} GB/s", f"{rate:.1f} GB/s ({row['variant']})",
                        "met" if rate >= gb_s else "missed")

    def rope(self):
        shape = {"dtype": "bf16", "shape": "32,8,128"}
        for tokens in (4096, 16384):
            for threads in (1, 2):
                row = self.best(op="rope_pool_fused", tokens=tokens, threads=threads, cache="cold",
                                **shape)
                self.share(f"rope_pool_fused, T = {tokens}, {threads} thread(s)", 0.85, row)
                ggml = [p["ns"] for p in self.peers if p["variant"] == "ggml" and
                        p["shape"] == "32,8,128" and p["tokens"] == tokens and
                        p["threads"] == threads]
                if row and ggml:
                    times = min(ggml) / row["ns"]
                    self.add(f"the same, against ggml {time_text(min(ggml))}", ">= 4 x",
                             f"{times:.1f} x", "met" if times >= 4 else "missed")
                stamped = self.best(op="rope_pool_fused+stamp", tokens=tokens, threads=threads,
                                    cache="cold", **shape)
                if row and stamped:
                    over = stamped["ns"] / row["ns"] - 1
                    self.add(f"the same, with stamping {time_text(stamped['ns'])}", "<= 5 % over",
                             f"{100 * over:.1f} %", "met" if over <= 0.05 else "missed")
        for tokens, most in ((1, 800), (64, 45000)):
            self.at_most(f"rope_pool_fused, T = {tokens}, hot", most,
                         self.best(op="rope_pool_fused", tokens=tokens, threads=1, cache="hot",
                                   **shape))

    def verify(self):
        for threads in (1, 2):
            for shape in ("2048B x64", "16384B x16"):
                self.share(f"verify xxh3 all, rows of {shape}, {threads} thread(s)", 0.85,
                           self.best(op="verify", dtype="xxh3 all", shape=shape, threads=threads))
        for shape in ("2048B x64", "16384B x16"):
            self.at_least_rate(f"verify splitmix all, rows of {shape}", 3.5,
                               self.best(op="verify", dtype="splitmix all", shape=shape, threads=1))
        self.at_least_rate("verify xxh3 all, rows of 128 bytes", 5.0,
                           self.best(op="verify", dtype="xxh3 all", shape="128B x256", threads=1))

    def scatter(self):
        for shape, cache, least in (("64x128", "hot", 0.95), ("64x128", "cold", 0.95),
                                    ("64x2048", "cold", 0.6), ("256x8192", "cold", 0.6)):
            for threads in (1, 2):
                self.share(f"scatter {shape}, {cache}, {threads} thread(s)", least,
                           self.best(op="scatter", shape=shape, cache=cache, threads=threads))


def page(bench, peers):
    machine = bench["machine"]
    out = [f"# kvcanary-bench, {machine['date'][:10]}, {machine['cpu']}", "",
           f"{machine['cpus']} CPUs, {machine['memory_bytes'] / 1e9:.0f} GB, last-level cache "
           f"{machine['llc_bytes'] / 2**20:.0f} MiB, load {machine['load']} at the start. "
           f"{machine['compiler']}; {machine['build']}; variants: {machine['variants']}.",
           "docs/benchmarks.md says what the numbers mean and how to run this.", ""]
    if not bench["ratios_count"]:
        out += ["**The ceilings of this run are below 90 % of what the machine reaches: something "
                "else was running, and the ratios do not count.**", ""]
    missing = list(peers["not_run"]) + ([] if peers["rows"] else ["all peers (make bench-peers)"])
    out += ["Not run: " + ("; ".join(missing) or "nothing") + ".", "", "## Targets", "",
            "| what | target | measured | |", "| --- | --- | --- | --- |"]
    targets = Targets(bench, peers)
    targets.rope()
    targets.verify()
    targets.scatter()
    out += targets.lines + ["", "## Ceilings", "", "| what | threads | | GB/s |",
                            "| --- | --- | --- | --- |"]
    out += [f"| {c['name']} | {c['threads']} | {c['cache']} | {c['gb_s']:.1f} |"
            for c in bench["ceilings"]]
    if peers["rows"]:
        out += ["", "## Peers", "", "| peer | dtype | shape | tokens | threads | best | N |",
                "| --- | --- | --- | --- | --- | --- | --- |"]
        out += [f"| {p['variant']} | {p['dtype']} | {p['shape']} | {p['tokens']} | {p['threads']} | "
                f"{time_text(p['ns'])} | {p['best_of']} |" for p in peers["rows"]]
    out += ["", "## All rows", "",
            "| operation | variant | dtype | shape | tokens | threads | | best | GB/s | of ceiling | "
            "of bare | peer | times peer | N |", "|" + " --- |" * 14]
    for r in bench["rows"]:
        out.append(f"| {r['op']} | {r['variant']} | {r['dtype']} | {r['shape']} | {r['tokens']} | "
                   f"{r['threads']} | {r['cache']} | {time_text(r['ns'])} | "
                   f"{r['bytes'] / r['ns']:.1f} | {per_cent(r['of_ceiling'])} | "
                   f"{per_cent(r['of_bare'])} | {r['peer'] or '-'} | {r['times_peer'] or '-'} | "
                   f"{r['best_of']} |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench")
    parser.add_argument("peers", nargs="?")
    parser.add_argument("--out", default="bench/results")
    parser.add_argument("--name", help="of the machine; else made from its processor's")
    parser.add_argument("--json", help="where the merged JSON goes")
    options = parser.parse_args()
    bench = json.loads(Path(options.bench).read_text(encoding="utf-8"))
    peers = json.loads(Path(options.peers).read_text(encoding="utf-8")) if options.peers else \
        {"rows": [], "not_run": []}
    merge(bench, peers)
    name = options.name or re.sub(r"[^a-z0-9]+", "-", bench["machine"]["cpu"].lower()).strip("-")
    path = Path(options.out) / f"{bench['machine']['date'][:10]}-{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(bench, peers), encoding="utf-8")
    if options.json:
        Path(options.json).write_text(json.dumps(bench, indent=1), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
