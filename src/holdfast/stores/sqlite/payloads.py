"""Payload rows and the refs that say which session may read which payload.

Small payloads are rows. Large ones are blob files that are written before the transaction; it then
proves, holding the write lock, that the file is still there. Gc removes a file only under the same
lock and only while no row names it, so neither can overtake the other.

All functions run inside a transaction that the caller holds.
"""

from __future__ import annotations

import time
from binascii import unhexlify
from collections.abc import Iterable
from typing import Any, NamedTuple

import apsw

from holdfast.blobs.port import BlobStore
from holdfast.core.errors import Corruption, HoldfastError
from holdfast.core.log import Batch
from holdfast.core.payloads import Reach, Slot, check_bytes, check_size
from holdfast.core.state import State
from holdfast.stores import rows
from holdfast.stores.port import ROW_PAYLOAD_BYTES
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.sessions import SessionRow


class BlobSwept(HoldfastError):
    """A blob was collected between its put and this transaction: put it again and retry."""


class Found(NamedTuple):
    """A payload row as one session sees it; `used` is None where it has no ref."""

    key: int
    size: int
    in_file: bool
    used: int | None


def raw(payload_id: str) -> bytes:
    """Return the bytes of a content id."""
    return unhexlify(payload_id[7:])


def named(digest: bytes) -> str:
    """Return the content id of its bytes."""
    if type(digest) is not bytes:
        raise Corruption(
            f"a payload is named by {digest!r}, which is no digest: the row is damaged; run "
            "`holdfast verify` and restore its session from an export"
        )
    return "sha256:" + digest.hex()


def find(cursor: apsw.Cursor, row: SessionRow, payload_id: str) -> Found | None:
    """Return a payload of the session's tenant."""
    wanted = (row.key, row.tenant_key, raw(payload_id))
    found: Any = cursor.execute(SQL["find_payload"], wanted).fetchone()
    return None if found is None else Found._make(found)


def keep(
    cursor: apsw.Cursor,
    blobs: BlobStore,
    row: SessionRow,
    items: Iterable[Slot],
    *,
    used: bool,
    loose: frozenset[str] = frozenset(),
) -> None:
    """Store payloads whose bytes are at hand, and that this session may read them.

    Those that are `loose` are not used, whatever is said of all.
    """
    given = list(items)
    for item in given:
        if item.size > ROW_PAYLOAD_BYTES and not blobs.has(row.tenant, item.id):
            raise BlobSwept(payload=item.id)
    for one in stored(row, given, used=used, loose=loose):
        insert(cursor, one)


def stored(
    row: SessionRow, items: Iterable[Slot], *, used: bool, loose: frozenset[str] = frozenset()
) -> list[tuple[Any, ...]]:
    """Return the rows of payloads whose bytes are at hand or in files."""
    at = int(time.time() * 1000)
    return [
        (
            row.tenant_key,
            raw(item.id),
            item.size,
            at,
            None if item.size > ROW_PAYLOAD_BYTES else item.data,
            row.key,
            used and item.id not in loose,
        )
        for item in items
    ]


def insert(cursor: apsw.Cursor, payload: tuple[Any, ...]) -> None:
    """Add a payload's row where it is new, and say that its session may read it."""
    cursor.execute(SQL["insert_payload"], payload)
    if cursor.connection.changes():
        return
    tenant_key, digest, _, at, _, session, used = payload
    found: Any = cursor.execute(SQL["find_payload"], (session, tenant_key, digest)).fetchone()
    known = Found._make(found)
    if not used:
        cursor.execute(SQL["touch_payload"], (at, known.key))  # gc is not to take it for old
    if known.used is None or known.used < used:
        _refer(cursor, known.key, session, used=used)


def _refer(cursor: apsw.Cursor, key: int, session: int, *, used: bool) -> None:
    """Say that a session may read a payload: in its row where it came first, else by a ref."""
    cursor.execute(SQL["mark_first_session"], (key, session, used))
    if not cursor.connection.changes():
        cursor.execute(SQL["use_ref" if used else "stage_ref"], (key, session))


def unuse(cursor: apsw.Cursor, key: int, session: int) -> None:
    """Leave to gc whether a session still needs a payload."""
    cursor.execute(SQL["unuse_first_session"], (key, session))
    cursor.execute(SQL["unuse_ref"], (key, session))


def heal(cursor: apsw.Cursor, blobs: BlobStore, row: SessionRow, item: Slot) -> None:
    """Make good what a session refers to: its bytes, its row and the ref; erased stays erased."""
    found = find(cursor, row, item.id)
    if (found is None or found.used is None) and _erasure(cursor, row, item.id) is not None:
        return
    data = None if item.size > ROW_PAYLOAD_BYTES else item.data
    if found is not None:
        stored: Any = cursor.execute(SQL["payload_data"], (found.key,)).fetchone()
        if (found.size, stored[0]) != (item.size, data):
            cursor.execute(SQL["heal_payload"], (item.size, data, found.key))
    if found is None or not found.used:
        keep(cursor, blobs, row, [item], used=True)


def is_proven(before: State, item: Slot) -> bool:
    """Tell whether what a payload in use leads to is known to be here.

    Equal bytes may stand as a user's text too: that a payload is in use does not say that it was
    ever proven as a manifest, but the namespace of the log so far was.
    """
    return item.encoding != "manifest" or item == before.vars


