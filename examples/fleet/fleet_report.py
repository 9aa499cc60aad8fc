#!/usr/bin/env python3
"""Merges logs of 'kvcanary check --jsonl' into one report, as text or as a page.

usage: fleet_report.py LOG... [--html FILE]
The latest line of a file counts. Exit code: 0 all sound, 1 any damaged, else 2 any not checked.
"""
import argparse
import html
import json
import sys
from collections import Counter
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Saved KV caches</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .3em .8em; border-bottom: 1px solid #ddd; vertical-align: top }}
.damaged {{ color: #a00 }} .unreadable, .not {{ color: #950 }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }}
 .damaged {{ color: #f77 }} .unreadable, .not {{ color: #fb6 }} td, th {{ border-color: #333 }} }}
</style>
<h1>{title}</h1><p>{summary}</p>
<table><tr><th>verdict</th><th>file</th><th>what</th></tr>
{rows}
</table></html>
"""


def read(paths):
    """The last line of each file; torn and foreign lines are passed over."""
    files = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                files[entry["file"]] = entry
            except (ValueError, KeyError, TypeError):
                continue
    return files


def what(entry):
    if "error" in entry:
        return f"{entry['error']['message']} [{entry['error']['slug']}]"
    counts = ", ".join(f"{kind} {count}" for kind, count in entry.get("counts", {}).items())
    places = [place(f) for f in entry.get("findings", []) if f["weight"] != "note"][:3]
    return counts + ("; first: " + "; ".join(places) if places else "")


def place(finding):
    keys = ("layer", "tensor", "head", "cell", "position", "token")
    return " ".join([finding["kind"]] + [f"{k} {finding[k]}" for k in keys if k in finding])


def write_page(path, summary, entries):
    rows = "\n".join(
        f'<tr><td class="{html.escape(e["verdict"])}">{html.escape(e["verdict"])}</td>'
        f'<td>{html.escape(e["file"])}</td><td>{html.escape(what(e))}</td></tr>' for e in entries)
    path.write_text(PAGE.format(title="Saved KV caches", summary=html.escape(summary), rows=rows),
                    encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--html", type=Path)
    options = parser.parse_args()
    entries = sorted(read(options.logs).values(), key=lambda e: (-(e["exit"] == 1), -e["exit"],
                                                                 e["file"]))
    exits = Counter(entry["exit"] for entry in entries)
    summary = (f"{len(entries)} files: {exits[0]} sound, {exits[1]} damaged, "
               f"{exits[2]} not checked")
    bad = [entry for entry in entries if entry["exit"] != 0]
    for entry in bad:
        print(f"{entry['verdict']:11} {entry['file']}: {what(entry)}")
    print(summary)
    if options.html:
        write_page(options.html, summary, bad)
    return 1 if exits[1] else 2 if exits[2] else 0


if __name__ == "__main__":
    sys.exit(main())
