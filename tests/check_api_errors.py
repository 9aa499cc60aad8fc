#!/usr/bin/env python3
"""Every public function that returns kvc_status has a test that makes it fail.

This reads the tests, it does not run them. A function counts as provoked when

- some function under tests/ reaches a call of it, directly or through helpers of the same file, and
  names an error there (KVC_E_... or a slug of the catalogue that belongs to an error), or
- an entry of the catalogue shows it: its 'before' example, which CTest compiles and runs and which
  must give exactly that entry's error, ends in 'return NAME(...)'.

A test that names an error without asserting it would pass here; that it is asserted is for review.
"""
import re
import sys
import tomllib

import c_source


def error_slugs():
    """Slugs of the catalogue's entries for errors of the library, and their 'before' examples."""
    entries = [tomllib.loads(path.read_text(encoding="utf-8"))
               for path in sorted((c_source.ROOT / "src/catalog").glob("*.toml"))]
    errors = [entry for entry in entries if entry.get("kind") == "error"]
    return {entry["slug"] for entry in errors}, [entry.get("before", "") for entry in errors]


def provoked_in_file(text, names, slugs):
    """Names whose call is reached from a function of this file that names an error."""
    bodies = c_source.functions(text)
    calls = {owner: set(re.findall(r"\b(\w+)\s*\(", body)) | set(re.findall(r"&?\b(\w+)\b", body))
             & set(bodies) for owner, body in bodies.items()}
    named = re.compile(r"\bKVC_E_\w+|\"(" + "|".join(map(re.escape, sorted(slugs))) + r")\"")
    found = set()
    for owner, body in bodies.items():
        if not named.search(body):
            continue
        reached, todo = set(), [owner]
        while todo:
            current = todo.pop()
            if current in reached:
                continue
            reached.add(current)
            todo += [callee for callee in calls.get(current, ()) if callee in bodies]
            found |= calls.get(current, set()) & names
    return found


def main():
    names = {name for name, has_status, _ in c_source.public_functions() if has_status}
    slugs, examples = error_slugs()
    provoked = set()
    for path in c_source.tree_files():
        if path.parts[0] == "tests" and path.suffix in {".c", ".h"}:
            provoked |= provoked_in_file(c_source.read(path), names, slugs)
    for example in examples:
        provoked |= names & set(re.findall(r"return\s+(\w+)\(", example))
    missing = sorted(names - provoked)
    for name in missing:
        print(f"no test makes {name} fail")
    print(f"{len(names)} functions return kvc_status, {len(missing)} of them never fail in a test")
    return 1 if missing or not names else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
