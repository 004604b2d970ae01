"""Export and import: sessions as one portable file that proves itself.

The file is a zstd stream of canonical JSON lines: a header, then for each session its events and
the payloads they refer to, and at the end a digest of all lines before it. Import checks that
digest, every event's place in its chain and every payload against its id before anything is
stored, and keeps all ids.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    InvalidInput,
    NothingWritten,
    PayloadNotFound,
    SessionNotFound,
)
from holdfast.core.events import Event, event_to_line, now
from holdfast.core.ids import check_id
from holdfast.core.payloads import Reachable, walk
from holdfast.core.records import Record, canonical, parse
from holdfast.core.replay import Copy
from holdfast.stores.export_reader import FORMAT, FORMAT_VERSION, ImportLimits, read_export
from holdfast.stores.port import ImportOutcome, SessionStore
from holdfast.stores.rows import erase_again, forward, held_error, tenant_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PAGE_EVENTS = 500
HELD_BYTES = 1 << 20


async def export_sessions(store: SessionStore, session_ids: Sequence[str], path: str | Path) -> int:
    """Write sessions to a new file, atomically; return how many events it holds.

    A link is followed: the file it leads to becomes the export, and the link stays.
    """
    path = Path(path)
    session_ids = list(dict.fromkeys(session_ids))  # a session named twice is exported once
    for session_id in session_ids:
        await store.session_info(check_id(session_id))
    target = await asyncio.to_thread(_target, path)
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    digest = hashlib.sha256()
    events = 0

    def write(out: zstd.ZstdFile, items: list[_Item]) -> None:
        for record, data in items:
            if data is not None:
                record = record | {"data": base64.b64encode(data).decode()}
            line = canonical(record) + b"\n"
            digest.update(line)
            out.write(line)

    try:
        with zstd.open(part, "wb") as out:
            items: list[_Item] = [({"at": now(), "format": FORMAT, "v": FORMAT_VERSION}, None)]
            held = 0
            for session_id in session_ids:
                async for record, data in _session_records(store, session_id):
                    events += "event" in record
                    items.append((record, data))
                    held += len(data or b"")
                    # Most records are small: a change of threads for each costs more than writing.
                    if len(items) >= PAGE_EVENTS or held >= HELD_BYTES:
                        await asyncio.to_thread(write, out, items)
                        items, held = [], 0
            await asyncio.to_thread(write, out, items)
            out.write(canonical({"end": "sha256:" + digest.hexdigest()}) + b"\n")
        await asyncio.to_thread(_settle, part, target)
    except OSError as error:
        raise NothingWritten(
            f"the export to {str(path)!r} failed: {error}; name a file in a folder that can be "
            "written to, with room on its disk"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return events


async def import_sessions(
    store: SessionStore, path: str | Path, *, limits: ImportLimits | None = None
) -> list[ImportOutcome]:
    """Check a whole file, then store its sessions.

    It raises before anything is stored where the file is bad or one of its sessions does not fit
    here. Each session is stored whole or not at all. Where one fails all the same, because others
    moved or the storage failed meanwhile, the error names those that are stored; to import the file
    again changes nothing of them.
    """
    copies = await asyncio.to_thread(read_export, Path(path), limits or ImportLimits())
    if len(copies) > 1:
        for copy in copies:
            await _check_fits(_home(store, copy), copy)
    done: list[ImportOutcome] = []
    for copy in copies:
        try:
            done.append(await _home(store, copy).import_log(copy))
        except HoldfastError as error:
            if done:
                stored = [outcome.session for outcome in done]
                error.details["stored"] = stored
                error.args = (f"{error}; stored before it: {', '.join(stored)}",)
            raise
    return done


def _home(store: SessionStore, copy: Copy) -> SessionStore:
    """Return the handle of the tenant whose session a copy is of."""
    tenant = tenant_of(copy)
    return store if tenant == store.tenant else store.of(tenant)


async def _check_fits(store: SessionStore, copy: Copy) -> None:
    """Raise what storing a copy would, as far as a look can tell."""
    session_id, events = copy.session, copy.events
    try:
        info = await store.session_info(session_id)
        common = min(info.seq, len(events))
        last = await store.read_events(session_id, after=common - 1, limit=1)
        if not last or last[0].digest != events[common - 1].digest:
            stored: list[Event] = []
            while page := await store.read_events(session_id, after=len(stored)):
                stored += page
            forward(session_id, stored, events)
    except (SessionNotFound, Corruption):
        return  # it is new here, or damaged, which the copy heals
    lease = await store.lease_of(session_id) if len(events) > info.seq else None
    if lease is not None and lease.live:
        raise held_error(lease)


def _target(path: Path) -> Path:
    """Return the file that an export to this path becomes; refuse to replace anything else."""
    try:
        named = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        named = False
    if not named or os.path.isdir(path):
        raise InvalidInput(
            f"{str(path)!a} is a folder or not a valid path; name a file to export to"
        )
    target = Path(os.path.realpath(path))
    # What is still a link leads to itself.
    if os.path.islink(target) or (os.path.exists(path) and not os.path.isfile(path)):
        raise InvalidInput(f"{str(path)!r} is not a regular file; name a file to export to")
    return target


def _settle(part: Path, path: Path) -> None:
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_Item = tuple[Record, bytes | None]


async def _session_records(store: SessionStore, session_id: str) -> AsyncIterator[_Item]:
    yield {"session": session_id}, None
    after, reachable = 0, Reachable()
    gone: dict[str, tuple[str, str]] = {}
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for event in page:
            reachable.add(walk(event.data))
            async for record, data in payload_records(store, session_id, reachable):
                if "erased" in record:
                    gone[record["payload"]] = (record["erased"]["at"], record["erased"]["rule"])
                yield record, data
            # What was erased since the page was read is erased in the copy too.
            for shown in erase_again([event], gone):
                yield {"event": parse(event_to_line(shown))}, None
        after = page[-1].seq


async def payload_records(
    store: SessionStore, session_id: str, reachable: Reachable
) -> AsyncIterator[_Item]:
    """Yield the payloads that were reached since the last call, or that they are erased."""
    for item in reachable:
        if item.erased is not None:
            continue
        try:
            data = await store.get_payload(session_id, item.id)
        except PayloadNotFound as error:
            if "erased_at" not in error.details:
                raise
            mark = {"at": error.details["erased_at"], "rule": error.details["rule"]}
            yield {"erased": mark, "payload": item.id}, None
            continue
        yield {"payload": item.id}, data
        reachable.follow(item, data)
