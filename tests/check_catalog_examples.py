#!/usr/bin/env python3
"""Compiles and runs the before and after of every catalogue entry.

All C examples become functions of one file, compiled once and run once; shell examples run one by
one in an empty folder. *before* must give exactly the entry's error or violation, *after* must not.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import c_source

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src/catalog"))
import generate  # noqa: E402

# What the helpers of example_fixture.h call.
HELPERS = {
    "stamp": ["kvc_canary_plan", "kvc_canary_write", "kvc_plan_bind"],
    "check": ["kvc_canary_plan", "kvc_canary_verify", "kvc_plan_bind"],
    "check_plan": ["kvc_canary_plan", "kvc_canary_check_plan", "kvc_plan_bind"],
    "sg_stamp": ["kvc_sglang_plan", "kvc_sglang_write"],
    "sg_check": ["kvc_sglang_plan", "kvc_sglang_verify"],
    "write_one": ["kvc_canary_plan", "kvc_canary_write", "kvc_plan_bind"],
}

MAIN = r"""
static int64_t reasons_in_ring(void)
{
	int64_t reasons = 0;
	for (int64_t i = 0; i < counters.violations && i < RING_ROWS; i++)
		reasons |= ring_rows_data[i * 16 + 7];
	return reasons;
}

struct example {
	const char *slug;
	const char *half;
	kvc_status (*run)(void);
};

static const struct example examples[] = {
%s	{ NULL, NULL, NULL }
};

int main(void)
{
	for (const struct example *e = examples; e->slug; e++) {
		pid_t child;
		printf("%%s %%s", e->slug, e->half);
		fflush(stdout);
		child = fork(); /* an example may set limits or crash */
		if (child == 0) {
			kvc_status status;
			example_reset();
			status = e->run();
			printf(" %%d %%s %%lld", (int)status, status ? kvc_last_error()->slug : "ok",
				(long long)reasons_in_ring());
			fflush(stdout);
			_exit(0);
		}
		waitpid(child, NULL, 0);
		printf("\n");
	}
	return 0;
}
"""


def needed(code):
    names = set(re.findall(r"\bkvc_[a-z0-9_]+(?=\()", code))
    for helper, calls in HELPERS.items():
        if re.search(rf"\b{helper}\(", code):
            names.update(calls)
    return names


def defined(library):
    out = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True,
                         check=True).stdout
    return set(re.findall(r" T (kvc_\w+)", out))


def examples_source(entries, missing):
    """One function per half of an entry; functions the library lacks are weak, so it links."""
    lines = ['#include "example_fixture.h"', "#include <stdio.h>"]
    lines[0:0] = [f"#pragma weak {name}" for name in sorted(missing)]
    rows = ""
    for entry in entries:
        for half in ("before", "after"):
            name = f"{half}_{entry['slug'].replace('-', '_')}"
            lines += [f'#line 1 "{entry["slug"]}.toml:{half}"',
                      f"static kvc_status {name}(void)", "{", entry[half], "}"]
            rows += f'\t{{ "{entry["slug"]}", "{half}", {name} }},\n'
    return "\n".join(lines) + '\n#line 1 "examples"\n' + MAIN % rows


def reason_bits():
    return {"violation-" + name.lower().replace("_", "-"): int(bit)
            for name, bit in re.findall(r"\tKVC_REASON_([A-Z_]+) = (\d+)", c_source.public_headers())}


def judge(entry, half, slug, reasons, bits):
    """What is wrong with the outcome of one C example, or None."""
    if entry["kind"] == "violation":
        wanted = bits[entry["slug"]] if half == "before" else 0
        if slug != "ok" or reasons != wanted:
            return f"status {slug}, reasons {reasons}, expected ok and {wanted}"
        return None
    wanted = entry["slug"] if half == "before" else "ok"
    return None if slug == wanted else f"gives {slug}, expected {wanted}"


def compile_c(source, program, options):
    """The compiler's messages if it fails, else nothing."""
    ran = subprocess.run([options.cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wno-unused",
                          "-Wno-address", "-Wno-pointer-bool-conversion", "-Werror",
                          *shlex.split(options.flags), f"-I{ROOT}/include", f"-I{ROOT}/tests",
                          str(source), options.library, "-lpthread", "-lm", "-ldl", "-o",
                          str(program)], capture_output=True, text=True,
                         env={**os.environ, "LC_ALL": "C"})
    return ran.stderr if ran.returncode else ""


