"""Artifacts: what nodes published, by node and version, read from the log.

The latest version of each node stands in the state. Versions are listed from the events that wrote
them; no body is read for that.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import NotFound
from holdfast.core.events import Event
from holdfast.core.payloads import Slot
from holdfast.core.run_facts import ArtifactWritten
from holdfast.stores.port import SessionStore
from holdfast.views.values import read_value

PAGE_EVENTS = 500


class ArtifactNotFound(NotFound):
    """The run has no such artifact, or not in this version."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One version of a node's artifact, without its body."""

    node: str
    version: int
    name: str | None
    seq: int
    written_at: str
    size: int
    branch: str
    iteration: dict[str, int]
    data: Slot


def _artifact(event: Event) -> Artifact | None:
    fact = event.fact() if event.known else None
    if not isinstance(fact, ArtifactWritten):
        return None
    return Artifact(
        fact.node,
        fact.version,
        fact.name,
        event.seq,
        event.at,
        fact.data.size,
        fact.branch,
        dict(fact.iteration),
        fact.data,
    )


async def scan(store: SessionStore, run: str, *, reverse: bool = False) -> AsyncIterator[Artifact]:
    """Yield every version that a run published, in order; whoever has seen enough stops."""
    after, before = 0, None
    while page := await store.read_events(
        run,
        after=after,
        before=before,
        limit=PAGE_EVENTS,
        reverse=reverse,
        types=[ArtifactWritten.TYPE],
    ):
        for event in page:
            found = _artifact(event)
            if found is not None:
                yield found
        if reverse:
            before = page[-1].seq
        else:
            after = page[-1].seq


async def versions(store: SessionStore, run: str, node: str | None = None) -> list[Artifact]:
    """Return the versions of a node's artifact, or of all, oldest first."""
    return [found async for found in scan(store, run) if node in (None, found.node)]


async def find(store: SessionStore, run: str, node: str, version: int | None = None) -> Artifact:
    """Return a version of a node's artifact, by default the latest."""
    state = await store.load_state(run)
    latest = state.artifacts.get(node)
    if latest is None:
        known = ", ".join(sorted(state.artifacts)) or "none"
        raise ArtifactNotFound(f"run {run!r} has no artifact of {node!r}; it has: {known}")
    if version is None or version == latest.version:
        (event,) = await store.read_events(run, after=latest.seq - 1, limit=1)
        found = _artifact(event)
        assert found is not None
        return found
    if 0 <= version < latest.version:
        async for found in scan(store, run, reverse=True):
            if (found.node, found.version) == (node, version):
                return found
    raise ArtifactNotFound(
        f"run {run!r} has no version {version} of {node!r}; it has 0 to {latest.version}"
    )


async def body(store: SessionStore, run: str, artifact: Artifact) -> Any:
    """Return what a version holds."""
    return await read_value(store, run, artifact.data)


def difference(old: Any, new: Any, old_name: str = "old", new_name: str = "new") -> str:
    """Return how two bodies differ, line by line."""
    lines = difflib.unified_diff(_lines(old), _lines(new), old_name, new_name, lineterm="")
    return "\n".join(lines)


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    if isinstance(value, bytes):
        return [f"{len(value)} bytes: {value[:32].hex()}"]
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr).splitlines()
