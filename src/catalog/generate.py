#!/usr/bin/env python3
"""Turns the catalogue's entries (src/catalog/*.toml) into C, JSON and pages.

  generate.py --source ROOT --out DIR     catalog_errors.h, catalog_table.c and catalog.json
  generate.py --source ROOT --pages DIR   one page per entry and README.md, the index
  generate.py --source ROOT --check-pages DIR   exit 1 if a page is missing, stale or left over

Standard library only. README.md beside this file says what an entry looks like.
"""
import argparse
import hashlib
import json
import keyword
import re
import sys
import tomllib
from pathlib import Path

TEXT_FIELDS = ["slug", "kind", "type", "class", "severity", "message", "hint", "documentation",
               "trigger_scenarios", "common_situations", "before", "after", "validation_code"]
LIST_FIELDS = ["solutions", "prevention_tips", "tags"]
OPTIONAL_FIELDS = ["status", "fix_language", "needs", "handling_strategy", "type_guard", "try_catch_pattern",
                   "background_tag"]
KINDS = ["error", "violation", "finding", "python", "cli"]
SEVERITIES = ["error", "warning", "info"]

# Placeholder type -> (C type of the argument, text function of src/base/text.h).
TYPES = {
    "d": ("int64_t ", "kvc__text_int"),
    "s": ("const char *", "kvc__text_word"),
    "g": ("double ", "kvc__text_double"),
    "x": ("uint64_t ", "kvc__text_hex"),
    "shape": ("const kvc_tensor *", "kvc__text_shape"),
    "dtype": ("kvc_dtype ", "kvc__text_dtype"),
}
# One letter per type, for the matcher.
TYPE_LETTERS = {"d": "d", "s": "s", "g": "g", "x": "x", "shape": "h", "dtype": "t"}
PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*):([a-z]+)\}")
C_WORDS = set(keyword.kwlist) | set("auto case char const default do double enum extern float goto "
    "inline int long register restrict short signed sizeof static struct switch typedef union "
    "unsigned void volatile where text error".split())
LITERAL_MIN = 6
CONTEXT_LINES = 18

STRATEGIES = {"KVC_E_DTYPE": "type-guard", "KVC_E_NO_MEMORY": "fallback", "KVC_E_NO_CUDA": "fallback"}
BACKGROUNDS = {
    "KVC_E_INVALID_ARGUMENT": "invalid-argument", "KVC_E_SHAPE": "tensor-shape-mismatch",
    "KVC_E_DTYPE": "tensor-dtype-mismatch", "KVC_E_DEVICE": "device-mismatch",
    "KVC_E_STRIDE": "tensor-stride-unsupported", "KVC_E_OVERLAP": "memory-overlap",
    "KVC_E_LENGTH": "length-mismatch", "KVC_E_CONFIG": "invalid-option",
    "KVC_E_SLOT_RANGE": "index-out-of-range", "KVC_E_SLOT_DUPLICATE": "duplicate-index",
    "KVC_E_POSITION_RANGE": "index-out-of-range", "KVC_E_TOKEN_RANGE": "index-out-of-range",
    "KVC_E_ROW_RANGE": "index-out-of-range", "KVC_E_ROW_DUPLICATE": "duplicate-index",
    "KVC_E_NONFINITE": "nonfinite-value", "KVC_E_NO_CUDA": "device-unavailable",
    "KVC_E_NO_MEMORY": "out-of-memory", "KVC_E_STATE": "call-order", "KVC_E_CUDA": "cuda-driver",
}


class Malformed(Exception):
    """An entry that cannot be used; says which file and which field."""


def split_template(template, file, field):
    """'a {n:d} b' -> ['a ', ('n', 'd'), ' b']; literals and placeholders alternate."""
    parts, at = [], 0
    for found in PLACEHOLDER.finditer(template):
        name, kind = found.groups()
        if kind not in TYPES:
            raise Malformed(f"{file}: {field}: unknown placeholder type '{kind}' in "
                            f"{found.group(0)}; known: {', '.join(TYPES)}")
        parts += [template[at:found.start()], (name, kind)]
        at = found.end()
    parts.append(template[at:])
    for literal in parts[0::2]:
        if "{" in literal or "}" in literal:
            raise Malformed(f"{file}: {field}: brace without a typed name in '{literal}'")
    return parts


