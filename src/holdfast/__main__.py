"""The `holdfast` command, also as `python -m holdfast`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run one command; Ctrl-C while its modules are loaded ends it like any other."""
    try:
        from holdfast.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
