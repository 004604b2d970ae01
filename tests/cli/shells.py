"""The command in a process of its own, and scripts for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from holdfast.cli.main import run as run_here
from holdfast.core.errors import SessionNotFound
from holdfast.stores.choose import open_store

COMMAND = (sys.executable, "-m", "holdfast")
SECONDS = 60
DRIVING = {"run", "send", "resume", "demo"}


def cell(code):
    """Return a reply with one code block."""
    return f"```python\n{code}\n```"


def until(path, then):
    """Return a reply whose code runs until a file is there, and then goes on."""
    wait = f"import os, time\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.01)"
    return cell(f"{wait}\n{then}")


class Shell:
    """A folder with a store, and commands that run there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = str(place / "store")
        binaries = str(Path(sys.executable).parent)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
        } | {"HOLDFAST_STORE": self.store, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}

    def script(self, *lines, name="script.jsonl"):
        """Write a script and return the model's name; a plain string is a step's reply."""
        full = [{"reply": line} if isinstance(line, str) else line for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in full)
        (self.place / name).write_text(text, encoding="utf-8")
        return f"script:{self.place / name}"

    def run(self, *words, input=None, environment=None):
        """Run a command and return what it did."""
        return subprocess.run(
            [*COMMAND, *words],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            cwd=self.place,
            env=self.environment | (environment or {}),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
        )

    def inside(self, *words):
        """Do a command in this process, as `run` does in its own; for commands that only look."""
        out, told = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.place),
            patch.dict(os.environ, self.environment, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(told),
        ):
            code = run_here(list(words))
        return subprocess.CompletedProcess(words, code, out.getvalue(), told.getvalue())

    def json(self, *words, code=0):
        """Do a command with --json and return its document."""
        do = self.inside if DRIVING.isdisjoint(words) else self.run
        done = do(*words, "--json")
        assert done.returncode == code, done
        return json.loads(done.stdout)

    def lines(self, *words):
        """Do a command whose documents come one a line."""
        done = self.inside(*words, "--json")
        assert done.returncode == 0, done
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, *words, **options):
        """Start a command and return its process."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            **{"stdout": pipe, "stderr": pipe, "encoding": "utf-8"} | options,
        )

    def wait_for(self, session, kind, count=1):
        """Wait until the log of a session has so many events of a type."""
        asyncio.run(asyncio.wait_for(self._wait_for(session, kind, count), SECONDS))

    async def _wait_for(self, session, kind, count):
        store = await open_store(self.store)
        try:
            async with store.subscribe_all() as hints:
                while True:
                    try:
                        events = await store.read_events(session, types=[kind])
                    except SessionNotFound:
                        events = []
                    if len(events) >= count:
                        return
                    await anext(aiter(hints))
        finally:
            await store.close()