def untyped(template):
    return PLACEHOLDER.sub(r"{\1}", template)


def pattern_of(parts):
    """The template as a regular expression; escapes only what means something there."""
    def literal(text):
        return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", text)
    return "".join(literal(p) if isinstance(p, str) else "(.+?)" for p in parts)


def arguments_of(entry):
    """Names and types in the order of first use: message, then what the hint adds."""
    arguments = {}
    for parts in (entry["message_parts"], entry["hint_parts"]):
        for name, kind in parts[1::2]:
            if entry["kind"] == "error" and name in C_WORDS:
                raise Malformed(f"{entry['file']}: placeholder name '{name}' cannot be an argument")
            if arguments.setdefault(name, kind) != kind:
                raise Malformed(f"{entry['file']}: placeholder '{name}' has two types, "
                                f"{arguments[name]} and {kind}")
    return arguments


def check_fields(entry, file, statuses):
    for field in TEXT_FIELDS:
        if not isinstance(entry.get(field), str):
            raise Malformed(f"{file}: {field}: missing, or not a string")
        if field != "hint" and not entry[field].strip():
            raise Malformed(f"{file}: {field}: empty")
    for field in LIST_FIELDS:
        value = entry.get(field)
        if not isinstance(value, list) or not value or not all(
                isinstance(v, str) and v.strip() for v in value):
            raise Malformed(f"{file}: {field}: must be a list of non-empty strings")
    for field in entry:
        if field not in TEXT_FIELDS + LIST_FIELDS + OPTIONAL_FIELDS:
            raise Malformed(f"{file}: {field}: unknown field")
    if entry["slug"] != file.stem or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry["slug"]):
        raise Malformed(f"{file}: slug: must be the file's name, lower case with dashes")
    if entry["kind"] not in KINDS:
        raise Malformed(f"{file}: kind: '{entry['kind']}' is none of {', '.join(KINDS)}")
    if entry["severity"] not in SEVERITIES:
        raise Malformed(f"{file}: severity: '{entry['severity']}' is none of "
                        f"{', '.join(SEVERITIES)}")
    has_status = entry["kind"] in ("error", "python")
    if has_status and entry.get("status") not in statuses:
        raise Malformed(f"{file}: status: '{entry.get('status')}' is not in kvc_status")
    if not has_status and "status" in entry:
        raise Malformed(f"{file}: status: only errors of the library have one")
    if entry.get("fix_language", "c") not in ("c", "sh", "python"):
        raise Malformed(f"{file}: fix_language: must be \"c\", \"sh\" or \"python\"")
    if "\n" in entry["message"]:
        raise Malformed(f"{file}: message: must be one line")


def load_entry(file, statuses):
    try:
        entry = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"{file}: {error}") from None
    check_fields(entry, file, statuses)
    entry["file"] = file
    entry.setdefault("fix_language", "c")
    for field in ("before", "after", "validation_code"):
        entry[field] = entry[field].strip("\n")
    for field in ("documentation", "trigger_scenarios", "common_situations", "hint"):
        entry[field] = " ".join(entry[field].split())
    entry["message_parts"] = split_template(entry["message"], file, "message")
    entry["hint_parts"] = split_template(entry["hint"], file, "hint")
    if "" in entry["message_parts"][2:-1:2]:
        raise Malformed(f"{file}: message: two placeholders with nothing between them")
    if sum(len(p) for p in entry["message_parts"][0::2]) < LITERAL_MIN:
        raise Malformed(f"{file}: message: fewer than {LITERAL_MIN} fixed characters")
    entry["arguments"] = arguments_of(entry)
    entry["id"] = hashlib.sha256(entry["slug"].encode()).hexdigest()[:16]
    return entry


