"""Files and images as inputs: what a caller hands to a turn that is not a value of the namespace.

A file of any size stays where it is: the log has its path, size and digest, and the code gets those
as a dict and reads the file itself, which the gate `read` must allow. A file that has changed since
then would make a resume, a fork or a replay something else, so it is found before every cell. An
image is shown to the model as part of the message, and its bytes are a variable as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.capability import Capability
from holdfast.core.errors import InputFileChanged, InvalidInput, NotFound, SessionDeleted
from holdfast.core.facts import TurnStarted
from holdfast.core.messages import Image, Message
from holdfast.core.payloads import Slot, slot
from holdfast.runtime.calls import pages
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate

KIND = "artifact"
"""The kind of an input that describes a file; what code hands to a child is never of it."""


def split(message: Message, inputs: Mapping[str, Any]) -> tuple[Message, dict[str, Any], list[str]]:
    """Return the message with the images of the inputs, the values, and which name files."""
    images = [(name, item) for name, item in inputs.items() if isinstance(item, Image)]
    parts = tuple(Image(item.data, item.media_type, item.name or name) for name, item in images)
    bound = {**inputs, **{name: item.data for name, item in images}}
    files = [name for name, item in bound.items() if isinstance(item, os.PathLike)]
    return Message(message.role, (*message.parts, *parts)), bound, files


async def described(name: str, path: os.PathLike[Any], capability: Capability) -> dict[str, Any]:
    """Return what the log has of a file; raise InvalidInput where code could not read it."""
    return await asyncio.to_thread(_described, name, path, capability)


def _described(name: str, path: os.PathLike[Any], capability: Capability) -> dict[str, Any]:
    real = os.path.realpath(os.fsdecode(path))
    roots = [os.path.realpath(root) for root in capability.read_roots]
    if not any(Path(real).is_relative_to(root) for root in roots):
        raise InvalidInput(
            f"input {name!r} is the file {real!r}, which the code may not read; put it into the "
            "work area, or let the gate 'read' allow its folder"
        )
    found = _digest(real)
    if found is None:
        raise InvalidInput(f"input {name!r}: {real!r} is not a regular file that can be read")
    return {"path": real, "bytes": found[0], "sha256": found[1]}


def slots(files: Mapping[str, dict[str, Any]]) -> dict[str, Slot]:
    """Return the slots of file inputs."""
    return {name: slot(record, KIND) for name, record in files.items()}


def card(record: Mapping[str, Any]) -> str:
    """Return what the model is told of a file."""
    return f"a file of {record['bytes']:,} bytes to be read from {record['path']!r}, its 'path'"


class InputFiles:
    """The files that the log of one session names, and whether they are still the same."""

    def __init__(self, store: SessionStore, session: str) -> None:
        self._store, self._session = store, session
        self._known: dict[str, str] = {}
        self._seen: dict[str, tuple[int, ...]] = {}

    def add(self, items: Iterable[Slot]) -> None:
        """Take note of inputs whose bytes are at hand."""
        for item in items:
            if item.kind == KIND:
                record: Any = item.value()
                self._known[str(record["path"])] = str(record["sha256"])

    async def check(self) -> None:
        """Raise InputFileChanged where a file is not what it was when it was handed in."""
        for path, digest in self._known.items():
            if not await asyncio.to_thread(self._is_same, path, digest):
                raise InputFileChanged(
                    f"the file {path!r}, an input of session {self._session!r}, has changed or is "
                    "gone; put back the one that was handed in and resume, or fork from a head "
                    "before it and hand in the new one",
                    path=path,
                )

    async def load(self) -> None:
        """Take note of what the log names."""
        for session, last in [(self._session, None), *await self._origins()]:
            async for event in pages(self._store, session, 0, [TurnStarted.TYPE]):
                fact = event.fact()
                if last is not None and event.seq > last:
                    break
                assert isinstance(fact, TurnStarted)
                files = [item for item in fact.inputs.values() if item.kind == KIND]
                self.add([await hydrate(self._store, session, item) for item in files])

    async def _origins(self) -> list[tuple[str, int]]:
        """Return what a fork was taken from, as far as it is in the store, and up to where."""
        found: list[tuple[str, int]] = []
        state = await self._store.load_state(self._session)
        while state.origin is not None:
            source = str(state.origin["session"])
            try:
                state = await self._store.load_state(source)
            except (NotFound, SessionDeleted):
                break
            found.append((source, state.seq))
        return found

    def _is_same(self, path: str, digest: str) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        sign = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if self._seen.get(path) == sign:
            return True
        read = _digest(path)
        if read is None or read[1] != digest:
            return False
        self._seen[path] = sign
        return True


def _digest(path: str) -> tuple[int, str] | None:
    """Return size and digest of a regular file; None for anything else."""
    try:
        # Without waiting: a pipe would block whoever opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        return found.st_size, "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
