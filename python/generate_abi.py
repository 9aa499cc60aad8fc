#!/usr/bin/env python3
"""Writes kvcanary/_abi.py, the C interface as ctypes sees it, from include/kvcanary*.h.

  generate_abi.py           rewrite it
  generate_abi.py --check   exit 1 if it is stale

The headers are the one place where structs, constants, initialisers and functions are written down.
Standard library only. What it cannot read it refuses, so that nothing is left out in silence.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = sorted((ROOT / "include").glob("kvcanary*.h"))
OUTPUT = ROOT / "python/kvcanary/_abi.py"

# C scalar -> (ctypes name, Python type of a field).
SCALARS = {
    "int": ("c_int", "int"),
    "int32_t": ("c_int32", "int"),
    "int64_t": ("c_int64", "int"),
    "uint8_t": ("c_uint8", "int"),
    "uint16_t": ("c_uint16", "int"),
    "uint32_t": ("c_uint32", "int"),
    "uint64_t": ("c_uint64", "int"),
    "size_t": ("c_size_t", "int"),
    "float": ("c_float", "float"),
    "double": ("c_double", "float"),
    "kvc_status": ("c_int", "int"),
    "char": ("c_char", "bytes"),
}
DECLARATION = re.compile(r"(?:const\s+)?(\w+)\s*((?:\*\s*(?:const\s*)?)*)(\w+)?((?:\[[^\]]+\])*)$")


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def constants_of(text):
    """Enumerators and numeric macros, in order."""
    values = {}
    for name, value in re.findall(r"^#define (KVC_[A-Z0-9_]+) (\(?[0-9][0-9 <()]*)$", text, re.M):
        values[name] = eval(value, {})  # digits, shifts and parentheses only
    for body in re.findall(r"\benum\b[^{;]*\{(.*?)\}", text, re.S):
        for item in filter(None, (i.strip() for i in body.split(","))):
            name, _, value = item.partition("=")
            values[name.strip()] = int(value)
    return dict(sorted(values.items()))


def ctype_of(base, stars, structs, callbacks):
    """(ctypes expression, Python type of a field)."""
    if stars:
        if base == "char" and stars == 1:
            return "c_char_p", "bytes | None"
        return "c_void_p", "int | None"
    if base in structs:
        return base, base
    if base in callbacks:
        return base, "Any"
    return SCALARS[base]


def declared(text, structs, callbacks, constants):
    """'const kvc_tensor *q' -> ('q', ctypes expression, Python type)."""
    match = DECLARATION.match(" ".join(text.split()))
    if not match:
        raise SystemExit(f"generate_abi: cannot read '{text}'")
    base, stars, name, dims = match.groups()
    ctype, python = ctype_of(base, stars.count("*"), structs, callbacks)
    for size in re.findall(r"\[([^\]]+)\]", dims):
        ctype = f"{ctype} * {int(eval(size, dict(constants)))}"
        python = "bytes" if base == "char" else "Any"
    return name, ctype, python


def structs_of(text, constants, callbacks):
    names = re.findall(r"typedef struct (\w+) \{", text)
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.S):
        fields = [f.strip() for f in body.split(";") if f.strip()]
        structs[name] = [declared(f, names, callbacks, constants) for f in fields]
    if list(structs) != names:
        raise SystemExit(f"generate_abi: structs left out: {set(names) - set(structs)}")
    return structs


def initialiser_items(body):
    """The items of a (possibly nested) braced list, as strings and lists."""
    tokens = re.findall(r"[{}]|[^{},]+", body)
    stack = [[]]
    for token in (t.strip() for t in tokens):
        if token == "{":
            stack.append([])
        elif token == "}":
            done = stack.pop()
            stack[-1].append(done)
        elif token:
            stack[-1].append(token)
    return stack[0][0]


def initialisers_of(text, structs, constants):
    """Struct name -> values of its fields as Python source, struct_bytes aside."""
    found = {}
    flat = text.replace("\\\n", " ")
    for name, body in re.findall(r"^#define (KVC_\w+_INIT)\s+(\{.*\})\s*$", flat, re.M):
        items = initialiser_items(body)
        struct = re.match(r"sizeof\((\w+)\)", items[0]).group(1)
        if len(items) != len(structs[struct]):
            raise SystemExit(f"generate_abi: {name} does not fit {struct}")
        values = {}
        for (field, _, _), item in list(zip(structs[struct], items, strict=True))[1:]:
            values[field] = value_of(item, constants)
        found[struct] = values
    for struct, fields in structs.items():  # those that the library fills have no initialiser
        if fields[0][0] == "struct_bytes":
            found.setdefault(struct, {})
    return found


# Prefix of the constants -> the enumeration that Python sees.
ENUMERATIONS = {
    "KVC_E_": ("Status(IntEnum)", "The family of an error."),
    "KVC_REASON_": ("Reason(IntFlag)", "Why a slot was reported."),
    "KVC_TAG_": ("LaunchTag(IntEnum)", "Who asked for a check or a write; 0 to 11 are SGLang's."),
    "KVC_CAUSE_": ("Cause(IntEnum)", "What most likely happened, as the guard judges."),
    "KVC_REPORT_": ("ReportReason(IntEnum)", "Why a row was left out on CUDA."),
}


def enumerations(constants):
    lines = []
    for prefix, (head, meaning) in ENUMERATIONS.items():
        names = {n: v for n, v in constants.items() if n.startswith(prefix) and "_COUNT" not in n}
        lines += ["", "", f"class {head}:", f'    """{meaning}"""', ""]
        if prefix == "KVC_E_":
            names = {"KVC_OK": 0, **names}
        for name, value in sorted(names.items(), key=lambda item: item[1]):
            kept = "KVC_" if prefix == "KVC_E_" else prefix
            lines += [f"    {name.removeprefix(kept)} = {value}"]
    return lines


def value_of(item, constants):
    if isinstance(item, list):
        return "(" + ", ".join(value_of(i, constants) for i in item) + ")"
    if item == "NULL":
        return "None"
    if item in constants:
        return str(constants[item])
    if item.startswith('"'):
        return f"b{item}"
    return repr(float(item[:-1])) if item.endswith("f") else str(eval(item, {}))


def functions_of(text, structs, callbacks):
    result = {}
    pattern = r"^KVC_API (?:KVC_NODISCARD )?((?:const )?\w+ \*?)(\w+)\((.*?)\);"
    for returned, name, arguments in re.findall(pattern, text, re.S | re.M):
        types = []
        if arguments.strip() != "void":
            for argument in arguments.split(","):
                types.append(declared(argument, structs, callbacks, {})[1])
        base = returned.replace("const", "").replace("*", "").strip()
        if base == "void" and "*" not in returned:
            back = "None"
        elif "*" in returned and base in structs:
            back = f"POINTER({base})"
        else:
            back = ctype_of(base, returned.count("*"), structs, callbacks)[0]
        result[name] = (back, types)
    return result


def callbacks_of(text):
    """The function types of the header: name -> CFUNCTYPE expression."""
    result = {}
    for back, name, arguments in re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);", text, re.S):
        types = [declared(a, {}, result, {})[1] for a in arguments.split(",")]
        head = "None" if back == "void" else SCALARS[back][0]
        result[name] = f"CFUNCTYPE({', '.join([head, *types])})"
    return result


def module(text):
    text = without_comments(text)
    constants = constants_of(text)
    callbacks = callbacks_of(text)
    structs = structs_of(text, constants, callbacks)
    initialisers = initialisers_of(text, structs, constants)
    lines = [
        '"""The C interface as ctypes sees it. Made by generate_abi.py from include/kvcanary.h."""',
        "",
        "# fmt: off",
        "from ctypes import (",
        "    CDLL, CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int,",
        "    c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, sizeof,",
        ")",
        "from enum import IntEnum, IntFlag",
        "from typing import Any",
        "",
        "from ._struct import Struct",
        "",
    ]
    lines += [f"{name} = {value}" for name, value in constants.items()]
    lines += enumerations(constants)
    lines += ["", ""] + [f"{name} = {value}" for name, value in callbacks.items()] + [""]
    for name, fields in structs.items():
        lines += ["", f"class {name}(Struct):"]
        lines += [f"    {field}: {python}" for field, _, python in fields]
        lines += ["    _fields_ = ["]
        lines += [f'        ("{field}", {ctype}),' for field, ctype, _ in fields]
        lines += ["    ]", ""]
        if name in initialisers:
            values = initialisers[name]
            lines += ["    def __init__(self, **fields: Any) -> None:"]
            lines += ["        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})"]
            body = ", ".join(f'"{field}": {value}' for field, value in values.items())
            lines += ["", f"    INITIAL: dict[str, Any] = {{{body}}}", ""]
    lines += ["", "def declare(library: CDLL) -> None:", '    """Give every function its types."""']
    for name, (back, types) in functions_of(text, structs, callbacks).items():
        lines += [f"    library.{name}.restype = {back}"]
        lines += [f"    library.{name}.argtypes = [{', '.join(types)}]"]
    used = set(re.findall(r"\bc_\w+\b|\b[A-Z]+[A-Za-z]*\b", "\n".join(lines[8:])))
    names = [n.strip() for n in " ".join(lines[4:6]).split(",") if n.strip()]
    kept = [n for n in names if n in used or n in ("CDLL", "sizeof")]
    lines[3:7] = ["from ctypes import (", *(f"    {n}," for n in kept), ")"]
    return "\n".join(lines) + "\n"


def main():
    made = module("\n".join(header.read_text(encoding="utf-8") for header in HEADERS))
    if "--check" in sys.argv[1:]:
        if not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != made:
            sys.exit("python/kvcanary/_abi.py is stale: run python/generate_abi.py")
        return
    OUTPUT.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
