"""A state machine that drives a store and a plain model of it with the same commands.

    class MyMachine(StoreMachine):
        async def open_store(self, path):
            return await MySessionStore.open(path)

    TestMyMachine = MyMachine.TestCase

Two stores with two handles each take part, so that copies travel both ways and two drivers meet.
Every answer is compared, and at the end of each run everything that a reader can see.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.core.errors import HoldfastError
from holdfast.core.facts import InputAdmitted, MessageAppended, SessionStarted
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Slot, slot, walk
from holdfast.stores.port import InboxDraft, Lease, PendingFilter, SessionFilter, SessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.tenancy import ALL_TENANTS, Address, address_of
from holdfast.stores.verify import verify
from holdfast.testing.driver import all_events
from holdfast.testing.histories import Move, moves
from holdfast.testing.store_model import ModelSession, ModelStore

T = TypeVar("T")

# Uneven, so that most commands meet a session that has something in it.
SESSIONS = st.sampled_from(["s-a", "s-a", "s-a", "other/s-a", "s-c"])
"""Sessions by the key of their address: two have the same id in different tenants."""
PLACES = st.sampled_from([0, 0, 1])
HANDLES = st.integers(0, 1)
PICKS = st.integers(0, 40)
TEXTS = st.sampled_from(
    ["", "hi", "x" * 512, "y" * 513, "z" * 3000, "é" * 40_000, '{"$ref":"sha256:00"}' * 40]
)
STARTED = st.sampled_from(
    [
        SessionStarted(),
        SessionStarted(agent="clerk"),
        SessionStarted(labels={"a": "b"}, settings=slot("s" * 900, "settings")),
    ]
)
DRAFTS = st.builds(
    InboxDraft,
    st.sampled_from(["k-1", "k-2", "k-3"]),
    st.sampled_from(["message", "answer", "expiry", "cancel"]),
    st.sampled_from([None, "call-1", "call-1", "call-2"]),
    st.sampled_from([None, slot("yes", "answer"), slot("n" * 900, "answer")]),
    st.sampled_from([None, None, 1, 2]),
)


class StoreMachine(RuleBasedStateMachine):
    """Subclass it and say how to open your store."""

    async def open_store(self, path: Path) -> SessionStore:
        """Open a store whose data lives at a path: the same path, the same data."""
        raise TypeError("override open_store(path) to say which store to drive")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-machine-"))
        self.models = [ModelStore(), ModelStore()]
        self.stores = [[self._open(place) for _ in range(2)] for place in range(2)]
        self.pool: list[Slot] = [slot("never stored " * 100, "message")]

    def teardown(self) -> None:
        """Compare all there is, then clean up."""
        try:
            for place in range(2):
                for handle in range(2):
                    self._reopen(place, handle)
                self.run(self._compare(place, self.stores[place][0]))
        finally:
            for store in [*self.stores[0], *self.stores[1]]:
                self.run(store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    @initialize(text=TEXTS)
    def begin(self, text: str) -> None:
        """Begin with two driven sessions that have some history, so that no run is idle."""
        for session, started in (
            ("s-a", SessionStarted()),
            ("other/s-a", SessionStarted()),
        ):
            self.create(0, 0, session, started)
            self.acquire(0, 0, session, False)
            for pick, words in ((0, text), (0, "said before"), (1, text), (0, "said before")):
                known = self.models[0].sessions[session]
                options = moves(known.state, words)
                if known.lease is not None:
                    move = options[pick % len(options)]
                    self._append(0, session, known.lease, known.state.seq, move)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one command."""
        return self.runner.run(work)

    @rule(place=PLACES, handle=HANDLES, session=SESSIONS, started=STARTED)
    def create(self, place: int, handle: int, session: str, started: SessionStarted) -> None:
        store, model = self._view(place, handle, session), self.models[place]
        started = replace(started, tenant=store.tenant)
        refusal = model.creating(session, started)
        state = self._ask(store.create_session(_id(session), started), *_one(refusal))
        if state is not None:
            assert state == model.create(session, started, state.started_at)

    @rule(place=PLACES, handle=HANDLES, session=SESSIONS, takeover=st.booleans())
    def acquire(self, place: int, handle: int, session: str, takeover: bool) -> None:
        store, model = self._view(place, handle, session), self.models[place]
        refusal = model.missing(session) or model.acquiring(session, takeover)
        lease = self._ask(store.acquire(_id(session), takeover=takeover), *_one(refusal))
        if lease is not None:
            known = model.sessions[session]
            known.lease, known.imported = lease, False
            assert lease.owner == store.owner
            assert (lease.seq, lease.inbox) == (known.state.seq, known.waiting)

    @rule(place=PLACES, session=SESSIONS)
    def release(self, place: int, session: str) -> None:
        known = self.models[place].sessions.get(session)
        if known is not None and known.lease is not None:
            self.run(self._holder(place, session, known.lease).release(known.lease))
            known.lease = None

    @precondition(lambda self: self.driven())
    @rule(
        data=st.data(),
        pick=PICKS,
        text=TEXTS,
        stale=st.sampled_from([0] * 8 + [1, 2]),
        release=st.sampled_from([False] * 4 + [True]),
    )
    def append(self, data: st.DataObject, pick: int, text: str, stale: int, release: bool) -> None:
        place, session = data.draw(st.sampled_from(self.driven()))
        known = self.models[place].sessions[session]
        options = moves(known.state, text)
        if not options:
            return
        lease, position = known.lease, known.state.seq
        assert lease is not None
        if stale == 1:
            lease = replace(lease, epoch=lease.epoch - 1)
        elif stale == 2:
            position -= 1
        self._append(place, session, lease, position, options[pick % len(options)], release=release)

    @precondition(lambda self: self.driven())
    @rule(data=st.data())
    def refer(self, data: st.DataObject) -> None:
        place, session = data.draw(st.sampled_from(self.driven()))
        item = data.draw(st.sampled_from(self.pool))
        model = self.models[place]
        known = model.sessions[session]
        if known.lease is None or known.state.status in ("stopped", "failed"):
            return
        number = known.state.next("message")
        fact = MessageAppended(message=number, role="user", content=item.bare())
        move = Move("refer", (fact,))
        refusal = model.referring(session, item.id)
        if refusal:
            store = self._holder(place, session, known.lease)
            self._ask(store.append(known.lease, known.state.seq, move.facts), *refusal)
        else:
            self._append(place, session, known.lease, known.state.seq, move)

    @rule(place=PLACES, handle=HANDLES, session=SESSIONS, text=TEXTS)
    def put_payload(self, place: int, handle: int, session: str, text: str) -> None:
        model, item = self.models[place], slot(text + " put", "message")
        store = self._view(place, handle, session)
        stored = self._ask(store.put_payload(_id(session), item), *_one(model.missing(session)))
        if stored is not None and not item.inline:
            model.sessions[session].put.add(item.id)
            model.bytes[item.id] = item.data or b""
            self.pool.append(item)

    @rule(place=PLACES, handle=HANDLES, session=SESSIONS, draft=DRAFTS)
    def put_inbox(self, place: int, handle: int, session: str, draft: InboxDraft) -> None:
        store, model = self._view(place, handle, session), self.models[place]
        wanted = model.missing(session) or model.put_inbox(session, draft)
        refusal = wanted if isinstance(wanted, type) else None
        item = self._ask(store.put_inbox(_id(session), draft), *_one(refusal))
        if item is None:
            return
        assert not isinstance(wanted, type)
        assert item == replace(wanted, at=item.at)
        model.sessions[session].inbox[item.key] = item
        if item.content is not None and draft.content is not None:
            model.bytes[item.content.id] = draft.content.data or b""

    @precondition(lambda self: self.driven())
    @rule(data=st.data(), key=st.sampled_from(["k-1", "k-2", "k-3", "k-9"]))
    def consume(self, data: st.DataObject, key: str) -> None:
        place, session = data.draw(st.sampled_from(self.driven()))
        known = self.models[place].sessions[session]
        item = known.inbox.get(key)
        fact = InputAdmitted(
            key=key,
            kind=item.kind if item else "message",
            content=item.content if item else None,
        )
        if known.lease is not None and known.state.status not in ("stopped", "failed"):
            self._append(
                place, session, known.lease, known.state.seq, Move("admit", (fact,)), [key]
            )

    @precondition(lambda self: any(model.sessions for model in self.models))
    @rule(data=st.data(), handle=HANDLES)
    def erase(self, data: st.DataObject, handle: int) -> None:
        place = data.draw(st.sampled_from([p for p in (0, 1) if self.models[p].sessions]))
        model = self.models[place]
        session = data.draw(st.sampled_from(sorted(model.sessions)))
        values = self._erasable(model, model.sessions[session])
        if not values:
            return
        payload_id = data.draw(st.sampled_from(values))
        store = self._view(place, handle, session)
        count = self.run(store.erase(_id(session), payload_id, "rule-1"))
        at, why = self.run(store.erased(_id(session)))[check_content_id(payload_id)]
        assert count == model.erase(session, payload_id, at, why)

    @rule(place=PLACES, handle=HANDLES, dry=st.booleans())
    def gc(self, place: int, handle: int, dry: bool) -> None:
        store, model = self.stores[place][handle], self.models[place]
        report = self.run(store.gc(dry_run=dry, grace_seconds=0))
        if not dry:
            assert report.kept == len(model.collect())

    @rule(place=PLACES, handle=HANDLES, session=SESSIONS)
    def delete(self, place: int, handle: int, session: str) -> None:
        store, model = self._view(place, handle, session), self.models[place]
        refusal = model.missing(session)
        if refusal is None and model.sessions[session].lease is not None:
            refusal = model.acquiring(session, takeover=True)
        if self._ask(store.delete(_id(session)), *_one(refusal), quiet=True) and refusal is None:
            del model.sessions[session]
            model.deleted.add(session)

    @rule(source=PLACES, handle=HANDLES, session=SESSIONS)
    def copy(self, source: int, handle: int, session: str) -> None:
        here, there = self.models[source], self.models[1 - source]
        file = self.folder / "export"
        refusal = here.missing(session)
        exported = self._ask(
            export_sessions(self._view(source, handle, session), [_id(session)], file),
            *_one(refusal),
        )
        if exported is None:
            return
        original = here.sessions[session]
        assert exported == len(original.events)
        wanted = there.importing(session, original)
        refusal = wanted if isinstance(wanted, type) else None
        done = self._ask(import_sessions(self.stores[1 - source][handle], file), *_one(refusal))
        if done is not None:
            assert [item.outcome for item in done] == [wanted]
            there.bytes |= here.bytes
            if wanted != "unchanged":
                there.import_copy(session, original)

    @rule(place=PLACES, handle=HANDLES)
    def reopen(self, place: int, handle: int) -> None:
        self._reopen(place, handle)

    @rule(place=PLACES, handle=HANDLES)
    def look(self, place: int, handle: int) -> None:
        self.run(self._compare(place, self.stores[place][handle]))

    def driven(self) -> list[tuple[int, str]]:
        """Return the sessions that someone drives."""
        return [
            (place, session)
            for place in (0, 1)
            for session, known in sorted(self.models[place].sessions.items())
            if known.lease is not None
        ]

    def _open(self, place: int) -> SessionStore:
        return self.run(self.open_store(self.folder / f"place-{place}"))

    def _reopen(self, place: int, handle: int) -> None:
        store = self.stores[place][handle]
        for known in self.models[place].sessions.values():
            if known.lease is not None and known.lease.owner == store.owner:
                known.lease = None
        self.run(store.close())
        self.stores[place][handle] = self._open(place)

    def _view(self, place: int, handle: int, session: str) -> SessionStore:
        """Return a handle that addresses a session's tenant."""
        tenant = address_of(session).tenant
        store = self.stores[place][handle]
        return store if tenant == store.tenant else store.of(tenant)

    def _holder(self, place: int, session: str, lease: Lease) -> SessionStore:
        owners = [store.owner for store in self.stores[place]]
        return self._view(place, owners.index(lease.owner), session)

    def _append(
        self,
        place: int,
        session: str,
        lease: Lease,
        position: int,
        move: Move,
        consumes: Sequence[str] = (),
        *,
        release: bool = False,
    ) -> None:
        model = self.models[place]
        refusal = model.appending(session, lease, position, move, consumes)
        attempt = self._holder(place, session, lease).append(
            lease,
            position,
            move.facts,
            head=move.head,
            edges=move.edges,
            payloads=move.payloads,
            consumes=consumes,
            release=release,
        )
        done = self._ask(attempt, *refusal)
        if done is None:
            return
        batch = model.append(session, move, consumes, done.events[0].at)
        assert (done.events, done.state, done.head) == (batch.events, batch.state, batch.head)
        known = model.sessions[session]
        assert done.inbox == (known.waiting if release else None)
        if release:
            known.lease = None
        self.pool += [i for i in batch.payloads.values() if i.encoding != "manifest"]

    def _ask(
        self,
        attempt: Awaitable[T],
        *refusals: type[HoldfastError],
        quiet: bool = False,
    ) -> T | None:
        """Return the answer; None where it was refused as foretold."""

        async def answer() -> T:
            return await attempt

        try:
            done = self.run(answer())
        except refusals:
            return None
        assert not refusals, f"expected {refusals}, got {done!r}"
        return True if quiet else done  # type: ignore[return-value]

    def _erasable(self, model: ModelStore, known: ModelSession) -> list[str]:
        manifests = {
            item["$ref"]
            for event in known.events
            for item in _dicts(event.data)
            if item.get("encoding") == "manifest"
        }
        inline = {slot_id for event in known.events for slot_id in _inline_ids(event.data)}
        asked = {item.content.id for item in known.inbox.values() if item.content is not None}
        return sorted((model.used(known) | inline | known.erased.keys()) - manifests - asked)

    async def _compare(self, place: int, store: SessionStore) -> None:
        model = self.models[place]
        listed = await store.list_sessions(SessionFilter(tenant=ALL_TENANTS))
        keys = {Address(info.tenant, info.id).key: info for info in listed.sessions}
        assert {key: info.seq for key, info in keys.items()} == {
            session: known.state.seq for session, known in model.sessions.items()
        }
        for key, info in keys.items():
            known, view = model.sessions[key], store.of(info.tenant)
            assert (info.tenant, info.imported) == (known.tenant, known.imported)
            assert await view.load_state(info.id) == known.state
            assert await all_events(view, info.id) == known.events
            inbox = await view.list_inbox(info.id, pending=False)
            assert [(i.key, i.consumed_seq) for i in inbox] == [
                (i.key, i.consumed_seq) for i in known.inbox.values()
            ]
            waits = (await view.pending(PendingFilter(session=info.id))).waits
            assert [(w.call_id, w.wait, w.deadline, w.assignee) for w in waits] == model.waits(key)
            assert set(await view.erased(info.id)) == known.erased.keys()
            for payload_id in model.used(known):
                assert await view.get_payload(info.id, payload_id) == model.bytes[payload_id]
            assert (await verify(view, info.id)).problems == ()


def _id(session: str) -> str:
    return address_of(session).id


def _one(refusal: type[HoldfastError] | None) -> tuple[type[HoldfastError], ...]:
    return () if refusal is None else (refusal,)


def _dicts(part: Any) -> list[dict[str, Any]]:
    if isinstance(part, dict):
        return [part, *(found for value in part.values() for found in _dicts(value))]
    return [found for value in part for found in _dicts(value)] if isinstance(part, list) else []


def _inline_ids(part: Any) -> list[str]:
    return [item.id for item in walk(part) if item.inline]