def load_entries(root):
    header = (root / "include/kvcanary.h").read_text(encoding="utf-8")
    statuses = set(re.findall(r"^\t(KVC_E_[A-Z_]+) = \d+", header, re.M))
    files = sorted((root / "src/catalog").glob("*.toml"))
    return sorted((load_entry(f, statuses) for f in files), key=lambda e: e["slug"])


def library_version(root):
    header = (root / "include/kvcanary.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"#define KVC_VERSION_{part} (\d+)", header).group(1)
                    for part in ("MAJOR", "MINOR", "PATCH"))


# ---- where an entry is raised ------------------------------------------------------------------

def read_sources(root):
    files = []
    for folder, suffixes in (("src", (".c", ".h")), ("cli", (".c", ".h")), ("python", (".py",))):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in suffixes:
                lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
                files.append((file.relative_to(root).as_posix(), lines))
    return files


def needle_of(entry):
    if entry["kind"] == "error":
        return "kvc__fail_" + entry["slug"].replace("-", "_") + "("
    if entry["kind"] == "violation":
        return "KVC_REASON_" + entry["slug"].removeprefix("violation-").replace("-", "_").upper()
    return '"' + entry["slug"] + '"'


def place_of(entry, sources):
    """(path, line, first, last, text) of the first place that raises the entry, or Nones."""
    needle = re.compile(r"(?<![A-Za-z0-9_])" + re.escape(needle_of(entry)) + r"(?![A-Z_])")
    for path, lines in sources:
        for index, line in enumerate(lines):
            if needle.search(line):
                first = max(0, index - CONTEXT_LINES)
                last = min(len(lines), index + CONTEXT_LINES + 1)
                return path, index + 1, first + 1, last, "\n".join(lines[first:last])
    return None, None, None, None, None


def record_of(entry, sources, version):
    """The entry in the shape of the public error records."""
    path, line, first, last, text = place_of(entry, sources)
    comment = "//" if entry["fix_language"] == "c" else "#"
    status = entry.get("status")
    return {
        "record": {
            "id": entry["id"], "repo": "kvcanary", "slug": entry["slug"], "errorCode": status,
            "errorMessage": untyped(entry["message"]),
            "messagePattern": pattern_of(entry["message_parts"]),
            "errorType": entry["type"], "errorClass": entry["class"], "httpStatus": None,
            "severity": entry["severity"], "filePath": path, "lineNumber": line,
            "sourceCode": text, "sourceCodeStart": first, "sourceCodeEnd": last, "githubUrl": None,
            "documentation": entry["documentation"],
            "triggerScenarios": entry["trigger_scenarios"],
            "commonSituations": entry["common_situations"], "solutions": entry["solutions"],
            "exampleFix": f"{comment} before\n{entry['before']}\n\n"
                          f"{comment} after\n{entry['after']}",
            "handlingStrategy": entry.get("handling_strategy", STRATEGIES.get(status, "validation")),
            "validationCode": entry["validation_code"], "typeGuard": entry.get("type_guard"),
            "tryCatchPattern": entry.get("try_catch_pattern"),
            "preventionTips": entry["prevention_tips"], "tags": entry["tags"],
            "backgroundTag": entry.get("background_tag", BACKGROUNDS.get(status, entry["type"])),
            "analyzedSha": None, "analyzedAt": None, "schemaVersion": 2,
        },
        "datasetVersion": version,
    }


# ---- C -----------------------------------------------------------------------------------------

