"""Writes that were computed ahead, on the event loop, while the writer commits others.

They come down to rows of the view `foreseen`, whose triggers do them where everything is still as
it was thought to be, and end the transaction where it is not. So one statement writes a whole
group, and while it does and syncs the disk the event loop has the interpreter for itself.
"""

from __future__ import annotations

import functools
import re
import time
from binascii import unhexlify
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import apsw
import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event, now
from holdfast.core.facts import Fact
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_key
from holdfast.core.log import Batch, complete, draft
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.stores import snapshots
from holdfast.stores.port import ROW_PAYLOAD_BYTES, Appended, Lease
from holdfast.stores.sqlite import payloads, sessions
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.events import data_text
from holdfast.stores.sqlite.sessions import SessionRow

AHEAD_FACTS = 32
AHEAD_BYTES = 256 * 1024
"""An append of more is computed in the writer's thread, so that the event loop goes on."""

_SIZES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8), 96, 128)
"""How many rows a statement has; what is missing is made up by empty ones."""

_ROW = re.compile(r"\(\s*\?[?,\s]*\)")
_NAMES = re.findall(r"\w+", SQL["foreseen"].partition("VIEW foreseen (")[2].partition(")")[0])
_COLUMNS = len(_NAMES)
MOST_ROWS = _SIZES[-1]
MOST_VALUES = MOST_ROWS * _COLUMNS
"""What fits into one statement."""
_NO_MOVE = (None,) * 5
_NO_EVENT = (None,) * 6
_NO_PAYLOAD = (None,) * 3


class Request(msgspec.Struct, frozen=True, gc=False):
    """What a caller asks to append."""

    lease: Lease
    after_seq: int
    facts: Sequence[Fact]
    head: HeadDraft | None
    edges: Sequence[EdgeDraft]
    consumes: Sequence[str]
    payloads: Sequence[Slot]
    adopt_from: str | None
    release: bool


class Foreseen(msgspec.Struct, frozen=True, gc=False):
    """A write as computed from the state in memory, down to the rows of the view."""

    row: SessionRow
    done: Appended | Lease
    values: list[Any]


def prepare(connection: apsw.Connection) -> None:
    """Make the view and its triggers, which belong to one connection."""
    connection.pragma("temp_store", "memory")
    connection.execute(SQL["foreseen"])


def foresee(known: tuple[SessionRow, State] | None, request: Request) -> Foreseen | None:
    """Compute a small append from the state in memory; None where that cannot tell the outcome.

    This runs on the event loop while the writer commits, and writes nothing.
    """
    if known is None or request.adopt_from is not None or len(request.facts) > AHEAD_FACTS:
        return None
    row, state = known
    if state.seq != request.after_seq or len(request.consumes) > 1:
        return None
    if type(request.lease.epoch) is not int:
        return None  # SQLite would take the text of a number for it
    try:
        for key in request.consumes:
            check_key(key, "inbox key")
        drafted = draft(state, request.facts, now(), request.head, request.edges, request.payloads)
        if _is_much(drafted.slots):
            return None
        batch = complete(drafted)
    except HoldfastError:
        return None  # the transaction looks itself, and says why
    needs = {} if batch.refs is batch.payloads else _needs(state, batch)
    if needs is None:
        return None
    # A lease is given back like this only where nothing waits.
    done = Appended(batch.events, batch.state, batch.head, 0 if request.release else None)
    return Foreseen(row, done, _values(row, state, request, batch, needs))


def _is_much(slots: Sequence[Slot]) -> bool:
    if len(slots) == 1:
        return slots[0].size > ROW_PAYLOAD_BYTES and slots[0].data is not None
    sizes = [item.size for item in slots if item.data is not None]
    return bool(sizes) and (max(sizes) > ROW_PAYLOAD_BYTES or sum(sizes) > AHEAD_BYTES)


