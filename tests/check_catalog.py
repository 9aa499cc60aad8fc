#!/usr/bin/env python3
"""The catalogue is complete: every entry has a page, a place that raises it, and a test that names
it; every kvc__fail_* call and every quoted cli- slug has an entry (the compiler checks the former).
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src/catalog"))
import generate  # noqa: E402

NOT_TESTS = {"example_fixture.h", "example_sglang.h", "check_catalog.py", "check_catalog_examples.py"}


def text_of(folder, suffixes):
    return "\n".join(f.read_text(encoding="utf-8", errors="replace")
                     for f in sorted((ROOT / folder).rglob("*"))
                     if f.suffix in suffixes and f.name not in NOT_TESTS)


def main():
    entries = generate.load_entries(ROOT)
    sources = generate.read_sources(ROOT)
    tests = text_of("tests", {".c", ".h", ".sh", ".py", ".exact"}) + text_of("python", {".py"})
    known = {entry["slug"] for entry in entries}
    bad = []
    for entry in entries:
        slug = entry["slug"]
        if re.search(r"docs/|\.md\b", entry["hint"]):
            bad.append(f"{slug}: its hint names a file that is not there where only the command is")
        if not (ROOT / f"docs/errors/{slug}.md").exists():
            bad.append(f"{slug}: no page docs/errors/{slug}.md")
        if generate.place_of(entry, sources)[0] is None:
            bad.append(f"{slug}: nothing in src/ or cli/ raises it ({generate.needle_of(entry)})")
        if not re.search(rf"(?<![a-z0-9-]){re.escape(slug)}(?![a-z0-9-])", tests):
            bad.append(f"{slug}: no test names it")
    for path, lines in sources:
        for number, line in enumerate(lines, 1):
            for slug in re.findall(r'cli_fail\(\s*"([a-z0-9-]+)"', line):
                if slug not in known:
                    bad.append(f"{path}:{number}: {slug} has no entry")
    print("\n".join(bad + [f"{len(entries)} entries, {len(bad)} gaps"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
