"""Erasing a tenant: every session with its payloads and audit, and a certificate of what went.

The certificate names each session with the number of its events and its last digest, and holds
nothing of their content. Its own digest covers it, so that a later change shows.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.events import now
from holdfast.core.records import record_id
from holdfast.stores import rows
from holdfast.stores.port import SessionFilter, SessionInfo, SessionStore

PAGE = 500


async def delete_tenant(store: SessionStore, tenant: str) -> dict[str, Any]:
    """Delete all sessions of a tenant and what only they refer to; return the certificate.

    Where one of them is driven, LeaseHeld is raised and none is deleted. Deleting again deletes
    what came since, and is harmless.
    """
    view = store.of(tenant)
    found = await _sessions(view, tenant)
    for info in found:
        lease = await view.lease_of(info.id)
        if lease is not None and lease.live:
            raise rows.held_error(lease)
    erased: list[dict[str, Any]] = []
    for info in found:
        audited = await _audited(view, info.id)
        await view.delete(info.id)
        erased.append(
            {"session": info.id, "events": info.seq, "digest": info.digest, "audit_rows": audited}
        )
    collected = await view.gc(grace_seconds=0)
    record: dict[str, Any] = {
        "format": "holdfast.erasure",
        "v": 1,
        "tenant": tenant,
        "at": now(),
        "store": store.flags.url,
        "sessions": erased,
        "payloads": collected.payloads,
        "payload_bytes": collected.bytes,
        "payloads_left": collected.kept,
    }
    return record | {"id": record_id(record)}


async def _sessions(view: SessionStore, tenant: str) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    cursor = None
    while True:
        page = await view.list_sessions(SessionFilter(tenant=tenant), limit=PAGE, cursor=cursor)
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            return found


async def _audited(view: SessionStore, session_id: str) -> int:
    """Return how many audit rows a session has."""
    count = after = 0
    while page := await view.list_audit(session_id, after=after, limit=PAGE):
        count, after = count + len(page), page[-1].number
    return count
