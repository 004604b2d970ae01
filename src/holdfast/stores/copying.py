"""Copying and moving sessions between any two stores, resumable and verified by head ids.

A copy brings a session's log and payloads; what the target has already is compared, carried forward
or left alone, so that a copy that was cut short goes on where it was. A copy with open work is
read-only until someone takes it over.

A move takes a whole tree. It holds the leases of all its sessions, copies them, seals each source
with `session.moved`, brings what waits in its inbox, and makes the copies drivable. Begun again
after a crash it goes on: a source that is sealed for this target is copied up to its seal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from msgspec import structs

from holdfast.core.errors import Corruption, InvalidInput, ReadOnlySession, SessionNotFound
from holdfast.core.events import Event
from holdfast.core.facts import SessionMoved
from holdfast.core.payloads import Reachable, walk
from holdfast.core.replay import Copy, prove
from holdfast.stores.port import InboxDraft, Lease, SessionFilter, SessionInfo, SessionStore
from holdfast.stores.portable import PAGE_EVENTS, payload_records
from holdfast.stores.rows import erase_again
from holdfast.stores.tenancy import ALL_TENANTS


@dataclass(frozen=True, slots=True)
class Copied:
    """One session after its copy: `outcome` is created, forwarded or unchanged."""

    session: str
    tenant: str
    outcome: str
    events: int
    head: str | None
    digest: str
    read_only: bool


async def copy_sessions(
    source: SessionStore, target: SessionStore, session_ids: Sequence[str] = ()
) -> list[Copied]:
    """Copy sessions, all of them where none is named; the source goes on as before."""
    _check_apart(source, target)
    if session_ids:
        found = [await source.session_info(name) for name in dict.fromkeys(session_ids)]
    else:
        found = [info async for info in _all(source)]
    return [await _copy(source, target, info) for info in found]


async def move_tree(
    source: SessionStore, target: SessionStore, session_id: str, *, by: str | None = None
) -> list[Copied]:
    """Move a session with all that descend from it; the source is sealed, and says where to."""
    _check_apart(source, target)
    root = await source.session_info(session_id)
    if root.parent is not None:
        raise InvalidInput(
            f"session {root.id!r} belongs to {root.parent!r} and moves with it; move the session "
            "at the root of the tree"
        )
    tree = await _tree(source, root)
    seals = {info.id: await _sealed_at(source, target, info) for info in tree}
    done: list[Copied] = []
    async with _leases(source, [info for info in tree if seals[info.id] is None]) as leases:
        for info in tree:
            now = await source.session_info(info.id)
            until = seals[info.id]
            await _copy(source, target, now, until)
            if until is None:
                moved = SessionMoved(to=target.flags.url, by=by)
                await source.append(leases[info.id], now.seq, [moved])
                until = now.seq
            copied = await _copy(source, target, now, until)
            await _take_over(source, target, now)
            done.append(replace(copied, outcome="moved", read_only=False))
    return done


async def copy_of(store: SessionStore, session_id: str, until: int | None = None) -> Copy:
    """Return a session's log with its payloads, proven; up to an event where one is named."""
    events: list[Event] = []
    payloads: dict[str, bytes] = {}
    erased: dict[str, tuple[str, str]] = {}
    reachable, after = Reachable(), 0
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for event in page:
            if until is not None and event.seq > until:
                break
            reachable.add(walk(event.data))
            async for record, data in payload_records(store, session_id, reachable):
                if data is None:
                    mark = record["erased"]
                    erased[record["payload"]] = (mark["at"], mark["rule"])
                else:
                    payloads[record["payload"]] = data
            events += erase_again([event], erased)
        after = page[-1].seq
    return await asyncio.to_thread(prove, session_id, events, payloads, erased)


