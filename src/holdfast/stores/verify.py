"""Verify: prove a session from its first event to its last, on any store.

Recomputes the running digest and replays the log: sequence numbers have no gap, every fact is
legal where it stands, every head and edge carries the id of its content and builds on the one
before. Every payload referred to must be there with the bytes its id promises, and what the store
keeps beside the log (state, listing, inbox, tombstones) must say what the log says. It reads on
after a finding, so that the report names the first bad event and everything else that can be
judged; it repairs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from typing import cast

from holdfast.core import escrow, replay
from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    InvalidInput,
    InvalidRef,
    PayloadNotFound,
    StoreFailed,
    StoreNewer,
)
from holdfast.core.events import Event, check_digest
from holdfast.core.facts import BudgetSettled
from holdfast.core.fold import apply
from holdfast.core.ids import check_id, friendly_name
from holdfast.core.payloads import Reachable, Slot, size_error, walk
from holdfast.core.state import State, empty
from holdfast.stores import rows, waits
from holdfast.stores.port import (
    PendingFilter,
    Problem,
    SessionFilter,
    SessionInfo,
    SessionStore,
    VerifyReport,
)

UNREADABLE = (Corruption, StoreFailed, StoreNewer)
PAGE_EVENTS = 500
TRIES = 20
_KINDS = {"head.published": "head", "lineage.added": "edge"}
_MOVING = frozenset({"status", "imported", "inbox"})


async def verify(store: SessionStore, session_id: str) -> VerifyReport:
    """Return what checking a whole session found."""
    check_id(session_id)
    run = _Verification(store, session_id)
    for _ in range(TRIES):
        last = await _last(store, session_id)
        async for item in _events(store, session_id, run.seq, last):
            if isinstance(item, Event):
                await run.event(item)
            else:
                run.problem(item)
        if await run.agrees_with_store():
            break
    else:
        run.wrong("gap", f"the log ends at event {run.seq}, but the store says otherwise", run.seq)
    await run.check_inbox()
    await run.check_tombstones()
    await run.check_children()
    return VerifyReport(
        session=session_id,
        events=run.events,
        payloads=len(run.checked),
        erased=sum(not _is_expiry(rule) for rule in run.erased.values()),
        expired=sum(map(_is_expiry, run.erased.values())),
        problems=tuple(run.problems),
        head=None if run.state is None else run.state.head,
        digest=run.digest,
    )


def _is_expiry(rule: str) -> bool:
    return rule.partition(":")[0] == "expired"


async def _last(store: SessionStore, session_id: str) -> int:
    """Return where the listing says that a log ends; one that cannot be read is found later on."""
    try:
        last = (await store.session_info(session_id)).seq
    except UNREADABLE:
        return 0
    return last if type(last) is int else 0


async def _events(
    store: SessionStore, session_id: str, after: int, last: int
) -> AsyncIterator[Event | Problem]:
    """Yield events, and a problem in place of each one that cannot be read."""
    while True:
        try:
            page = await store.read_events(session_id, after=after, limit=PAGE_EVENTS)
        except UNREADABLE:
            page = []
        if page:
            for event in page:
                yield event
            after = page[-1].seq
            continue
        if after >= last:
            return
        # Some event of this page is unreadable: go one by one past it.
        seq = after + 1
        try:
            single = await store.read_events(session_id, after=after, before=seq + 1, limit=1)
        except UNREADABLE as error:
            kind = "gap" if "missing" in error.details else "line"
            yield Problem(session_id, kind, str(error), seq)
        else:
            if not single:
                yield Problem(session_id, "gap", f"event {seq} is missing", seq)
            for event in single:
                yield event
        after = seq


class _Verification:
    """The running state of one verification; `state` is None once the fold is broken."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self.store = store
        self.session = session_id
        self.state: State | None = empty(session_id)
        self.digest: str | None = self.state.digest if self.state else None
        self.seq = 0
        self.events = 0
        self.reachable = Reachable()
        self.checked: set[str] = set()
        self.erased: dict[str, str] = {}
        """What is erased, and by which rule."""
        self.marked: dict[str, int] = {}
        self.live: set[str] = set()
        self.settled: list[tuple[int, BudgetSettled]] = []
        """What closed the grants of children, with its place."""
        self.suspended: list[Event] = []
        """The events that began waits."""
        self.problems: list[Problem] = []

    def problem(self, item: Problem) -> None:
        self.problems.append(item)
        if item.kind in ("line", "gap") and item.seq is not None:
            # The chain is broken here: it is taken up again at the next readable event.
            self.seq = max(self.seq, item.seq)
            self.digest = self.state = None

    def wrong(self, kind: str, message: str, seq: int | None = None) -> None:
        self.problems.append(Problem(self.session, kind, message, seq))

    async def event(self, event: Event) -> None:
        self.events += 1
        if event.seq != self.seq + 1:
            self.problem(
                Problem(self.session, "gap", f"event {self.seq + 1} is missing", self.seq + 1)
            )
        if self.digest is not None:
            try:
                check_digest(self.digest, event)
            except HoldfastError as error:
                self.wrong("digest", str(error), event.seq)
        self.seq, self.digest = event.seq, event.digest
        if event.type == waits.SUSPENDED:
            self.suspended.append(event)
        if event.type == BudgetSettled.TYPE and event.data.get("child") and event.known:
            self.settled.append((event.seq, cast(BudgetSettled, event.fact())))
        self._fold(event)
        try:
            slots = list(walk(event.data))
        except InvalidInput as error:
            self.wrong("line", str(error), event.seq)
            return
        for item in slots:
            if item.erased is None:
                self.live.add(item.id)
            else:
                self.marked[item.id] = event.seq
        await self._payloads(slots, event.seq)

    def _fold(self, event: Event) -> None:
        if self.state is None:
            return
        try:
            self.state = replay.step_meaning(self.state, event)
        except Corruption as error:
            self.wrong(_KINDS.get(event.type, "meaning"), str(error), event.seq)
            try:
                self.state = apply(self.state, event)
            except Exception:  # whatever a damaged event makes of the fold, it is named above
                self.state = None

    async def agrees_with_store(self) -> bool:
        """Compare what the store keeps beside the log; False if the log has moved meanwhile."""
        try:
            stored = await self.store.load_state(self.session)
            info = await self.store.session_info(self.session)
            listed = await self._listed()
        except UNREADABLE as error:
            self.wrong("state", str(error))
            return True
        if stored.seq > self.seq or info.seq > self.seq:
            return False
        if self.state is None:
            return True
        names = [
            name
            for name in State.__struct_fields__
            if getattr(stored, name) != getattr(self.state, name)
        ]
        if names:
            self.wrong("state", f"the stored state differs from the log in {', '.join(names)}")
        if listed is None:
            self.wrong("state", "the session is not listed by its name")
        else:
            self._compare_listing(listed, self.state)
        await self._compare_waits(self.state)
        return True

    async def _listed(self) -> SessionInfo | None:
        """Return what listings show of the session, which may be less true than `session_info`."""
        where, cursor = SessionFilter(name=friendly_name(self.session)), None
        while True:
            page = await self.store.list_sessions(where, cursor=cursor)
            for info in page.sessions:
                if info.id == self.session:
                    return info
            cursor = page.cursor
            if cursor is None:
                return None

    def _compare_listing(self, info: SessionInfo, state: State) -> None:
        wanted = rows.info_of(state, live=True, imported=False, waiting=0)
        names = [
            f.name
            for f in fields(SessionInfo)
            if f.name not in _MOVING and getattr(info, f.name) != getattr(wanted, f.name)
        ]
        if info.status not in {rows.shown_status(state, live) for live in (True, False)}:
            names.append("status")
        if names:
            self.wrong("state", f"the listing differs from the log in {', '.join(names)}")

    async def _compare_waits(self, state: State) -> None:
        try:
            wanted = {w.call_id: w for w in waits.waits_of(state, reversed(self.suspended))}
            page = await self.store.pending(
                PendingFilter(session=self.session), limit=len(wanted) + 1
            )
            listed = {wait.call_id: wait for wait in page.waits}
        except (*UNREADABLE, InvalidInput, LookupError) as error:
            self.wrong("state", f"the waiting calls cannot be listed: {error}")
            return
        for call_id in sorted(wanted.keys() | listed.keys()):
            if wanted.get(call_id) != listed.get(call_id):
                self.wrong(
                    "state", f"what is listed of waiting call {call_id!r} differs from the log"
                )

    async def check_inbox(self) -> None:
        try:
            items = await self.store.list_inbox(self.session, pending=False)
        except (HoldfastError, ValueError) as error:
            self.wrong("inbox", str(error))
            return
        for item in items:
            if item.consumed_seq is not None and not 0 < item.consumed_seq <= self.seq:
                self.wrong("inbox", f"item {item.key!r} was consumed by no event of this log")
            if item.content is not None:
                await self._payloads([item.content], item.consumed_seq)

    async def check_children(self) -> None:
        """Compare what closed each child's grant with what the log of that child says."""
        for seq, fact in self.settled:
            if not await self._is_spent(fact):
                self.wrong(
                    "children",
                    f"{fact.reservation!r} was closed with sums that the log of session "
                    f"{fact.child!r} never had",
                    seq,
                )

    async def _is_spent(self, fact: BudgetSettled) -> bool:
        """Tell whether a child had spent what its parent says, at the end of its turn or later."""
        assert fact.child is not None
        call_id, last = fact.reservation.partition(":")[2], fact.child
        try:
            state = await self.store.load_state(last)
            if escrow.closing(call_id, state) == fact:
                return True
            if state.counters.get("turn", 0) <= 1 and state.turn is None and not state.reserved:
                return False  # nothing was spent since
            state = empty(last)
            async for item in _events(self.store, last, 0, 0):
                if isinstance(item, Event):
                    state = apply(state, item)
                    if escrow.closing(call_id, state) == fact:
                        return True
        except (HoldfastError, LookupError, ValueError):
            return True  # it is not here, or not whole: its own verification says so
        return False

    async def check_tombstones(self) -> None:
        """Find values that look erased although nobody erased them."""
        try:
            known = await self.store.erased(self.session)
        except UNREADABLE as error:
            self.wrong("erased", str(error))
            return
        for payload_id, seq in self.marked.items():
            if payload_id not in known and payload_id not in self.live:
                message = f"payload {payload_id!r} is marked as erased, but no erasure is recorded"
                self.problems.append(Problem(self.session, "erased", message, seq, payload_id))

    async def _payloads(self, slots: Sequence[Slot], seq: int | None) -> None:
        self.reachable.add(slots)
        for item in self.reachable:
            if item.erased is not None:
                self.erased[item.id] = item.erased.rule
                continue
            # Erased before, it may have been said again since: the store knows.
            self.checked.add(item.id)
            try:
                data = await self.store.get_payload(self.session, item.id)
                if len(data) != item.size:
                    self._bad_payload("payload", size_error(item, len(data)), item, seq)
                self.reachable.follow(item, data)
            except PayloadNotFound as error:
                if "erased_at" in error.details:
                    self.checked.discard(item.id)
                    self.erased[item.id] = error.details["rule"]
                else:
                    self._bad_payload("dangling", error, item, seq)
            except InvalidRef as error:
                self._bad_payload("dangling", error, item, seq)
            except UNREADABLE as error:
                self._bad_payload("payload", error, item, seq)

    def _bad_payload(self, kind: str, error: HoldfastError, item: Slot, seq: int | None) -> None:
        self.problems.append(Problem(self.session, kind, str(error), seq, item.id))
