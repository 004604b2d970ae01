"""Payload rows and the refs that say which session may read which payload.

Small payloads are rows. Large ones are blobs that are written before the transaction; it then
proves, holding the lock of that payload, that the blob is still there. Gc removes a blob only under
the same lock and only while no row names it, so neither can overtake the other.
"""

from __future__ import annotations

import time
from binascii import unhexlify
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, HoldfastError
from holdfast.core.log import Batch
from holdfast.core.payloads import Reachable, Slot, check_bytes, check_size
from holdfast.core.state import State
from holdfast.stores import rows
from holdfast.stores.port import ROW_PAYLOAD_BYTES
from holdfast.stores.relational.plan import Change, HasBlob, Plan, Query, ReadBlob, first
from holdfast.stores.relational.sessions import SessionRow


class BlobSwept(HoldfastError):
    """A blob was collected between its put and this transaction: put it again and retry."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A payload row as one session sees it; `used` is None where it has no ref."""

    key: int
    size: int
    in_blob: bool
    used: int | None


def raw(payload_id: str) -> bytes:
    """Return the bytes of a content id."""
    return unhexlify(payload_id[7:])


def named(digest: bytes) -> str:
    """Return the content id of its bytes."""
    if type(digest) is not bytes:
        raise Corruption(
            f"a payload is named by {digest!r}, which is not a digest: the row is damaged; run "
            "`holdfast verify` and restore its session from an export"
        )
    return "sha256:" + digest.hex()


def ref_values(key: int, tenant: int, digest: bytes, session: int) -> dict[str, Any]:
    """Return what names a session's ref in statements; each backend uses what its tables have."""
    return {"payload": key, "tenant": tenant, "id": digest, "session": session}


def _ref(row: SessionRow, payload_id: str, found: Found) -> dict[str, Any]:
    return ref_values(found.key, row.tenant_key, raw(payload_id), row.key)


def find(row: SessionRow, payload_id: str) -> Plan[Found | None]:
    """Return a payload of the session's tenant."""
    return (yield from _find(row.tenant_key, raw(payload_id), row.key))


def _find(tenant: int, digest: bytes, session: int) -> Plan[Found | None]:
    values = {"session": session, "tenant": tenant, "id": digest}
    found = yield Query("find_payload", values)
    return Found(*found[0]) if found else None


def keep(
    row: SessionRow,
    items: Iterable[Slot],
    *,
    used: bool,
    unused: frozenset[str] = frozenset(),
) -> Plan[None]:
    """Store payloads whose bytes came along, and that this session may read them.

    Those that are `unused` are only put, whatever is said of all.
    """
    given = list(items)
    for item in given:
        if item.size > ROW_PAYLOAD_BYTES:
            yield from lock(row.tenant_key, raw(item.id))
            if not (yield HasBlob(row.tenant, item.id)):
                raise BlobSwept(payload=item.id)
    at = int(time.time() * 1000)
    for item in given:
        data = None if item.size > ROW_PAYLOAD_BYTES else item.data
        yield from _insert(row, item, at, data, used=used and item.id not in unused)


def lock(tenant: int, digest: bytes) -> Plan[None]:
    """Keep gc, or whoever stores this payload, out until the end of the transaction."""
    yield Query("lock_payload", {"tenant": tenant, "id": digest})


def _insert(row: SessionRow, item: Slot, at: int, data: bytes | None, *, used: bool) -> Plan[None]:
    """Add a payload's row where it is new, and say that its session may read it."""
    digest = raw(item.id)
    values = (row.tenant_key, digest, item.size, at, data, row.key, int(used))
    if (yield Change("insert_payload", values, counted=True)):
        return
    known = yield from _find(row.tenant_key, digest, row.key)
    assert known is not None
    if not used:  # gc is not to take it for old
        yield Change("touch_payload", _ref(row, item.id, known) | {"at": at})
    if known.used is None or known.used < used:
        yield from _refer(row, item.id, known, used=used)


def _refer(row: SessionRow, payload_id: str, found: Found, *, used: bool) -> Plan[None]:
    """Say that a session may read a payload: in its row where it came first, else by a ref."""
    values = _ref(row, payload_id, found) | {"used": int(used)}
    if not (yield Change("mark_first_session", values, counted=True)):
        yield Change("use_ref" if used else "stage_ref", values)


def adopt(row: SessionRow, item: Slot, theirs: Found) -> Plan[None]:
    """Say that a session may read a payload that another session of its tenant uses."""
    if theirs.in_blob:
        yield from lock(row.tenant_key, raw(item.id))
    found = yield from find(row, item.id)
    assert found is not None
    if not found.used:
        yield from _refer(row, item.id, found, used=True)


def unuse(row: SessionRow, payload_id: str, found: Found) -> Plan[None]:
    """Leave to gc whether a session still needs a payload."""
    values = _ref(row, payload_id, found)
    yield Change("unuse_first_session", values)
    yield Change("unuse_ref", values)


def heal(row: SessionRow, item: Slot) -> Plan[None]:
    """Restore what a session refers to: its bytes, its row and the ref; erased stays erased."""
    found = yield from find(row, item.id)
    lost = found is None or found.used is None
    if lost and (yield from erasure(row, item.id)) is not None:
        return
    data = None if item.size > ROW_PAYLOAD_BYTES else item.data
    if found is not None:
        values = _ref(row, item.id, found)
        stored = yield Query("payload_data", values)
        if (found.size, stored[0][0]) != (item.size, data):
            yield Change("heal_payload", values | {"size": item.size, "data": data})
    if found is None or not found.used:
        yield from keep(row, [item], used=True)


