#!/usr/bin/env python3
"""What the README says is so: its program is examples/hello.c, that and its commands print what it
says, its links and 'make' targets exist, its table of environment variables is complete.

usage: check_readme.py PROGRAM [COMMAND]   (examples/hello.c, compiled; kvcanary)
"""
import re
import shlex
import subprocess
import sys

import c_source


def code_blocks(text):
    """[(language, content)] of the fenced blocks, in order."""
    return re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text)


def check_program(blocks, program):
    """The first C block is hello.c; the block after it is what it prints."""
    index = next((i for i, block in enumerate(blocks) if block[0] == "c"), None)
    if index is None:
        return ["README.md has no C program"]
    faults = []
    if blocks[index][1] != c_source.read("examples/hello.c"):
        faults.append("README.md: the program differs from examples/hello.c")
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    if index + 1 >= len(blocks) or blocks[index + 1][1] != printed:
        faults.append(f"README.md: the block after the program is not what it prints:\n{printed}")
    return faults


def check_commands(blocks, command):
    """A block that begins with '$ kvcanary ...' shows what that prints, run at the root."""
    shown = [block[1] for block in blocks if block[1].startswith("$ kvcanary ")]
    if not shown:
        yield "README.md shows no command at work"
    for text in shown if command else []:
        line, want = text.split("\n", 1)
        words = shlex.split(line)[2:]
        got = subprocess.run([command, *words], capture_output=True, text=True,
                             cwd=c_source.ROOT, stdin=subprocess.DEVNULL).stdout
        if got != want:
            yield f"README.md: '{line[2:]}' prints\n{got}"


def check_links(path):
    """Relative links of a Markdown file lead somewhere."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", c_source.read(path)):
        if not re.match(r"[a-z]+:", target) and \
                not (c_source.ROOT / path.parent / target).exists():
            yield f"{path}: no file {target}"


def check_targets(text):
    """Every 'make x' that the README names is a target."""
    targets = set(re.findall(r"(?m)^([a-z-]+):", c_source.read("Makefile")))
    for name in re.findall(r"`make ([a-z-]+)", text):
        if name not in targets:
            yield f"README.md: 'make {name}' does not exist"


def check_variables(text, files):
    """README and docs/testing.md list the variables that the code reads, no more and no fewer."""
    read_by_code = set()
    for path in files:
        if "examples" in path.parts:  # programs of their own, with a README each
            continue
        if path.suffix in {".c", ".h", ".sh", ".py"} or path.name in {"Makefile", "run"}:
            source = c_source.read(path)
            read_by_code |= set(re.findall(r"getenv\(\"(\w+)\"\)", source))
            read_by_code |= set(re.findall(r"\$\{(KVC_\w+):-", source))
            read_by_code |= set(re.findall(r"environ[\w.]*[\[(]\s*\"(KVC(?:ANARY)?_\w+)\"", source))
    tables = re.findall(r"(?m)^\| variable \|.*\n(?:\|.*\n)+",
                        text + c_source.read("docs/testing.md"))
    listed = set(re.findall(r"(?m)^\| `(\w+)`", "".join(tables)))
    ours = {name for name in read_by_code if name.startswith(("KVC_", "KVCANARY_"))}
    for name in sorted(ours - listed):
        yield f"README.md and docs/testing.md: no table has the environment variable {name}"
    for name in sorted(listed - read_by_code):
        yield f"README.md or docs/testing.md: nothing reads the environment variable {name}"


def main():
    files = c_source.tree_files()
    text = c_source.read("README.md")
    faults = check_program(code_blocks(text), sys.argv[1])
    faults += check_commands(code_blocks(text), sys.argv[2] if len(sys.argv) > 2 else None)
    for path in files:
        if path.suffix == ".md" and path.parts[0] != "data":
            faults += check_links(path)
    faults += check_targets(text)
    faults += check_variables(text, files)
    for fault in faults:
        print(fault)
    print(f"readme: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