def prove(
    cursor: apsw.Cursor,
    blobs: BlobStore,
    row: SessionRow,
    batch: Batch,
    source: SessionRow | None,
    before: State,
    *,
    used: bool,
) -> set[str]:
    """Check that payloads referred to without bytes are here and may be referred to.

    Those that are `used` are the ones that events lead to, the others those that are loose. Return
    what comes with the append and a manifest stored before leads to.
    """
    brought: set[str] = set()
    bare = (item for item in batch.refs.values() if item.id not in batch.payloads)
    reach = Reach(item for item in bare if (item.id in batch.loose) is not used)
    for item in reach:
        if item.erased is not None:
            continue
        if item.id in batch.payloads:
            check_size(item, batch.payloads[item.id].size)
            brought.add(item.id)
            continue
        found = _standing(cursor, row, item, batch, source)
        if found is None:
            continue  # a manifest is not rewritten when a part of it is erased
        if found.in_file and not blobs.has(row.tenant, item.id):
            raise rows.missing_error(row.id, item.id)
        check_size(item, found.size)
        if found.used is None or found.used < used:
            _refer(cursor, found.key, row.key, used=used)
        elif is_proven(before, item):
            continue
        if item.encoding == "manifest":
            reach.follow(item, data_of(cursor, blobs, row, item.id, found))
    return brought


def _standing(
    cursor: apsw.Cursor, row: SessionRow, item: Slot, batch: Batch, source: SessionRow | None
) -> Found | None:
    """Return a payload that a session may refer to, None for an erased part of a manifest."""
    found = find(cursor, row, item.id)
    if found is not None and found.used is not None:
        return found
    erasure = _erasure(cursor, row, item.id)
    if erasure is not None:
        if item.id in batch.refs:
            raise rows.erased_error(item.id, *erasure)
        return None
    if found is None or not _may_adopt(cursor, row, source, found.key):
        raise rows.foreign_error(row.id, item.id)
    return found


def _may_adopt(
    cursor: apsw.Cursor, row: SessionRow, source: SessionRow | None, payload: int
) -> bool:
    if source is None or source.tenant_key != row.tenant_key:
        return False
    return cursor.execute(SQL["has_ref"], (payload, source.key)).fetchone() is not None


def _check_not_erased(cursor: apsw.Cursor, row: SessionRow, payload_id: str) -> None:
    found = _erasure(cursor, row, payload_id)
    if found is not None:
        raise rows.erased_error(payload_id, *found)


def _erasure(cursor: apsw.Cursor, row: SessionRow, payload_id: str) -> Any:
    return cursor.execute(SQL["get_erasure"], (row.key, raw(payload_id))).fetchone()


def gone(cursor: apsw.Cursor, row: SessionRow, said: set[str]) -> dict[str, tuple[str, str]]:
    """Return what was erased from a session, but for what was said or put again since."""
    found: Any = cursor.execute(SQL["list_erasures"], (row.key,)).fetchall()
    marks = {named(digest): (at, rule) for digest, at, rule in found}
    here = {key: find(cursor, row, key) for key in marks.keys() - said}
    return {key: marks[key] for key, item in here.items() if item is None or item.used is None}


def mark_erased(cursor: apsw.Cursor, row: SessionRow, item: Slot) -> None:
    """Note an erasure that a log brings along."""
    if item.erased is not None:
        mark = (row.key, raw(item.id), item.erased.at, item.erased.rule)
        cursor.execute(SQL["put_erasure"], mark)


def readable(cursor: apsw.Cursor, row: SessionRow, payload_id: str) -> Found:
    """Return a payload that a session may read; say why where it may not."""
    found = find(cursor, row, payload_id)
    if found is None or found.used is None:
        _check_not_erased(cursor, row, payload_id)
        raise rows.foreign_error(row.id, payload_id)
    return found


def data_of(
    cursor: apsw.Cursor, blobs: BlobStore, row: SessionRow, payload_id: str, found: Found
) -> bytes:
    """Return the stored bytes of a payload; their digest is the caller's to check."""
    if found.in_file:
        data = blobs.get(row.tenant, payload_id)
    else:
        data = cursor.execute(SQL["payload_data"], (found.key,)).get
    if data is None:
        raise rows.missing_error(row.id, payload_id)
    if type(data) is not bytes:
        raise Corruption(
            f"payload {payload_id!r} of session {row.id!r} is stored as {type(data).__name__}: the "
            "row is damaged; restore it from an export",
            payload=payload_id,
            session=row.id,
        )
    return data


def closure(
    cursor: apsw.Cursor, blobs: BlobStore, row: SessionRow, slots: Iterable[Slot]
) -> set[str]:
    """Return the payloads that slots lead to, manifests followed; Corruption where one is gone."""
    met: set[str] = set()
    reach = Reach(slots)
    for item in reach:
        if item.erased is not None:
            continue
        met.add(item.id)
        if item.encoding == "manifest":
            found = find(cursor, row, item.id)
            if found is not None and found.used is not None:
                data = data_of(cursor, blobs, row, item.id, found)
                reach.follow(item, check_bytes(item, data))
            elif _erasure(cursor, row, item.id) is None:
                raise rows.missing_error(row.id, item.id)
    return met


def let_go(cursor: apsw.Cursor, row: SessionRow, found: Found) -> None:
    """Take a session's ref away, and the payload where it was the last."""
    cursor.execute(SQL["forget_first_session"], (found.key, row.key))
    cursor.execute(SQL["delete_ref"], (found.key, row.key))
    if cursor.execute(SQL["is_referred"], (found.key,)).fetchone() is None:
        cursor.execute(SQL["delete_payload"], (found.key,))
