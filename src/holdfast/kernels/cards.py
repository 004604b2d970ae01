"""What a model is told about the engine that runs its code: short, and true."""

from __future__ import annotations

import sys

_VERSION = ".".join(map(str, sys.version_info[:2]))

CPYTHON = f"""\
The engine
- Your code runs in Python {_VERSION} with its whole standard library and nothing else installed.
- There is no network, no shell and no writing of files; reading is limited to what this session
  may read.
- Threads and asyncio work. The namespace is saved after every block: plain data, functions,
  classes and imports stay; open files, generators, locks and the like do not, and you are told
  when one was lost."""
