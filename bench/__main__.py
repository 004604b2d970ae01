"""Run every bench, print its table and keep its figures.

python -m bench [stores] [kernels] [sessions] [width] [trees] [fanout] [longcontext] [cli] [people]
                [workflows]
"""

from __future__ import annotations

import importlib
import sys

from bench.table import print_result, write_result

BENCHES = (
    "stores",
    "kernels",
    "sessions",
    "width",
    "trees",
    "fanout",
    "longcontext",
    "cli",
    "people",
    "workflows",
)


def main(names: list[str]) -> int:
    """Run the named benches, or all; return 1 where a target was missed."""
    missed = 0
    for name in names or BENCHES:
        result = importlib.import_module(f"bench.{name}").run()
        print_result(result)
        write_result(name, result)
        missed += sum(figure["met"] is False for figure in result["figures"])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
