#!/usr/bin/env python3
"""The project's own rules, those that no ready-made linter knows. One line per finding; exit 1 if
there is any. docs/testing.md says why each rule is there."""
import re
import sys
from collections import defaultdict

import c_source

FILE_BYTES_MAX = 200 * 1024
# Written in pieces, so that this file does not trip over itself.
OPEN_WORK = re.compile(r"\b(FIX" r"ME|TO" r"DO|XX" r"X)\b")
WORKPLACE = re.compile(r"(?<![\w.-])/wo" r"rk/|\.\./sha" r"red\b")
BANNED = {
    "prints": re.compile(r"\b(v?f?printf|puts|fputs|putchar|putc|fputc|perror)\s*\("),
    "ends the process": re.compile(r"\b(exit|_exit|_Exit|quick_exit|abort)\s*\("),
    "can overflow": re.compile(r"\b(v?sprintf|strcpy|strcat|stpcpy|gets|alloca)\s*\("),
}
ALLOCATES = re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|asprintf)\s*\(")
# A folder of src/ may include its own files and those of a lower number.
LAYERS = {"base": 0, "catalog": 0, "cpu": 1, "cuda": 1, "ops": 2, "guard": 3}
BINARY = {".png", ".gz", ".zst", ".bin", ".so", ".a"}


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_library_source(path, code):
    """Calls that the library never makes."""
    for why, pattern in BANNED.items():
        for match in pattern.finditer(code):
            yield f"{path}:{line_of(code, match.start())}: {match.group(1)}() {why}"
    if path.name != "alloc.c":
        for match in ALLOCATES.finditer(code):
            yield (f"{path}:{line_of(code, match.start())}: {match.group(1)}() outside alloc.c; "
                   "the hot path must not allocate")


# What both back ends are handed: the jobs, and the hashes that the specification defines.
JOB_HEADERS = {f"cpu/{name}.h" for name in ("rope", "scatter", "plan", "check_plan", "canary", "hash")}


def check_includes(path, text):
    """Who may know whom: base < cpu < ops < guard; the command knows the public header alone."""
    for match in re.finditer(r'(?m)^\s*#\s*include\s+"([^"]+)"', text):
        target = match.group(1)
        where = f"{path}:{line_of(text, match.start())}"
        folder = target.split("/")[0] if "/" in target else ""
        if path.parts[0] in {"cli", "bench"} and (c_source.ROOT / "src" / target).exists():
            yield f"{where}: {path.parts[0]} includes {target}; it may use only the public header"
        if path.parts[0] == "src" and len(path.parts) > 2:
            if (c_source.ROOT / "cli" / target).exists():
                yield f"{where}: the library includes {target} of the command"
            own = LAYERS.get(path.parts[1])
            other = LAYERS.get(folder)
            if own is not None and other is not None and other > own:
                yield f"{where}: {path.parts[1]} includes {target}, which lies above it"
            if {path.parts[1], folder} == {"cpu", "cuda"} and target not in JOB_HEADERS:
                yield f"{where}: cpu and cuda know each other"


def check_unique(files):
    """File names, and names of static functions of the library and the command, occur once."""
    by_name = defaultdict(list)
    by_static = defaultdict(list)
    for path in files:
        # Modules of a package are told apart by its name.
        packaged = path.parts[0] == "python" or path.name == "__init__.py"
        if path.suffix in {".c", ".h", ".cpp", ".py", ".sh"} and not packaged:
            by_name[path.name].append(path)
        if path.suffix in {".c", ".h"} and path.parts[0] in {"src", "cli"}:
            code = c_source.without_comments(c_source.read(path), strings=False)
            bare = re.sub(r"__attribute__\s*\(\(.*?\)\)\s", "", code)
            for match in re.finditer(r"(?m)^static\b[^;={}()]*?\b(\w+)\([^;{}]*\)\s*\n?\{", bare):
                by_static[match.group(1)].append(path)
    for name, places in sorted(by_name.items()):
        if len(places) > 1:
            yield f"file name {name} occurs {len(places)} times: {', '.join(map(str, places))}"
    for name, places in sorted(by_static.items()):
        places = sorted(set(places))  # one file may have a version for each machine
        if len(places) > 1:
            yield f"static function {name} is defined in {', '.join(map(str, places))}"


def check_public_functions(files):
    """Each is described in the header and named by a test."""
    tests = "\n".join(c_source.read(path) for path in files
                      if path.parts[0] == "tests" and path.suffix in {".c", ".h"})
    for name, _, before in c_source.public_functions():
        if "/*" not in before:
            yield f"include/: {name} has no comment"
        if not re.search(rf"\b{name}\b", tests):
            yield f"include/kvcanary.h: no test names {name}"


def check_text(path, text):
    """Rules for every file, whatever its language."""
    for number, line in enumerate(text.splitlines(), 1):
        if OPEN_WORK.search(line):
            yield f"{path}:{number}: open work is an issue, not a comment"
        if WORKPLACE.search(line):
            yield f"{path}:{number}: names a folder of one machine"
        if path.suffix in {".c", ".h", ".py", ".sh"} and line != line.rstrip():
            yield f"{path}:{number}: white space at the end of the line"


def main():
    files = c_source.tree_files()
    findings = []
    for path in files:
        size = (c_source.ROOT / path).stat().st_size
        if size > FILE_BYTES_MAX and path.parts[0] != "data":
            findings.append(f"{path}: {size} bytes; only data/ holds files above 200 KB")
        if path.suffix in BINARY or path.parts[0] == "data":
            continue
        text = c_source.read(path)
        findings += check_text(path, text)
        if path.suffix in {".c", ".h"}:
            findings += check_includes(path, text)
            if path.parts[0] == "src":
                findings += check_library_source(path, c_source.without_comments(text, False))
    findings += check_unique(files)
    findings += check_public_functions(files)
    for finding in findings:
        print(finding)
    print(f"lint: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