def run_c(entries, options, scratch):
    library = defined(options.library)
    missing = {name for name, _, _ in c_source.public_functions()} - library
    runnable, failures = [], []
    for entry in entries:
        lacking = (needed(entry["before"]) | needed(entry["after"])) & missing
        if "-fsanitize" in options.flags and "setrlimit" in entry["before"]:
            print(f"SKIP {entry['slug']}: sanitizers need more memory than the example leaves")
        elif entry.get("needs"):
            print(f"SKIP {entry['slug']}: needs {entry['needs']}")
        elif lacking:
            print(f"SKIP {entry['slug']}: the library has no {', '.join(sorted(lacking))}")
        else:
            runnable.append(entry)
    source, program = scratch / "examples.c", scratch / "examples"
    while True:
        source.write_text(examples_source(runnable, missing), encoding="utf-8")
        messages = compile_c(source, program, options)
        broken = set(re.findall(r"^([a-z0-9-]+)\.toml:(?:before|after):\d.*error:", messages, re.M))
        if not broken:
            break
        failures.append(messages)
        runnable = [entry for entry in runnable if entry["slug"] not in broken]
    if messages:
        return len(runnable), failures + [messages]
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    by_slug = {entry["slug"]: entry for entry in runnable}
    bits = reason_bits()
    for line in ran.stdout.splitlines():
        words = line.split()
        if len(words) == 5:
            wrong = judge(by_slug[words[0]], words[1], words[3], int(words[4]), bits)
            failures += [f"{words[0]}: {words[1]}: {wrong}"] if wrong else []
        else:
            failures.append(f"{' '.join(words[:2])}: crashed\n{ran.stderr}")
    if ran.returncode and not failures:
        failures.append(f"exit {ran.returncode}\n{ran.stderr}")
    return len(runnable), failures


def run_shell(entry, half, options):
    """Runs in an empty folder; commands that are missing from the build are not our business."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(options.command).resolve().parent}:/usr/bin:/bin"
        ran = subprocess.run(["bash", "-c", entry[half]], cwd=folder, capture_output=True,
                             text=True, errors="replace", env={"PATH": path, "LC_ALL": "C",
                             "KVC_SOURCE": str(ROOT)}, timeout=60)
    printed = f"[{entry['slug']}]" in ran.stderr
    codes = [2]
    if entry["kind"] == "finding":  # says where to read on; 1 is damage, 2 a check that was not made
        printed = f"kvcanary explain {entry['slug']}\n" in ran.stdout
        codes = [1, 2]
    if half == "before" and (not printed or ran.returncode not in codes):
        return f"{entry['slug']}: before: exit {ran.returncode}, stderr: {ran.stderr.strip()}"
    if half == "after" and (printed or ran.returncode != 0):
        return f"{entry['slug']}: after: exit {ran.returncode}, stderr: {ran.stderr.strip()}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--flags", default="")
    parser.add_argument("--library", required=True, help="libkvcanary.a")
    parser.add_argument("--command", required=True, help="the kvcanary program")
    options = parser.parse_args()
    entries = generate.load_entries(ROOT)
    in_c = [e for e in entries if e["fix_language"] == "c"]
    in_shell = [e for e in entries if e["fix_language"] == "sh"]
    with tempfile.TemporaryDirectory() as folder:
        count, failures = run_c(in_c, options, Path(folder))
    for entry in in_shell:
        failures += filter(None, (run_shell(entry, half, options) for half in ("before", "after")))
    print("\n".join(failures + [f"{count} of {len(in_c)} examples in C, {len(in_shell)} in shell, "
                                f"{len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