def is_proven(before: State, item: Slot) -> bool:
    """Tell whether what a payload in use leads to is known to be here.

    Equal bytes may be a user's text too: that a payload is in use does not say that it was ever
    proven as a manifest, but the namespace of the log so far was.
    """
    return item.encoding != "manifest" or item == before.vars


def prove(
    row: SessionRow, batch: Batch, source: SessionRow | None, before: State, *, used: bool
) -> Plan[set[str]]:
    """Check that payloads referred to without bytes are here and may be referred to.

    Those that are `used` are the ones that events lead to, the others those that are only put.
    Return what comes with the append and a manifest stored before leads to.
    """
    brought: set[str] = set()
    bare = (item for item in batch.refs.values() if item.id not in batch.payloads)
    reachable = Reachable(item for item in bare if (item.id in batch.unreferenced) is not used)
    for item in reachable:
        if item.erased is not None:
            continue
        if item.id in batch.payloads:
            check_size(item, batch.payloads[item.id].size)
            brought.add(item.id)
            continue
        found = yield from _referable(row, item, batch, source)
        if found is None:
            continue  # a manifest is not rewritten when a part of it is erased
        if found.in_blob and not (yield HasBlob(row.tenant, item.id)):
            raise rows.missing_error(row.id, item.id)
        check_size(item, found.size)
        if found.used is None or found.used < used:
            yield from _refer(row, item.id, found, used=used)
        elif is_proven(before, item):
            continue
        if item.encoding == "manifest":
            reachable.follow(item, (yield from data_of(row, item.id, found)))
    return brought


def _referable(
    row: SessionRow, item: Slot, batch: Batch, source: SessionRow | None
) -> Plan[Found | None]:
    """Return a payload that a session may refer to, None for an erased part of a manifest."""
    found = yield from find(row, item.id)
    if found is not None and found.used is not None:
        return found
    mark = yield from erasure(row, item.id)
    if mark is not None:
        if item.id in batch.refs:
            raise rows.erased_error(item.id, *mark)
        return None
    if found is None or source is None or source.tenant_key != row.tenant_key:
        raise rows.foreign_error(row.id, item.id)
    theirs = yield from find(source, item.id)
    if theirs is None or theirs.used is None:
        raise rows.foreign_error(row.id, item.id)
    return found


def erasure(row: SessionRow, payload_id: str) -> Plan[Any]:
    """Return when and by which rule a value was erased from a session, None where it was not."""
    return (yield from first("get_erasure", row.key, raw(payload_id)))


def erasures(row: SessionRow) -> Plan[dict[str, tuple[str, str]]]:
    """Return the erased payload ids of a session with time and rule."""
    found = yield Query("list_erasures", (row.key,))
    return {named(digest): (at, rule) for digest, at, rule in found}


def gone(row: SessionRow, said: set[str]) -> Plan[dict[str, tuple[str, str]]]:
    """Return what was erased from a session, but for what was said or put again since."""
    marks = yield from erasures(row)
    out = {}
    for payload_id in marks.keys() - said:
        item = yield from find(row, payload_id)
        if item is None or item.used is None:
            out[payload_id] = marks[payload_id]
    return out


def mark_erased(row: SessionRow, payload_id: str, at: str, rule: str) -> Plan[None]:
    """Record an erasure."""
    yield Change("put_erasure", (row.key, raw(payload_id), at, rule))


def read(row: SessionRow, payload_id: str) -> Plan[bytes]:
    """Return a payload that a session may read, its digest checked; say why where it may not."""
    found = yield from find(row, payload_id)
    if found is None or found.used is None:
        mark = yield from erasure(row, payload_id)
        if mark is not None:
            raise rows.erased_error(payload_id, *mark)
        raise rows.foreign_error(row.id, payload_id)
    data = yield from data_of(row, payload_id, found)
    return check_bytes(Slot(payload_id, "bytes", "chunk", found.size), data)


def data_of(row: SessionRow, payload_id: str, found: Found) -> Plan[bytes]:
    """Return the stored bytes of a payload; their digest is the caller's to check."""
    if found.in_blob:
        data = yield ReadBlob(row.tenant, payload_id)
    else:
        stored = yield Query("payload_data", _ref(row, payload_id, found))
        data = stored[0][0]
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


def closure(row: SessionRow, slots: Iterable[Slot]) -> Plan[set[str]]:
    """Return the payloads that slots lead to, manifests followed; Corruption where one is gone."""
    met: set[str] = set()
    reachable = Reachable(slots)
    for item in reachable:
        if item.erased is not None:
            continue
        met.add(item.id)
        if item.encoding == "manifest":
            found = yield from find(row, item.id)
            if found is not None and found.used is not None:
                data = yield from data_of(row, item.id, found)
                reachable.follow(item, check_bytes(item, data))
            elif (yield from erasure(row, item.id)) is None:
                raise rows.missing_error(row.id, item.id)
    return met


def let_go(row: SessionRow, payload_id: str, found: Found) -> Plan[None]:
    """Take a session's ref away, and the payload where it was the last."""
    values = _ref(row, payload_id, found)
    yield Change("forget_first_session", values)
    yield Change("delete_ref", values)
    if not (yield Query("is_referred", values)):
        yield Change("delete_payload", values)
