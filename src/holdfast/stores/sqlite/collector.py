"""Gc: rows in one transaction, files in a later one.

A payload row goes when nothing uses it and it is older than the grace. Its file goes under the
write lock of another transaction, after a second look shows that no row came back. A file that
never had a row (its put was cut short, or lost a race) is swept by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from holdfast.blobs.port import BlobEntry, BlobStore
from holdfast.stores.sqlite import leases
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.payloads import named, raw

BATCH = 500


@dataclass(frozen=True, slots=True)
class Orphan:
    """A payload that nothing uses."""

    key: int
    tenant: str
    id: str
    size: int
    in_file: bool


def orphans(cursor: apsw.Cursor, cutoff: int) -> Iterator[Orphan]:
    """Yield payloads that nothing uses and that were last put before the cutoff."""
    last = 0
    while True:
        found: list[Any] = cursor.execute(SQL["find_orphans"], (cutoff, last, BATCH)).fetchall()
        for key, tenant, digest, size, in_file in found:
            yield Orphan(key, tenant, named(digest), size, bool(in_file))
        if len(found) < BATCH:
            return
        last = found[-1][0]


def collect(cutoff: int, cursor: apsw.Cursor) -> list[Orphan]:
    """Remove one batch of orphan rows and return them; their files are still there."""
    found: list[Any] = cursor.execute(SQL["find_orphans"], (cutoff, 0, BATCH)).fetchall()
    gone = [Orphan(key, tenant, named(digest), *rest) for key, tenant, digest, *rest in found]
    for orphan in gone:
        cursor.execute(SQL["delete_refs_of_payload"], (orphan.key,))
        cursor.execute(SQL["delete_payload"], (orphan.key,))
    return gone


def tidy(cutoff: int, cursor: apsw.Cursor) -> None:
    """Remove rights to payloads that were put and never used, and owners that are gone."""
    cursor.execute(SQL["delete_stale_refs"], (cutoff,))
    leases.forget_dead_owners(cursor)


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
