"""Brokers: what a trusted session may do to the world, as recorded calls of the host.

The kernel itself never writes, starts a program or opens a connection. Where the capability opens
those gates, the module `work` offers them as functions that run here, each call in the ledger with
its effect class, each checked against its gate at the moment it is made.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.core.capability import Capability
from holdfast.core.errors import CapabilityDenied
from holdfast.runtime.outbound import OutboundRequests
from holdfast.runtime.programs import Output, run_program
from holdfast.runtime.tools import Tool, Toolset

MODULE = "work"
SHELL_SECONDS = 300
OUTPUT_BYTES = 1 << 20


def work_tools(
    capability: Capability, work_area: str, hidden: tuple[str, ...] = ()
) -> tuple[Toolset, ...]:
    """Return the toolset of the gates that are open; none if all are closed."""
    broker = Broker(capability, Path(work_area), hidden)
    functions: list[Tool] = []
    if capability.write_roots:
        functions += [
            Tool(
                "write_text",
                broker.write_text,
                "(path: str, text: str) -> int",
                "Write a text file, replacing it; return its size in bytes.",
                "idempotent",
            ),
            Tool(
                "write_bytes",
                broker.write_bytes,
                "(path: str, data: bytes) -> int",
                "Write a file, replacing it; return its size in bytes.",
                "idempotent",
            ),
            Tool("remove", broker.remove, "(path: str) -> None", "Remove a file.", "once"),
        ]
    if capability.shell_commands:
        functions.append(
            Tool(
                "run",
                broker.run,
                "(command: list[str], timeout: int = 60) -> dict",
                "Run a program in the work area; return code, stdout and stderr.",
                "once",
            )
        )
    if capability.network_hosts:
        functions += [
            Tool(
                "fetch",
                broker.fetch,
                "(url: str, headers: dict | None = None) -> dict",
                "GET a URL; return status, headers and body as bytes.",
                "idempotent",
            ),
            Tool(
                "send",
                broker.send,
                "(url: str, body: bytes, method='POST', headers: dict | None = None) -> dict",
                "Send a request with a body; return status, headers and body as bytes.",
                "once",
            ),
        ]
    if not functions:
        return ()
    prompt = "Files, programs and the network, as far as this session may use them."
    return (Toolset(MODULE, 1, tuple(functions), prompt),)


class Broker:
    """The functions of the module `work`."""

    def __init__(
        self, capability: Capability, work_area: Path, hidden: tuple[str, ...] = ()
    ) -> None:
        self._capability = capability
        self._outbound = OutboundRequests(capability)
        self._area = work_area
        self._hidden = tuple(Path(place) for place in hidden)

    def write_text(self, path: str, text: str) -> int:
        """Write a text file."""
        return self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, data: bytes) -> int:
        """Write a file: a new one beside it takes its place, so that it is never half written."""
        target = self._writable(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(part, flags, 0o644), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
        return len(data)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._writable(path).unlink()

    async def run(self, command: list[str], timeout: int = 60) -> dict[str, Any]:
        """Run a program without a shell, in its own process group, with bounded output."""
        if not isinstance(command, list) or not command or not all(map(_is_text, command)):
            raise TypeError("run() takes a list of strings: the program and its arguments")
        self._capability.require("shell_commands", command[0])
        environment = {"PATH": os.defpath, "HOME": str(self._area), "LANG": "C.UTF-8"}
        try:
            async with asyncio.timeout(min(max(int(timeout), 1), SHELL_SECONDS)):
                ended = await run_program(
                    command, folder=self._area, environment=environment, keep=OUTPUT_BYTES
                )
        except TimeoutError:
            raise TimeoutError(f"{command[0]} did not end within {timeout} seconds") from None
        return {"code": ended.code, "stdout": _told(ended.stdout), "stderr": _told(ended.stderr)}

    def fetch(self, url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """GET a URL."""
        return self._outbound.send(urllib.request.Request(url, headers=headers or {}))

    def send(
        self, url: str, body: bytes, method: str = "POST", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request with a body."""
        made = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
        return self._outbound.send(made)

    def _writable(self, path: str) -> Path:
        """Return a path whose folder, links resolved, lies below a write root."""
        if not _is_text(path) or not path or "\0" in path:
            raise TypeError("a path is a non-empty string")
        wish = self._area / path
        target = Path(os.path.realpath(wish.parent)) / wish.name
        self._capability.require("write_roots", str(target))
        if any(target.is_relative_to(place) for place in self._hidden):
            raise CapabilityDenied(f"{path!r} lies in a store of sessions", gate="write_roots")
        if wish.name in ("", ".", "..") or target.is_symlink() or target.is_dir():
            raise CapabilityDenied(f"{path!r} is a folder or a link", gate="write_roots")
        return target


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _told(output: Output) -> str:
    """Return what a program printed, with what was left out counted."""
    left = output.size - len(output.kept)
    if not left:
        return output.text
    return f"{output.text}\n[{left} of {output.size} bytes left out]"
