#!/usr/bin/env python3
"""Writes the man page and the shell completions of kvcanary from what the command says itself.

  make_manual.py --command build/kvcanary            writes them
  make_manual.py --command build/kvcanary --check    exit 1 if one is stale

The --help of every command comes from its table of options in cli/, so that table is the only place
where an option is described.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"^ {2}(--[a-z][a-z0-9-]*)(?: (\S+(?:,\S+)*))? {2,}(\S.*)$")
COMMAND = re.compile(r"^ {2}([a-z]+) {2,}(\S.*)$")
FILE_WORDS = {"FILE", "DIR", "TRACE", "SIDE", "LIST", "LOG", "A", "B"}


class Option:
    def __init__(self, name, value, text):
        self.name, self.value, self.text = name, value, text

    def choices(self):
        """on|off: the values themselves; N, FILE|-: nothing to offer, but for a help that ends
        in a list, "one of a, b, c"."""
        listed = re.search(r"\bone of ((?:[a-z0-9-]+, )+[a-z0-9-]+)$", self.text)
        if listed:
            return listed.group(1).split(", ")
        words = (self.value or "").split("|")
        return words if len(words) > 1 and all(re.fullmatch(r"[a-z0-9_]+", w) for w in words) else []

    def is_file(self):
        return bool(FILE_WORDS & set((self.value or "").split("|")))


class Command:
    """The parts of one --help: usage, text, options under headings, exit codes, examples."""

    def __init__(self, name, summary, help_text):
        self.name, self.summary, self.help_text = name, summary, help_text
        self.usage, self.text, self.sections, self.exits, self.examples = [], [], [], [], []
        self.read(help_text.splitlines())

    def options(self):
        return [option for _, options in self.sections for option in options]

    def takes_files(self):
        words = re.sub(r"--[a-z-]+ \S+", "", " ".join(self.usage))
        return bool(FILE_WORDS & set(re.findall(r"[A-Z]+", words)))

    def read(self, lines):
        part = "text"
        for line in lines:
            heading = re.match(r"^(usage|exit code|example|examples): *(.*)$", line)
            section = re.match(r"^([a-z][a-z ]*):$", line)
            found = OPTION.match(line)
            if heading:
                part = heading.group(1).rstrip("s")
                self.add(part, heading.group(2))
            elif section:
                part = "options"
                self.sections.append((section.group(1), []))
            elif found:
                part = "options"
                if not self.sections:
                    self.sections.append(("options", []))
                self.sections[-1][1].append(Option(*(found.group(1), found.group(2),
                                                     found.group(3) or "")))
            elif not line.strip():
                part = "text" if part == "usage" else part
                self.add(part, "")
            else:
                self.add(part, line.strip() if part != "text" else line)

    def add(self, part, line):
        if part == "options":
            if line and self.sections and self.sections[-1][1]:
                self.sections[-1][1][-1].text += " " + line
            return
        {"usage": self.usage, "text": self.text, "exit code": self.exits,
         "example": self.examples}[part].append(line)


def load(command):
    def run(*arguments):
        return subprocess.run([command, *arguments], capture_output=True, text=True, check=True,
                              env={"LC_ALL": "C"}, stdin=subprocess.DEVNULL).stdout
    top = run("--help")
    commands = []
    for line in top.splitlines():
        found = COMMAND.match(line)
        if found and found.group(1) != "help":
            commands.append(Command(*found.groups(), run(found.group(1), "--help")))
    return run("--version").split()[1], commands


# ---- the man page ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def paragraphs(lines):
    """Plain lines filled; indented ones as they are."""
    out, verbatim = [], False
    for line in lines:
        is_code = line.startswith("  ")
        if is_code != verbatim and line:
            out.append(".nf" if is_code else ".fi")
            verbatim = is_code
        out.append(roff(line) if line else ".P")
    while out and out[-1] == ".P":
        out.pop()
    return out + ([".fi"] if verbatim else [])


def man_command(command):
    out = [f".SS kvcanary {command.name}", roff(command.summary[0].upper() + command.summary[1:] + "."),
           ".P", ".nf"]
    prefix = f"kvcanary {command.name}"
    out += [roff(line if line.startswith("kvcanary") else f"{prefix} {line}")
            for line in command.usage if line]
    out += [".fi", ".P"] + paragraphs(command.text)
    for name, options in command.sections:
        out += [".P", f".I {roff(name[0].upper() + name[1:])}"]
        for option in options:
            value = f" \\fI{roff(option.value)}\\fR" if option.value else ""
            out += [".TP", f"\\fB{roff(option.name)}\\fR{value}", roff(option.text + ".")]
    for title, lines in (("Exit code", command.exits), ("Example", command.examples)):
        kept = [line for line in lines if line]
        if kept:
            out += [".P", f".I {title}", ".P", ".nf"] + [roff(line) for line in kept] + [".fi"]
    return out


def man_page(version, commands):
    out = [r'.\" Made by tools/make_manual.py; edit the tables of options in cli/.',
           f'.TH KVCANARY 1 "" "kvcanary {version}" "User Commands"',
           ".SH NAME", r"kvcanary \- keeps the KV cache of an LLM engine right",
           ".SH SYNOPSIS", r"\fBkvcanary\fR \fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...",
           ".SH DESCRIPTION",
           "Replays serving traces with faults to find, looks for damage in saved KV caches, compares",
           "two of them, and explains errors and violations of the library.",
           ".SH COMMANDS"]
    for command in commands:
        out += man_command(command)
    out += [".SH EXIT STATUS", "0 all good, 1 damage found, 2 could not check.",
            ".SH ENVIRONMENT", ".TP", r"\fBKVC_CPU\fR",
            r"the CPU variant to use; \fBkvcanary cpu\fR lists them",
            ".SH SEE ALSO",
            "In share/doc/kvcanary: snapshots.md lists the formats of saved caches, errors/ every error."]
    return "\n".join(out) + "\n"


# ---- completions ----

def bash_case(command):
    words = " ".join(option.name for option in command.options())
    values = []
    for option in command.options():
        if option.choices():
            values.append(f"\t\t{option.name}) mapfile -t COMPREPLY < <(compgen -W "
                          f"'{' '.join(option.choices())}' -- \"$word\"); return ;;")
        elif option.is_file():
            values.append(f'\t\t{option.name}) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;')
        elif option.value:
            values.append(f"\t\t{option.name}) return ;;")
    out = [f"\t{command.name})"]
    if values:
        out += ['\t\tcase "$before" in'] + values + ["\t\tesac"]
    return out + [f'\t\toptions="{words}"', f"\t\tfiles={int(command.takes_files())} ;;"]


def bash_completion(commands):
    names = " ".join([command.name for command in commands] + ["help"])
    out = ["# Completion of kvcanary for bash. Made by tools/make_manual.py.",
           "# shellcheck shell=bash", "_kvcanary() {",
           '\tlocal word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
           '\tlocal options="" files=0', "\tCOMPREPLY=()",
           '\tif [ "$COMP_CWORD" -eq 1 ] || [ "${COMP_WORDS[1]}" = help ]; then',
           f'\t\tmapfile -t COMPREPLY < <(compgen -W "{names} --help --version" -- "$word")',
           "\t\treturn", "\tfi", '\tcase "${COMP_WORDS[1]}" in']
    for command in commands:
        out += bash_case(command)
    out += ["\tesac", '\tif [ "${word#-}" != "$word" ]; then',
            '\t\tmapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")',
            '\telif [ "$files" -eq 1 ]; then', '\t\tmapfile -t COMPREPLY < <(compgen -f -- "$word")', "\tfi",
            "}", "complete -o filenames -F _kvcanary kvcanary"]
    return "\n".join(out) + "\n"


def zsh_word(text):
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_option(option):
    spec = f"{option.name}[{zsh_word(option.text)}]"
    if option.choices():
        spec += f":{option.name[2:]}:({' '.join(option.choices())})"
    elif option.is_file():
        spec += f":{option.name[2:]}:_files"
    elif option.value:
        spec += f":{zsh_word(option.value)}: "
    return f"\t\t\t'{spec}'"


def zsh_completion(commands):
    out = ["#compdef kvcanary", "# Made by tools/make_manual.py.", "_kvcanary() {",
           "\tlocal -a commands", "\tcommands=("]
    out += [f"\t\t'{c.name}:{zsh_word(c.summary)}'" for c in commands]
    out += ["\t\t'help:the options of a command'", "\t)", "\tif (( CURRENT == 2 )); then",
            "\t\t_describe command commands", "\t\treturn", "\tfi", "\tshift words",
            "\t(( CURRENT-- ))", '\tcase "$words[1]" in']
    for command in commands:
        specs = [zsh_option(option) for option in command.options()]
        if command.takes_files():
            specs.append("\t\t\t'*:file:_files'")
        out += [f"\t{command.name})", "\t\t_arguments \\"] + [s + " \\" for s in specs[:-1]]
        out += [specs[-1] + " ;;"]
    out += ["\thelp) _describe command commands ;;", "\tesac", "}", '_kvcanary "$@"']
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", type=Path, default=ROOT / "build/kvcanary")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    version, commands = load(str(options.command.resolve()))
    files = {"docs/kvcanary.1": man_page(version, commands),
             "tools/completion/kvcanary.bash": bash_completion(commands),
             "tools/completion/_kvcanary": zsh_completion(commands)}
    stale = 0
    for command in commands:  # found with another pattern than the one that made the files
        for name in re.findall(r"(?m)^ +(--[a-z-]+)", command.help_text):
            for file, text in files.items():
                if name not in text.replace("\\-", "-"):
                    stale += 1
                    print(f"{file} lacks {name} of kvcanary {command.name}")
    for name, text in files.items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if options.check:
            print(f"{name} is stale: run 'make docs'")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