def c_string(text):
    """A C literal, in pieces of at most 90 characters so that lines stay readable."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "?": "\\?"}
    pieces, piece = [], ""
    for byte in text.encode("utf-8"):
        char = chr(byte)
        piece += escapes.get(char) or (char if 32 <= byte < 127 else f"\\{byte:03o}")
        if len(piece) >= 90:
            pieces.append(piece)
            piece = ""
    pieces.append(piece)
    return "\n\t\t".join(f'"{p}"' for p in pieces if p or len(pieces) == 1)


def signature(entry):
    arguments = "".join(f", {TYPES[kind][0]}{name}" for name, kind in entry["arguments"].items())
    return (f"kvc_status kvc__fail_{entry['slug'].replace('-', '_')}(int64_t where{arguments})")


def write_pieces(parts, member):
    lines = [f"\ttext = kvc__text_over(error.{member}, sizeof(error.{member}));"]
    for part in parts:
        if isinstance(part, str):
            if part:
                lines.append(f"\tkvc__text_literal(&text, {c_string(part)});")
        else:
            lines.append(f"\t{TYPES[part[1]][1]}(&text, {part[0]});")
    return lines


def errors_header(entries):
    lines = ["/* Made by src/catalog/generate.py: one typed function per error of the catalogue. "
             "Each stores",
             " * the error of this thread and returns its status. */",
             "#ifndef KVC__CATALOG_ERRORS_H", "#define KVC__CATALOG_ERRORS_H", "",
             '#include "kvcanary.h"', ""]
    for entry in entries:
        if entry["kind"] == "error":
            lines += [f"/* {untyped(entry['message'])} */", signature(entry) + ";", ""]
    return "\n".join(lines + ["#endif", ""])


def fail_function(entry):
    lines = [signature(entry), "{", "\tkvc_error error;", "\tstruct kvc__text text;", ""]
    lines += [f"\tkvc__error_start(&error, {entry['status']}, \"{entry['slug']}\", where);"]
    lines += write_pieces(entry["message_parts"], "message")
    if entry["hint"]:
        lines += write_pieces(entry["hint_parts"], "hint")
    return lines + ["\treturn kvc__error_store(&error);", "}", ""]


def table_row(index, entry, record):
    def strings(name, values):
        body = "".join(f"\n\t{c_string(v)}," for v in values)
        return f"static const char *const {name}_{index}[] = {{{body}\n\tNULL\n}};"
    lists = [strings("solutions", entry["solutions"]), strings("tips", entry["prevention_tips"]),
             strings("tags", entry["tags"])]
    texts = {
        "id": entry["id"], "slug": entry["slug"], "kind": entry["kind"],
        "message": untyped(entry["message"]), "pattern": pattern_of(entry["message_parts"]),
        "error_type": entry["type"], "error_class": entry["class"], "severity": entry["severity"],
        "hint": untyped(entry["hint"]), "documentation": entry["documentation"],
        "trigger_scenarios": entry["trigger_scenarios"],
        "common_situations": entry["common_situations"], "fix_language": entry["fix_language"],
        "fix_before": entry["before"], "fix_after": entry["after"],
        "validation_code": entry["validation_code"],
        "record_json": json.dumps(record, ensure_ascii=True),
    }
    row = [f"\t{{ .types = \"{''.join(TYPE_LETTERS[k] for _, k in entry['message_parts'][1::2])}\","
           " .entry = {", f"\t.status = {entry.get('status', 'KVC_OK')},"]
    row += [f"\t.{name} = {c_string(value)}," for name, value in texts.items()]
    row += [f"\t.solutions = solutions_{index}, .prevention_tips = tips_{index}, "
            f".tags = tags_{index} }} }},"]
    return lists, row


def table_source(entries, records):
    lines = ["/* Made by src/catalog/generate.py: the functions that fail, and the table of all "
             "entries. */", '#include "catalog/catalog.h"', '#include "base/error.h"',
             '#include "base/text.h"', '#include "catalog_errors.h"', ""]
    for entry in entries:
        if entry["kind"] == "error":
            lines += fail_function(entry)
    lines += ["/* Records are longer than the 4095 bytes that C11 promises for a literal; every "
              "compiler in", " * use takes them. */",
              '#pragma GCC diagnostic ignored "-Woverlength-strings"', ""]
    rows = []
    for index, (entry, record) in enumerate(zip(entries, records)):
        lists, row = table_row(index, entry, record)
        lines += lists
        rows += row
    lines += ["", "const struct kvc__catalog_row kvc__catalog_rows[] = {", *rows, "};",
              f"const size_t kvc__catalog_row_count = {len(entries)};", ""]
    return "\n".join(lines)


def write_if_changed(file, text):
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def write_sources(root, out, entries):
    """The C files keep their time stamp when nothing changed, so that nothing is rebuilt."""
    sources = read_sources(root)
    version = library_version(root)
    records = [record_of(entry, sources, version) for entry in entries]
    out.mkdir(parents=True, exist_ok=True)
    write_if_changed(out / "catalog_errors.h", errors_header(entries))
    write_if_changed(out / "catalog_table.c", table_source(entries, records))
    (out / "catalog.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


# ---- pages -------------------------------------------------------------------------------------

def page_of(entry):
    """One entry as Markdown. No line numbers: pages change only when their entry does."""
    def bullets(values):
        return "\n".join(f"- {value}" for value in values)
    status = f"`{entry.get('status')}`"
    family = {"error": status, "python": f"{status}, of the Python package alone",
              "violation": "a violation (row in the ring)",
              "finding": "a finding of check or diff in a saved cache", "cli": "an error of the command"}[entry["kind"]]
    language = entry["fix_language"]
    hint = f"\nHint: {untyped(entry['hint'])}\n" if entry["hint"] else ""
    return f"""# {entry['slug']}

