"""The engine port: how one database runs plans.

A store on an SQL database is `RelationalSessionStore` with an engine: SQLite has a writer thread
and a few reader threads, PostgreSQL a pool of async connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.blobs.port import BlobEntry
from holdfast.stores.relational.plan import Job, Plan

T = TypeVar("T")


class Engine(Protocol):
    """What a store needs of its database and its blobs."""

    @property
    def where(self) -> str:
        """Return which database this is, for messages."""
        ...

    def start(self, committed: Callable[[Sequence[Job[Any]]], None]) -> None:
        """Begin to run jobs; `committed` is called with each group of them, before its callers."""
        ...

    def read(self, plan: Callable[[], Plan[T]], session: str | None = None) -> Awaitable[T]:
        """Run a plan over one moment of the database, beside all writers."""
        ...

    def write(self, job: Job[T]) -> Awaitable[T]:
        """Run a job durably; once submitted it is settled even if the caller is cancelled."""
        ...

    def write_blocking(self, job: Job[T]) -> T:
        """Run a job from a thread."""
        ...

    def moved(self, watched: frozenset[str] | None) -> Iterable[tuple[str, int]]:
        """Return the sessions that others moved since the last look, with their positions."""
        ...

    def put_blob(self, tenant: str, blob_id: str, data: bytes) -> Awaitable[None]:
        """Store a large payload, durably."""
        ...

    def list_blobs(self) -> Awaitable[list[BlobEntry]]:
        """Return all blobs."""
        ...

    def sweep_blobs(self, before: float) -> Awaitable[None]:
        """Remove what unfinished puts left behind before a moment."""
        ...

    def close(self) -> None:
        """Finish what was submitted and let go of everything; blocks."""
        ...
