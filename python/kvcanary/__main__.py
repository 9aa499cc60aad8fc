"""The kvcanary command: ``python -m kvcanary`` and the console script run the wheel's own binary.

One command is Python's own: ``export``, since only torch reads what torch pickles.
"""

import os
import sys

from ._lib import PACKAGED


def main() -> None:
    if sys.argv[1:2] == ["export"]:
        from .export import main as export

        sys.exit(export(sys.argv[2:]))
    command = str(PACKAGED / "kvcanary")
    if not os.path.exists(command):
        sys.exit(f"kvcanary: no command at {command}; it comes with the wheel")
    os.execv(command, ["kvcanary", *sys.argv[1:]])


if __name__ == "__main__":
    main()