```
{untyped(entry['message'])}
```
{hint}
Family: {family}. Python: `{entry['class']}`. Severity: {entry['severity']}. Id: `{entry['id']}`.

## What it means

{entry['documentation']}

## What triggers it

{entry['trigger_scenarios']}

## Where people meet it

{entry['common_situations']}

## What to do

{bullets(entry['solutions'])}

## Example

Before:

```{language}
{entry['before']}
```

After:

```{language}
{entry['after']}
```

## Check before the call

```{language}
{entry['validation_code']}
```

## How not to get here again

{bullets(entry['prevention_tips'])}

Tags: {', '.join(entry['tags'])}.
"""


def index_of(entries):
    titles = {"error": "Errors of the library", "violation": "Violations: what a check found",
              "finding": "Findings: what is wrong with a saved cache",
              "python": "Errors of the Python package", "cli": "Errors of the command"}
    lines = ["# Errors", "", "One page per entry of the catalogue, made from `src/catalog/*.toml` by",
             "`python3 src/catalog/generate.py --pages docs/errors`; do not edit them. "
             "`kvcanary explain SLUG` prints the", "same, and `kvcanary explain 'MESSAGE'` finds the "
             "entry of a pasted message."]
    for kind in KINDS:
        chosen = [e for e in entries if e["kind"] == kind]
        if chosen:
            lines += ["", f"## {titles[kind]}", "", "| slug | family | message |", "|---|---|---|"]
            lines += [f"| [{e['slug']}]({e['slug']}.md) | {e.get('status', e['type'])} | "
                      f"`{untyped(e['message']).replace('|', chr(92) + '|')}` |" for e in chosen]
    return "\n".join(lines) + "\n"


def all_pages(entries):
    pages = {f"{entry['slug']}.md": page_of(entry) for entry in entries}
    pages["README.md"] = index_of(entries)
    return pages


def write_pages(folder, entries):
    folder.mkdir(parents=True, exist_ok=True)
    pages = all_pages(entries)
    for name, text in pages.items():
        write_if_changed(folder / name, text)
    for file in folder.glob("*.md"):
        if file.name not in pages:
            file.unlink()


def check_pages(folder, entries):
    pages = all_pages(entries)
    bad = [f"{folder / name}: stale or missing" for name, text in pages.items()
           if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text]
    bad += [f"{file}: no entry has this slug" for file in sorted(folder.glob("*.md"))
            if file.name not in pages]
    if bad:
        print("\n".join(bad) + "\nrun: python3 src/catalog/generate.py --pages docs/errors")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--check-pages", type=Path)
    options = parser.parse_args()
    try:
        entries = load_entries(options.source)
    except Malformed as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    if options.out:
        write_sources(options.source, options.out, entries)
    if options.pages:
        write_pages(options.pages, entries)
    if options.check_pages:
        return check_pages(options.check_pages, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
