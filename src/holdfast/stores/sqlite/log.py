"""What the SQLite store does inside one write transaction.

Each method is one job's work: it checks everything against the rows it finds there, then writes.
It may run again after a rollback, so it keeps nothing but states, which are checked on each use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw
import msgspec
from msgspec import structs

from holdfast.blobs.port import BlobStore
from holdfast.core.errors import Corruption, InvalidInput, PositionConflict
from holdfast.core.events import Event, now
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.fold import fold
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_key
from holdfast.core.log import Batch, extend
from holdfast.core.payloads import Slot, walk
from holdfast.core.replay import Copy, replay
from holdfast.core.state import State, empty
from holdfast.stores import rows, snapshots
from holdfast.stores.port import (
    Appended,
    ImportOutcome,
    InboxDraft,
    InboxItem,
    Lease,
)
from holdfast.stores.sqlite import events, leases, payloads, sessions
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.sessions import SessionRow


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


class Log:
    """The write side of one store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.states = events.States()

    def create(
        self,
        session_id: str,
        started: SessionStarted,
        given: Sequence[Slot],
        adopt_from: str | None,
        cursor: apsw.Cursor,
    ) -> State:
        """Create a session by its first event, or return the existing one's state."""
        row = sessions.look_up(cursor, session_id)
        batch = extend(empty(session_id), [started], at=now(), payloads=given)
        if row is not None:
            first = next(events.read(cursor, row, limit=1), None)
            if first is None or first.seq != 1:
                raise events.gap(row, 1)
            rows.check_same_start(first, batch.events[0])
            return self.states.load(cursor, row)
        source = None if adopt_from is None else sessions.find(cursor, adopt_from)
        row = sessions.insert(cursor, batch.state)
        self._store(cursor, row, batch, source, empty(session_id))
        return batch.state

    def append(self, request: Request, cursor: apsw.Cursor) -> Appended:
        """Append one batch, checked against the session's row."""
        lease = request.lease
        row = sessions.find(cursor, lease.session)
        leases.check(cursor, row, lease)
        if row.seq != request.after_seq:
            raise PositionConflict(
                f"session {row.id!r} is at event {row.seq}, not {request.after_seq}; load its "
                "state again",
                seq=row.seq,
            )
        before = self.states.load(cursor, row)
        batch = extend(
            before,
            request.facts,
            at=now(),
            head=request.head,
            edges=request.edges,
            payloads=request.payloads,
        )
        source = None
        if request.adopt_from is not None:
            source = sessions.find(cursor, request.adopt_from)
        for key in request.consumes:
            self._consume(cursor, row, key, batch.state.seq)
        self._store(cursor, row, batch, source, before)
        sessions.move(cursor, row.key, batch.state)
        inbox = None
        if request.release:
            cursor.execute(SQL["release_lease"], (row.id, lease.owner, lease.epoch))
            inbox = leases.waiting(cursor, row)
        return Appended(batch.events, batch.state, batch.head, inbox)

    def _store(
        self,
        cursor: apsw.Cursor,
        row: SessionRow,
        batch: Batch,
        source: SessionRow | None,
        before: State,
    ) -> None:
        loose = batch.loose
        if len(batch.refs) > len(batch.payloads):
            prove = partial(payloads.prove, cursor, self._blobs, row, batch, source, before)
            loose -= prove(used=True)
            prove(used=False)
        if batch.payloads:
            given = batch.payloads.values()
            payloads.keep(cursor, self._blobs, row, given, used=True, loose=loose)
        events.insert(cursor, row.key, batch.events)
        if snapshots.is_due(batch.events[0].seq - 1, batch.state.seq):
            events.take_snapshot(cursor, row.key, batch.state)
        self.states.remember(batch.state)

    def _consume(self, cursor: apsw.Cursor, row: SessionRow, key: str, seq: int) -> None:
        item = leases.find_item(cursor, row, check_key(key, "inbox key"))
        rows.check_consumable(row.id, key, item)
        cursor.execute(SQL["consume_inbox"], (seq, row.key, key))

    @staticmethod
    def is_stored(cursor: apsw.Cursor, state: State) -> bool:
        """Tell whether a state's last event is in the log."""
        row = sessions.look_up(cursor, state.session)
        if row is None:
            return False
        found = cursor.execute(SQL["event_digest"], (row.key, state.seq)).fetchone()
        return found == (bytes.fromhex(state.digest),)

    def put_payload(self, session_id: str, item: Slot, cursor: apsw.Cursor) -> Slot:
        """Store a payload for later appends."""
        row = sessions.find(cursor, session_id)
        payloads.keep(cursor, self._blobs, row, [item], used=False)
        return item.bare()

    def put_inbox(
        self, session_id: str, draft: InboxDraft, cursor: apsw.Cursor
    ) -> tuple[InboxItem, int]:
        """Store an inbox item; return it with the session's position."""
        row = sessions.find(cursor, session_id)
        item, new = leases.put_item(cursor, row, draft)
        if new and draft.content is not None and not draft.content.inline:
            payloads.keep(cursor, self._blobs, row, [draft.content], used=True)
        return item, row.seq

    def delete(self, session_id: str, cursor: apsw.Cursor) -> None:
        """Delete a session that nobody drives."""
        row = sessions.find(cursor, session_id)
        leases.check_free(cursor, row)
        sessions.delete(cursor, row)

    def erase(
        self, session_id: str, payload_id: str, rule: str, cursor: apsw.Cursor
    ) -> tuple[int, str]:
        """Erase a value; return in how many places, and the tenant whose blob may be unused."""
        row = sessions.find(cursor, session_id)
        at = now()
        slots: list[Slot] = []
        for event in list(events.read(cursor, row)):
            here = list(walk(event.data))
            slots += here
            if any(item.id == payload_id and item.erased is None for item in here):
                new = rows.erase_in(event, payload_id, at, rule)
                text = events.data_text(new)
                cursor.execute(SQL["rewrite_event"], (text, row.key, event.seq))
        places = [item for item in slots if item.id == payload_id and item.erased is None]
        inbox = [item for item in leases.items(cursor, row) if item.content is not None]
        waiting = [item for item in inbox if rows.holds(item, payload_id)]
        found = payloads.find(cursor, row, payload_id)
        referred = found is not None and found.used is not None
        if not places and not waiting and not referred:
            erasure = (row.key, payloads.raw(payload_id))
            if cursor.execute(SQL["get_erasure"], erasure).fetchone() is not None:
                return 0, row.tenant
            raise rows.foreign_error(session_id, payload_id)
        for item in waiting:
            leases.rewrite(cursor, row, rows.erase_item(item, payload_id, at, rule))
        parts = self._parts(cursor, row, payload_id, found, places)
        cursor.execute(SQL["put_erasure"], (row.key, payloads.raw(payload_id), at, rule))
        if found is not None and referred:
            payloads.let_go(cursor, row, found)
        if parts:
            slots += [item.content for item in inbox if item.content is not None]
            self._leave_to_gc(cursor, row, parts, [s for s in slots if s.id != payload_id])
        return max(len(places), 1), row.tenant

    def _parts(
        self,
        cursor: apsw.Cursor,
        row: SessionRow,
        payload_id: str,
        found: payloads.Found | None,
        places: Sequence[Slot],
    ) -> set[str]:
        """Return what a value leads to as a manifest; one inside another has no place itself."""
        if found is None or (places and all(item.encoding != "manifest" for item in places)):
            return set()
        whole = Slot(payload_id, "manifest", "chunk", found.size)
        try:
            return payloads.closure(cursor, self._blobs, row, [whole]) - {payload_id}
        except (Corruption, InvalidInput):
            return set()  # no manifest, or a damaged one

    def _leave_to_gc(
        self, cursor: apsw.Cursor, row: SessionRow, parts: set[str], slots: Sequence[Slot]
    ) -> None:
        """Mark those parts of an erased manifest as unused that nothing else leads to."""
        try:
            parts = parts - payloads.closure(cursor, self._blobs, row, slots)
        except (Corruption, InvalidInput):
            return  # what a damaged manifest leads to cannot be told
        for part in parts:
            found = payloads.find(cursor, row, part)
            if found is not None:
                payloads.unuse(cursor, found.key, row.key)

    def import_log(self, copy: Copy, cursor: apsw.Cursor) -> tuple[ImportOutcome, State | None]:
        """Store a copy of a log; the state is None where nothing changed."""
        row = sessions.look_up(cursor, copy.session)
        stored = [] if row is None else _stored(cursor, row, copy)
        new = rows.forward(copy.session, stored, copy.events)
        if row is not None:
            row = self._heal(cursor, row, copy)
        if not new:
            return ImportOutcome(copy.session, "unchanged", 0), None
        gone: dict[str, tuple[str, str]] = {}
        if row is None:
            outcome = "created"
            state = fold(empty(copy.session), new)
            row = sessions.insert(cursor, state)
        else:
            outcome = "forwarded"
            leases.check_free(cursor, row)
            slots = [item for event in events.read(cursor, row) for item in walk(event.data)]
            said = {item.id for item in slots if item.erased is None}
            gone = payloads.gone(cursor, row, said)
            new = rows.erase_again(new, gone)
            state = fold(self.states.load(cursor, row), new)
            sessions.move(cursor, row.key, state)
        for item in rows.slots_with_inner(new, copy.payloads, {**copy.erased, **gone}):
            if item.erased is not None:
                payloads.mark_erased(cursor, row, item)
            elif not item.inline:
                whole = structs.replace(item, data=copy.payloads[item.id])
                payloads.keep(cursor, self._blobs, row, [whole], used=True)
        events.insert(cursor, row.key, new)
        events.take_snapshot(cursor, row.key, state)
        cursor.execute(SQL["mark_imported"], (rows.has_open_work(state), row.key))
        self.states.remember(state)
        return ImportOutcome(copy.session, outcome, len(new)), state

    def _heal(self, cursor: apsw.Cursor, row: SessionRow, copy: Copy) -> SessionRow:
        """Make good what is damaged here of the part that both logs have."""
        known = copy.events[: row.seq]
        whole = len(known) == row.seq
        wrong = events.damaged(cursor, row, known)
        if wrong or (whole and row.digest != bytes.fromhex(known[-1].digest)):
            state = replay(empty(copy.session), known)  # what heals must prove itself
            good = rows.erase_again(wrong, payloads.gone(cursor, row, set()))
            events.heal(cursor, row.key, good)
            for item in (item for event in good for item in walk(event.data)):
                if item.erased is not None:
                    payloads.mark_erased(cursor, row, item)
        elif whole:
            state = self.states.load(cursor, row)
        if whole:
            row = sessions.heal(cursor, row, state)
        for item in rows.slots_with_inner(known, copy.payloads, copy.erased):
            if item.erased is None and not item.inline:
                given = structs.replace(item, data=copy.payloads[item.id])
                payloads.heal(cursor, self._blobs, row, given)
        return row


def _stored(cursor: apsw.Cursor, row: SessionRow, copy: Copy) -> list[Event]:
    """Return the stored log as far as comparing goes; a lost event counts as the copy's."""
    rowed: Any = cursor.execute(SQL["event_digests"], (row.key,)).fetchall()
    found = {seq: digest for seq, digest in rowed if isinstance(digest, bytes)}
    theirs = {event.seq: bytes.fromhex(event.digest) for event in copy.events}
    if row.digest == theirs.get(row.seq):
        found[row.seq] = row.digest
    digests = [found.get(seq, theirs.get(seq, b"")) for seq in range(1, row.seq + 1)]
    return [Event(row.id, seq, "", 0, "", {}, d.hex()) for seq, d in enumerate(digests, 1)]
