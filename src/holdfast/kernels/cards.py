"""What a model is told about the engine that runs its code: short, and true."""

from __future__ import annotations

import sys

_VERSION = ".".join(map(str, sys.version_info[:2]))

_CONFINED = """\
- There is no network, no shell and no writing of files; reading is limited to what this session
  may read."""
_UNCONFINED = """\
- Do not use the network, start processes or write files: use what you were given for that."""
_CPYTHON = """\
The engine
- Your code runs in Python {version} with its whole standard library and {packages}.
{bounds}
- Threads and asyncio work. The namespace is saved after every block: plain data, functions,
  classes and imports stay, with `lru_cache`s emptied; open files, generators, locks and the like
  do not, and you are told when one was lost."""


def cpython(packages: tuple[str, ...] = (), *, confined: bool = True) -> str:
    """Return what is said of the cpython engine, with the packages that code may import."""
    return _CPYTHON.format(
        version=_VERSION,
        packages=", ".join(packages) if packages else "nothing else installed",
        bounds=_CONFINED if confined else _UNCONFINED,
    )
