"""The kvcanary command: ``python -m kvcanary`` and the console script run the wheel's own binary."""

import os
import sys

from ._lib import PACKAGED


def main() -> None:
    command = str(PACKAGED / "kvcanary")
    if not os.path.exists(command):
        sys.exit(f"kvcanary: no command at {command}; it comes with the wheel")
    os.execv(command, ["kvcanary", *sys.argv[1:]])


if __name__ == "__main__":
    main()
