#!/usr/bin/env python3
"""Checks all files below a folder with Ray, 32 a task, into a log of JSON lines.

usage: check_ray.py FOLDER LOG [--tasks N]
Needs ray (PyPI) and kvcanary in PATH on every node; all nodes must see the folder. RAY_ADDRESS names
a cluster; without it Ray starts on this machine.
"""
import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import ray

FILES_A_TASK = 32


@ray.remote(num_cpus=1)
def check(paths, options):
    """The lines of one call of kvcanary; a task that fails says so, others go on."""
    ran = subprocess.run(["kvcanary", "check", "--jsonl", "--jobs", "1", *options, "--from-file", "-"],
                         input="\n".join(paths), capture_output=True, text=True)
    return ran.stdout if ran.returncode in (0, 1, 2) else f"# {ran.stderr}"


def known(log):
    """Paths that the log already has with the same size and time, and a verdict."""
    import json
    found = set()
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            entry = json.loads(line)
            state = os.stat(entry["file"])
        except (ValueError, KeyError, TypeError, OSError):
            continue
        same = state.st_size == entry["bytes"] and abs(state.st_mtime - entry["modified"]) < 1e-5
        if same and entry["exit"] != 2:
            found.add(entry["file"])
        else:
            found.discard(entry["file"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--tasks", type=int, default=64, help="tasks under way at a time (64)")
    options = parser.parse_args()
    done = known(options.log)
    files = sorted(str(f) for f in options.folder.rglob("*")
                   if f.is_file() and not f.name.endswith(".stamp.safetensors")
                   and not any(p.startswith(".") for p in f.parts))
    files = [f for f in files if f not in done]
    more = shlex.split(os.environ.get("KVCANARY_CHECK", ""))
    ray.init(logging_level="warning")
    waiting = [files[i:i + FILES_A_TASK] for i in range(0, len(files), FILES_A_TASK)]
    running = []
    with options.log.open("a") as log:
        if log.tell() and options.log.read_bytes()[-1:] != b"\n":
            log.write("\n")
        while waiting or running:
            while waiting and len(running) < options.tasks:
                running.append(check.remote(waiting.pop(0), more))
            ready, running = ray.wait(running)
            for task in ready:
                log.write(ray.get(task))
            log.flush()
    ray.shutdown()
    return subprocess.run([Path(__file__).with_name("fleet_report.py"), options.log]).returncode


if __name__ == "__main__":
    sys.exit(main())
