#!/usr/bin/env python3
"""Every kind of finding that check and diff print, and of note that info prints, is in docs/, and no
other.

In the code kinds are the words in quotes that go into the functions which make a finding or a note,
or into variables named kind; in docs/ the words in backquotes that begin a row of a table.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "cli/snapshot"
FINDING = re.compile(r"\b(?:diff_add|report_row|add_token_finding|place_finding|finding_blank|"
                     r"content_finding|findings_add_count|say_doubt|say_cell|char \*kind =|finding\.kind =)([^;]*);", re.S)
NOTE = re.compile(r"\bsaved_add_note\((.*?), (?:-1|\(int64_t\)|[a-z]+->)", re.S)
WORD = re.compile(r'"([a-z][a-z_]*)"')
VERDICT = re.compile(r'verdict = ("[a-z_]+")|(?<=", )"[a-z_]+"(?=, (?:true|false),)')


def made(files, pattern):
    """Kind -> the file that makes it."""
    found = {}
    for file in sorted(files):
        text = re.sub(r'"\n\s*"', "", file.read_text())  # literals that go on in the next line
        for call in pattern.finditer(text):
            for word in WORD.findall(call.group(0)):
                found.setdefault(word, file.relative_to(ROOT))
    return found


def documented(page, heading):
    """The kinds in the tables below a heading."""
    text = (ROOT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([a-z][a-z_]*)`", row.split("|")[1])}


def compare(code, page, heading, least, more=()):
    docs = documented(page, heading) - set(more)
    wrong = [f"{code[kind]}: {kind} is not in docs/{page}, {heading}" for kind in code.keys() - docs]
    wrong += [f"docs/{page}, {heading}: nothing makes {kind}" for kind in docs - code.keys()]
    if len(code) < least:
        wrong.append(f"docs/{page}, {heading}: only {len(code)} kinds were found in the code")
    return wrong


def main():
    check, diff = list(SNAPSHOT.glob("*.c")), list((SNAPSHOT / "diff").glob("*.c"))
    notes = made([file for file in check if file.name != "formats.c"], NOTE)  # which defines it
    wrong = compare(made(check, FINDING), "snapshots-check.md", "What is found", 20, notes)
    wrong += compare(notes, "snapshots.md", "Notes", 15)
    wrong += compare(made(diff, FINDING), "diff.md", "Kinds of findings", 18)
    wrong += compare(made(diff, VERDICT), "diff.md", "Verdicts", 14)
    print("\n".join(sorted(wrong) or ["kinds: the code and docs/ have the same"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
