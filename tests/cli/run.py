#!/usr/bin/env python3
"""Runs tests/cli/<name>.sh and compares what it prints and its exit code, to the byte.

Beside <name>.sh lie <name>.stdout.exact, <name>.stderr.exact and <name>.exit; one that is not
there stands for no output and for exit code 0. Scripts run in an empty folder, with kvcanary in
PATH and KVC_SOURCE naming the source tree. run.py --update NAME... rewrites the expectations.
"""
import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(name, binary):
    env = {"PATH": f"{binary.resolve().parent}:/usr/bin:/bin", "LC_ALL": "C",
           "KVC_SOURCE": str(HERE.parents[1])}
    env |= {key: value for key, value in os.environ.items() if key.endswith("SAN_OPTIONS")}
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(["bash", str(HERE / f"{name}.sh")], cwd=folder, env=env,
                             capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
    return {"stdout.exact": ran.stdout, "stderr.exact": ran.stderr,
            "exit": b"" if ran.returncode == 0 else b"%d\n" % ran.returncode}


def expected(file):
    return file.read_bytes() if file.exists() else b""


def compare(name, got):
    good = True
    for part, data in got.items():
        want = expected(HERE / f"{name}.{part}")
        if data != want:
            good = False
            lines = [b.decode("utf-8", "replace").splitlines() for b in (want, data)]
            print("\n".join(difflib.unified_diff(*lines, f"{name}.{part}", "got", lineterm="")))
    return good


def update(name, got):
    for part, data in got.items():
        file = HERE / f"{name}.{part}"
        if data:
            file.write_bytes(data)
        else:
            file.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", type=Path, default=HERE.parents[1] / "build/kvcanary")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("names", nargs="*", help="all, if none is given")
    options = parser.parse_args()
    good = True
    for name in options.names or sorted(f.stem for f in HERE.glob("*.sh")):
        got = run(name, options.command)
        if options.update:
            update(name, got)
        else:
            good = compare(name, got) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
