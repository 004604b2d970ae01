"""Gc: refs first, then rows in one transaction and files in a later one.

A ref that is not marked as used is only a candidate: it goes when its payload is older than the
grace and no event and no inbox item of its session leads there, which is read beside the writer.
A payload row goes when it has no refs and is older than the grace. Its file goes under the write
lock of another transaction, after a second look shows that no row came back. A file that never had
a row (its put was cut short, or lost a race) is swept by the same rule.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.blobs.port import BlobEntry, BlobStore
from holdfast.core.errors import Corruption, InvalidInput, SessionDeleted, SessionNotFound
from holdfast.core.payloads import walk
from holdfast.stores.sqlite import events, leases, payloads, sessions
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.payloads import named, raw

logger = logging.getLogger("holdfast.stores")

BATCH = 500


@dataclass(frozen=True, slots=True)
class Orphan:
    """A payload that nothing uses."""

    key: int
    tenant: str
    id: str
    size: int
    in_file: bool


class StaleRef(NamedTuple):
    """A session's right to a payload that it has put, as it seems, and never used."""

    payload: int
    session: int


def stale(cursor: apsw.Cursor, cutoff: int) -> dict[str, dict[str, int]]:
    """Return by session the payloads, id to key, that may be unused since the cutoff."""
    found: dict[str, dict[str, int]] = {}
    rows: Any = cursor.execute(SQL["list_stale_refs"], (cutoff,))
    for session_id, key, digest in rows:
        found.setdefault(session_id, {})[named(digest)] = key
    return found


def unused(
    cursor: apsw.Cursor, blobs: BlobStore, session_id: str, candidates: dict[str, int]
) -> list[StaleRef]:
    """Return the refs among the candidates that nothing in the session leads to."""
    try:
        row = sessions.find(cursor, session_id)
        slots = [item for event in events.read(cursor, row) for item in walk(event.data)]
        slots += [item.content for item in leases.items(cursor, row) if item.content is not None]
        used = payloads.closure(cursor, blobs, row, slots)
    except (SessionNotFound, SessionDeleted):
        return []
    except (Corruption, InvalidInput):
        logger.warning("session %r is damaged: gc keeps all its payloads", session_id)
        return []
    return [StaleRef(key, row.key) for id, key in candidates.items() if id not in used]


def drop(refs: Sequence[StaleRef], cutoff: int, cursor: apsw.Cursor) -> None:
    """Take refs away, but for those that were used or put again meanwhile."""
    stale = [(*ref, cutoff) for ref in refs]
    cursor.executemany(SQL["forget_stale_first_session"], stale)
    cursor.executemany(SQL["delete_stale_ref"], stale)


def orphans(cursor: apsw.Cursor, cutoff: int, without: Sequence[StaleRef] = ()) -> Iterator[Orphan]:
    """Yield payloads last put before the cutoff that have no refs, or none but those given."""
    gone = msgspec.json.encode([f"{ref.payload} {ref.session}" for ref in without]).decode()
    last = 0
    while True:
        bounds = (cutoff, last, gone, BATCH)
        found: list[Any] = cursor.execute(SQL["find_orphans"], bounds).fetchall()
        for key, tenant, digest, size, in_file in found:
            payload_id = named(digest)
            if type(size) is not int:
                logger.warning("payload %r has the size %r: its row is damaged", payload_id, size)
                size = 0
            yield Orphan(key, tenant, payload_id, size, bool(in_file))
        if len(found) < BATCH:
            return
        last = found[-1][0]


def collect(cutoff: int, cursor: apsw.Cursor) -> list[Orphan]:
    """Remove one batch of orphan rows and return them; their files are still there."""
    gone = list(islice(orphans(cursor, cutoff), BATCH))
    cursor.executemany(SQL["delete_payload"], [(orphan.key,) for orphan in gone])
    return gone


def without_rows(cursor: apsw.Cursor, entries: Sequence[BlobEntry]) -> list[BlobEntry]:
    """Return the blobs that no row names."""
    return [e for e in entries if not _has_row(cursor, e.tenant, e.id)]


def sweep(
    blobs: BlobStore, named_blobs: Sequence[tuple[str, str]], cursor: apsw.Cursor
) -> list[str]:
    """Remove blob files that no row names, holding the write lock; return their ids."""
    gone = []
    for tenant, blob_id in named_blobs:
        if not _has_row(cursor, tenant, blob_id):
            blobs.remove(tenant, blob_id)
            gone.append(blob_id)
    return gone


def count(cursor: apsw.Cursor) -> int:
    """Return how many payloads there are."""
    return int(cursor.execute(SQL["count_payloads"]).get)


def _has_row(cursor: apsw.Cursor, tenant: str, blob_id: str) -> bool:
    found = cursor.execute(SQL["payload_exists"], (tenant, raw(blob_id))).fetchone()
    return found is not None
