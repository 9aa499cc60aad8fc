"""What the checks of the tree share: which files it has, and C source without its comments."""
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tree_files():
    """Every file of the project, relative to ROOT: tracked or new, never ignored ones."""
    git = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                         cwd=ROOT, capture_output=True, text=True, check=False) \
        if (ROOT / ".git").exists() else None
    if git and git.returncode == 0:
        names = [name for name in git.stdout.split("\0") if name]
    else:
        names = []
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith("build") and f != "__pycache__"]
            names += [os.path.relpath(os.path.join(folder, f), ROOT) for f in files]
    return sorted({Path(name) for name in names if (ROOT / name).is_file()})


def read(path):
    """Text of a file, below ROOT if the path is relative."""
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def without_comments(text, strings=True):
    """C source with comments blanked out, and string contents too unless 'strings'; lines stay."""
    def blank(match):
        token = match.group(0)
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        return token if strings else token[0] + " " * (len(token) - 2) + token[-1]
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text,
                  flags=re.S)


def public_headers():
    """The text of kvcanary.h and of the headers that it includes, in their order."""
    return "\n".join(read(path) for path in sorted((ROOT / "include").glob("*.h")))


def public_functions():
    """(name, returns kvc_status, what stands before it) of each KVC_API function, in order."""
    header = public_headers()
    bare = re.sub(r"(?m)^[ \t]*#.*(?:\\\n.*)*$", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  without_comments(header))
    found = []
    begin = 0
    for match in re.finditer(r"KVC_API([^;(]*?)\b(\w+)\s*\(", bare):
        found.append((match.group(2), "kvc_status" in match.group(1),
                      header[begin:match.start()]))
        begin = bare.index(";", match.end())
    return found


def functions(text):
    """{name: body} of the functions that C source defines at file level."""
    bodies = {}
    bare = without_comments(text)
    for match in re.finditer(r"(?m)^(?!\s)[\w \t\*]+?\b(\w+)\(([^;{}]*)\)\s*\n?\{", bare):
        end = bare.find("\n}", match.end())
        bodies[match.group(1)] = bare[match.end():end if end >= 0 else len(bare)]
    return bodies
