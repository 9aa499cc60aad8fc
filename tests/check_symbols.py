#!/usr/bin/env python3
"""What the shared library exports against what the public headers declare.

usage: check_symbols.py LIBKVCANARY.SO LIBKVCANARY.A

Every exported symbol is declared in a public header, those that Python looks up aside; every declared
function is exported; the static library defines no global name outside kvc_ and kvc__.
"""
import subprocess
import sys

import c_source


def symbols(arguments):
    """Defined symbols that 'nm' lists with these arguments, without version suffixes."""
    listing = subprocess.run(["nm", "--defined-only", *arguments], check=True, text=True,
                             capture_output=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return {row[2].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


def main():
    shared, static = sys.argv[1:]
    declared = [name for name, _, _ in c_source.public_functions()]
    exported = {name for name in symbols(["--dynamic", "--extern-only", shared])
                if not name.startswith(("__tvm_ffi_", "kvc__python_"))}
    own = {name for name in symbols(["--extern-only", static])
           if not name.startswith(("kvc_", "__asan_", "__odr_asan", "__tsan", "__sancov"))}
    faults = [f"declared in a header, not exported: {name}"
              for name in declared if name not in exported]
    faults += [f"exported, not declared in a header: {name}"
               for name in sorted(exported - set(declared))]
    faults += [f"static library: global name without the prefix kvc_: {name}"
               for name in sorted(own)]
    for fault in faults:
        print(fault)
    print(f"{len(declared)} functions declared, {len(exported)} symbols exported, "
          f"{len(faults)} faults")
    return 1 if faults or not declared else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