def _needs(state: State, batch: Batch) -> dict[str, int] | None:
    """Return the payloads that have to be in use already; None where that would not be enough."""
    if batch.loose:
        return None
    needs: dict[str, int] = {}
    for payload_id, item in batch.refs.items():
        if payload_id in batch.payloads:
            continue
        if item.size > ROW_PAYLOAD_BYTES or not payloads.is_proven(state, item):
            return None
        needs[payloads.raw(payload_id).hex()] = item.size
    return needs


def foresee_lease(
    known: tuple[SessionRow, State] | None, owner: str, epoch: int | None
) -> Foreseen | None:
    """Compute the lease of a session that nobody drove since the one of that epoch."""
    if known is None:
        return None
    row, state = known
    last = row.epoch if epoch is None else epoch
    if type(last) is not int:
        return None  # a damaged row
    lease = Lease(row.id, owner, last + 1, state.seq)
    told = {"session": row.key, "epoch": lease.epoch, "was_seq": lease.seq}
    values = list(map((told | {"seldom": _json({"takes": owner})}).get, _NAMES))
    return Foreseen(row, lease, values)


def _values(
    row: SessionRow, before: State, request: Request, batch: Batch, needs: dict[str, int]
) -> list[Any]:
    lease, last, items = request.lease, batch.events[-1], [*batch.payloads.values()]
    at = time.time_ns() // 1_000_000
    values = [
        row.key,
        row.tenant_key,
        lease.owner,
        lease.epoch,
        before.seq,
        unhexlify(before.digest),
        _seldom(request, before, batch.state, needs),
        *_event_columns(last),
        *(_payload_columns(items.pop(), at) if items else _NO_PAYLOAD),
    ]
    if last.seq == before.seq + 1 and not items:
        return values
    earlier: list[Any] = []
    for event, item in zip_longest(batch.events[:-1], items):
        earlier += (row.key, row.tenant_key, *_NO_MOVE)
        earlier += _NO_EVENT if event is None else _event_columns(event)
        earlier += _NO_PAYLOAD if item is None else _payload_columns(item, at)
    return earlier + values


def _event_columns(event: Event) -> tuple[Any, ...]:
    digest = unhexlify(event.digest)
    return event.seq, event.type, event.version, event.at, digest, data_text(event)


def _payload_columns(item: Slot, at: int) -> tuple[Any, ...]:
    return payloads.raw(item.id), at, item.data


def _seldom(request: Request, before: State, after: State, needs: dict[str, int]) -> str | None:
    told: dict[str, Any] = {"needs": needs} if needs else {}
    if not sessions.stands_as_before(before, after):
        told |= zip(sessions.STANDING, sessions.standing(after), strict=True)
    if request.consumes:
        told["item"] = request.consumes[0]
    if request.release:
        told["leaves"] = True
    if snapshots.is_due(before.seq, after.seq):
        taken = snapshots.take(after)
        told |= {"fold": taken.fold, "checksum": taken.checksum, "body": taken.body.hex()}
    return _json(told) if told else None


def _json(told: dict[str, Any]) -> str:
    return msgspec.json.encode(told).decode()


def write(cursor: apsw.Cursor, items: Sequence[Foreseen]) -> None:
    """Do what was foreseen; ConstraintError, and nothing at all, where not all is as thought.

    Up to MOST_VALUES are one statement, and so a transaction of their own where there is none.
    """
    if len(items) == 1 and len(items[0].values) == _COLUMNS:
        cursor.execute(_statement(1), items[0].values)
        return
    values = list(chain.from_iterable([item.values for item in items]))
    for start in range(0, len(values), MOST_VALUES):
        part = values[start : start + MOST_VALUES]
        rows = len(part) // _COLUMNS
        size = _SIZES[bisect_left(_SIZES, rows)]
        part += [None] * ((size - rows) * _COLUMNS)
        cursor.execute(_statement(size), part)


@functools.cache
def _statement(size: int) -> str:
    return _ROW.sub(lambda row: ", ".join([row[0]] * size), SQL["do_foreseen"])
