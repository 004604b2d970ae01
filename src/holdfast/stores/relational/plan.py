"""Plans: what a relational store does in one transaction, apart from how a database runs it.

A plan is a generator. It yields steps, gets the result of each sent back, and returns the outcome.
SQLite runs it with a synchronous cursor in the writer's thread, PostgreSQL with an async
connection, so one rule serves both. The SQL of a step is looked up by its name in the backend's
query file. A plan may be run again after a rollback, so it keeps nothing but states, which are
compared with the log on each use.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """Run a statement; its result is the list of its rows."""

    name: str
    values: tuple[Any, ...] | dict[str, Any] = ()


class Change(msgspec.Struct, frozen=True, gc=False):
    """Run a statement that writes.

    Where it is `counted` its result is the number of rows that it changed. Else there is none, and
    a database that is asked over a network need not be waited for.
    """

    name: str
    values: tuple[Any, ...] | dict[str, Any] = ()
    counted: bool = False


class ChangeMany(msgspec.Struct, frozen=True, gc=False):
    """Run a statement that writes once for each of several rows of values."""

    name: str
    rows: list[tuple[Any, ...]]


class HasBlob(msgspec.Struct, frozen=True, gc=False):
    """Look whether a blob is stored; the result is True or False."""

    tenant: str
    id: str


class ReadBlob(msgspec.Struct, frozen=True, gc=False):
    """Read a blob; the result is its bytes, or None where there is none."""

    tenant: str
    id: str


class RemoveBlob(msgspec.Struct, frozen=True, gc=False):
    """Remove a blob; removing one that is not there does nothing."""

    tenant: str
    id: str


class Clock(msgspec.Struct, frozen=True, gc=False):
    """Ask for the store's clock; the result is milliseconds since the epoch."""


Step = Query | Change | ChangeMany | HasBlob | ReadBlob | RemoveBlob | Clock
Plan = Generator[Step, Any, T]


def first(name: str, *values: Any) -> Plan[Any]:
    """Return the first row of a query, None where there is none."""
    rows = yield Query(name, values)
    return rows[0] if rows else None


def each(plans: Iterable[Plan[Any]]) -> Plan[None]:
    """Run plans one after the other."""
    for plan in plans:
        yield from plan


class Job(msgspec.Struct, Generic[T], eq=False):
    """A plan on its way through a writer.

    `plan` makes the plan anew for each run. `settled` is called after the commit with the result,
    and `moved` returns from it which sessions are now at which positions. `stored` makes a plan
    that looks, after a commit with an unknown outcome, whether the work was committed; it is None
    where that cannot be known. `scrubs` says that bytes were removed for good: the writer also
    clears what its database keeps of them. `collects` says that payloads or rights to them are
    taken away: no other job of the store, in any process, is under way meanwhile.
    """

    plan: Callable[[], Plan[T]]
    session: str | None = None
    settled: Callable[[T], None] | None = None
    stored: Callable[[T], Plan[bool]] | None = None
    moved: Callable[[T], Sequence[tuple[str, int]]] | None = None
    scrubs: bool = False
    collects: bool = False
    result: T | None = None
    error: BaseException | None = None
    outcome: asyncio.Future[T] | None = None
    done: threading.Event | None = None