async def _copy(
    source: SessionStore, target: SessionStore, info: SessionInfo, until: int | None = None
) -> Copied:
    ours = _of(source, info.tenant)
    theirs = _of(target, info.tenant)
    outcome, events = "unchanged", 0
    last = await _digest_at(ours, info.id, until or info.seq)
    if last is None or last != await _known(theirs, info.id):
        copy = await copy_of(ours, info.id, until)
        done = await theirs.import_log(copy)
        outcome, events = done.outcome, done.events
        last = copy.events[-1].digest
    found = await theirs.session_info(info.id)
    if found.digest != last or (until is None and found.head != info.head):
        raise Corruption(
            f"the copy of session {info.id!r} ends with {found.digest!r} (head {found.head!r}), "
            f"its source with {last!r} (head {info.head!r}); copy again, and run `holdfast verify` "
            "on both",
            session=info.id,
        )
    return Copied(info.id, info.tenant, outcome, events, found.head, found.digest, found.imported)


async def _digest_at(store: SessionStore, session_id: str, seq: int) -> str | None:
    found = await store.read_events(session_id, after=seq - 1, limit=1)
    return found[0].digest if found else None


async def _known(store: SessionStore, session_id: str) -> str | None:
    try:
        return (await store.session_info(session_id)).digest
    except SessionNotFound:
        return None


async def _sealed_at(source: SessionStore, target: SessionStore, info: SessionInfo) -> int | None:
    """Return the event before a seal for this target; refuse one for another."""
    (last,) = await _of(source, info.tenant).read_events(info.id, after=info.seq - 1, limit=1)
    if last.type != SessionMoved.TYPE:
        return None
    if last.data["to"] != target.flags.url:
        raise ReadOnlySession(
            f"session {info.id!r} was moved to {last.data['to']!r}; move it from there",
            session=info.id,
        )
    return info.seq - 1


async def _take_over(source: SessionStore, target: SessionStore, info: SessionInfo) -> None:
    """Make a copy drivable, and bring what waited for its source."""
    ours, theirs = _of(source, info.tenant), _of(target, info.tenant)
    for item in await ours.list_inbox(info.id):
        content = item.content
        if content is not None and not content.inline:
            data = await ours.get_payload(info.id, content.id)
            content = structs.replace(content, data=data)
        draft = InboxDraft(item.key, item.kind, item.call_id, content, item.wait, item.by)
        await theirs.put_inbox(info.id, draft)
    if (await theirs.session_info(info.id)).imported:
        await theirs.release(await theirs.acquire(info.id, takeover=True))


@asynccontextmanager
async def _leases(
    store: SessionStore, sessions: Sequence[SessionInfo]
) -> AsyncIterator[dict[str, Lease]]:
    """Hold the leases of all sessions; where one is driven nothing is begun."""
    held: dict[str, Lease] = {}
    homes = {info.id: _of(store, info.tenant) for info in sessions}
    try:
        for info in sessions:
            held[info.id] = await homes[info.id].acquire(info.id)
        yield held
    finally:
        for name, lease in held.items():
            await homes[name].release(lease)


async def _tree(store: SessionStore, root: SessionInfo) -> list[SessionInfo]:
    """Return a session and its descendants, parents first."""
    home = _of(store, root.tenant)
    tree = [root]
    for info in tree:
        cursor = None
        while True:
            page = await home.list_sessions(SessionFilter(parent=info.id), cursor=cursor)
            tree += page.sessions
            cursor = page.cursor
            if cursor is None:
                break
    return tree


async def _all(store: SessionStore) -> AsyncIterator[SessionInfo]:
    cursor = None
    where = SessionFilter(tenant=None if getattr(store, "is_view", False) else ALL_TENANTS)
    while True:
        page = await store.list_sessions(where, cursor=cursor)
        for info in page.sessions:
            yield info
        cursor = page.cursor
        if cursor is None:
            return


def _of(store: SessionStore, tenant: str) -> SessionStore:
    return store if tenant == store.tenant else store.of(tenant)


def _check_apart(source: SessionStore, target: SessionStore) -> None:
    if source.flags.url == target.flags.url and source.flags.durable:
        raise InvalidInput(f"{source.flags.url!r} is source and target; name two stores")
