"""A launcher for Monty's worker: a small script that confines itself and goes on as the worker.

Monty starts its workers from a path, so the launcher is a file of its own, made for this
interpreter and this binary. The worker keeps nothing but its three standard streams: files that a
cell reads are served by the host, so no path is readable.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic_monty._binary import find_monty_binary

from holdfast.core.errors import ConfinementMissing
from holdfast.kernels import confinement
from holdfast.kernels.fork_server import interpreter

_SHEBANG_BYTES = 250  # what every kernel that has Landlock reads of a first line


class Launcher:
    """The launcher file; `path` is what Monty is given as its binary."""

    def __init__(self, memory_bytes: int) -> None:
        program = interpreter()
        first_line = f"#!{program} -IS"
        if len(os.fsencode(first_line)) > _SHEBANG_BYTES or " " in program:
            raise ConfinementMissing(
                f"the interpreter's path {program!r} does not fit a launcher; "
                "use a shorter path without spaces, or confinement 'language'"
            )
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-")
        self.path = Path(self._directory.name) / "monty"
        # Threads of Monty's pool come and go, and with them what Linux takes for the parent; the
        # worker ends when its input does.
        self.path.write_text(
            f"""{first_line}
import sys
sys.path.insert(0, {str(Path(confinement.__file__).parent)!r})
import confinement
del sys.path[0]
policy = confinement.Policy(
    memory_bytes={memory_bytes}, threads=16, open_files=64, die_with_parent=False
)
confinement.become({os.path.realpath(find_monty_binary())!r}, sys.argv[1:], policy)
"""
        )
        self.path.chmod(0o700)

    def close(self) -> None:
        """Remove the file."""
        self._directory.cleanup()
