"""Find the quickest Python of this machine, and print its path.

One that was built without profile-guided optimisation takes a third longer for the same code.
Figures should tell of Holdfast and not of that, so the bench runs on the best that is at hand; each
table says which one it was.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROUNDS = 5
_NAME = re.compile(r"python3(\.\d+)?")
_WHICH = """
import os, sys
assert sys.version_info >= (3, 11)
print(os.path.realpath(sys.executable))
"""
_TIMED = """
import time
def work():
    made = [{"id": n, "text": str(n)} for n in range(20000)]
    return sum(len(item["text"]) for item in made if item["id"] % 3)
took = []
for _ in range(10):
    started = time.perf_counter()
    work()
    took.append(time.perf_counter() - started)
print(min(took))
"""


def candidates() -> list[str]:
    """Return the Pythons on the path that Holdfast runs on, each once."""
    paths = [
        str(path)
        for folder in os.get_exec_path()
        for path in sorted(Path(folder).glob("python3*"))
        if _NAME.fullmatch(path.name)
    ]
    # Some are only called so, and start another.
    found = {_said_by(path, _WHICH) for path in [sys.executable, *paths]}
    return sorted(found - {""})


def quickest(pythons: list[str]) -> str:
    """Return the one that takes least; all have their turns, as a machine has its moods."""
    took = {python: float("inf") for python in pythons}
    for _ in range(ROUNDS):
        for python in pythons:
            took[python] = min(took[python], float(_said_by(python, _TIMED) or "inf"))
    return min(pythons, key=lambda python: took[python])


def _said_by(python: str, script: str) -> str:
    """Return what a Python prints for a script; nothing where it cannot run it."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    print(quickest(candidates()))
