"""Gc: refs first, then rows in one transaction and blobs in a later one.

A ref that is not marked as used is only a candidate: it goes when its payload is older than the
grace and no event and no inbox item of its session leads there, which is read beside the writers.
A payload row goes when it has no refs and is older than the grace. Its blob goes under its lock in
another transaction, after a second look shows that no row came back. A blob that never had a row
(its put was cut short, or lost a race) is swept by the same rule.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from holdfast.blobs.port import BlobEntry
from holdfast.core.errors import Corruption, InvalidInput, SessionDeleted, SessionNotFound
from holdfast.core.payloads import walk
from holdfast.stores.relational import events, inbox, payloads, sessions
from holdfast.stores.relational.payloads import named, raw, ref_values
from holdfast.stores.relational.plan import Change, Plan, Query, RemoveBlob, first
from holdfast.stores.tenancy import Address

logger = logging.getLogger("holdfast.stores")

BATCH = 500


@dataclass(frozen=True, slots=True)
class Orphan:
    """A payload that nothing uses."""

    key: int
    tenant_key: int
    tenant: str
    id: str
    size: int
    in_blob: bool


class StaleRef(NamedTuple):
    """A session's right to a payload that it has put, as it seems, and never used."""

    key: int
    tenant: int
    digest: bytes
    session: int


def stale(cutoff: int, tenant: str | None) -> Plan[dict[Address, list[StaleRef]]]:
    """Return by session the refs that may be unused since the cutoff, of a tenant or of all."""
    found: dict[Address, list[StaleRef]] = {}
    for of, session_id, *ref in (yield Query("list_stale_refs", {"cutoff": cutoff, "of": tenant})):
        found.setdefault(Address(of, session_id), []).append(StaleRef(*ref))
    return found


def unused(address: Address, candidates: Sequence[StaleRef]) -> Plan[list[StaleRef]]:
    """Return the refs among the candidates that nothing in the session leads to."""
    try:
        row = yield from sessions.find(address)
        log = yield from events.whole(row)
        slots = [item for event in log for item in walk(event.data)]
        slots += yield from inbox.contents(row)
        used = yield from payloads.closure(row, slots)
    except (SessionNotFound, SessionDeleted):
        return []
    except (Corruption, InvalidInput):
        logger.warning("session %r is damaged: gc keeps all its payloads", address.key)
        return []
    return [ref for ref in candidates if named(ref.digest) not in used]


def drop(refs: Sequence[StaleRef], cutoff: int) -> Plan[None]:
    """Take refs away, but for those that were used or put again meanwhile."""
    for ref in refs:
        values = ref_values(*ref) | {"cutoff": cutoff}
        yield Change("forget_stale_first_session", values)
        yield Change("delete_stale_ref", values)


def orphans(
    cutoff: int, tenant: str | None, without: Sequence[StaleRef] = ()
) -> Plan[list[Orphan]]:
    """Return the payloads last put before the cutoff that have no refs, or none but those given."""
    found: list[Orphan] = []
    gone = [f"{ref.tenant} {ref.digest.hex()} {ref.session}" for ref in without]
    while True:
        part = yield from _orphans(cutoff, tenant, found[-1] if found else None, gone)
        found += part
        if len(part) < BATCH:
            return found


def _orphans(
    cutoff: int, tenant: str | None, after: Orphan | None, gone: list[str]
) -> Plan[list[Orphan]]:
    values: dict[str, Any] = {"cutoff": cutoff, "of": tenant, "limit": BATCH}
    values |= {"gone": msgspec.json.encode(gone).decode()}
    values |= {"payload": after.key if after else 0, "tenant": after.tenant_key if after else 0}
    values |= {"id": raw(after.id) if after else b""}
    part = []
    for key, tenant_key, of, digest, size, in_blob in (yield Query("find_orphans", values)):
        payload_id = named(digest)
        if type(size) is not int:
            logger.warning("payload %r has the size %r: its row is damaged", payload_id, size)
            size = 0
        part.append(Orphan(key, tenant_key, of, payload_id, size, bool(in_blob)))
    return part


def collect(cutoff: int, tenant: str | None) -> Plan[list[Orphan]]:
    """Remove one batch of orphan rows and return them; their blobs are still there."""
    gone = yield from _orphans(cutoff, tenant, None, [])
    for orphan in gone:
        yield Change("delete_payload", ref_values(orphan.key, orphan.tenant_key, raw(orphan.id), 0))
    return gone


def without_rows(entries: Sequence[BlobEntry]) -> Plan[list[BlobEntry]]:
    """Return the blobs that no row names."""
    strays = []
    for entry in entries:
        if not (yield from _has_row(entry.tenant, entry.id)):
            strays.append(entry)
    return strays


def sweep(blobs: Sequence[tuple[str, str]]) -> Plan[list[str]]:
    """Remove blobs that no row names, holding the lock of each; return their ids."""
    gone = []
    for tenant, blob_id in blobs:
        known = yield from first("tenant_key", tenant)
        if known is not None:
            yield from payloads.lock(known[0], raw(blob_id))
        if not (yield from _has_row(tenant, blob_id)):
            yield RemoveBlob(tenant, blob_id)
            gone.append(blob_id)
    return gone


def count(tenant: str | None) -> Plan[int]:
    """Return how many payloads there are, of a tenant or of all."""
    (number,) = yield from first("count_payloads", tenant)
    return int(number)


def _has_row(tenant: str, blob_id: str) -> Plan[bool]:
    return (yield from first("payload_exists", tenant, raw(blob_id))) is not None
