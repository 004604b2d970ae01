"""Verify: prove a session from its first event to its last, on any store.

Recomputes the running digest, checks that sequence numbers have no gap, that every head and edge
carries the id of its content and builds on the one before, and that every payload referred to is
there with the bytes its id promises. It reads on after a finding, so that the report names the
first bad event and everything else that can be judged; it repairs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.core import heads
from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    InvalidInput,
    InvalidRef,
    PayloadNotFound,
    StoreFailed,
)
from holdfast.core.events import Event, chain_start, check_digest
from holdfast.core.facts import HeadPublished, LineageAdded
from holdfast.core.payloads import Slot, manifest_slots, walk
from holdfast.stores.port import Problem, SessionStore, VerifyReport

PAGE_EVENTS = 500


async def verify(store: SessionStore, session_id: str) -> VerifyReport:
    """Return what checking a whole session found."""
    run = _Verification(store, session_id)
    info = await store.session_info(session_id)
    async for item in _events(store, session_id, info.seq):
        if isinstance(item, Event):
            await run.event(item)
        else:
            run.problem(item)
    if run.seq < info.seq:
        run.problem(
            Problem(
                session_id, "gap", f"events {run.seq + 1} to {info.seq} are missing", run.seq + 1
            )
        )
    return VerifyReport(
        session=session_id,
        events=run.events,
        payloads=len(run.checked),
        erased=len(run.erased),
        problems=tuple(run.problems),
        head=run.head,
        digest=run.digest,
    )


async def _events(
    store: SessionStore, session_id: str, last: int
) -> AsyncIterator[Event | Problem]:
    """Yield events, and a problem in place of each one that cannot be read."""
    after = 0
    while after < last:
        try:
            page = await store.read_events(session_id, after=after, limit=PAGE_EVENTS)
        except (Corruption, StoreFailed):
            page = []
        if page:
            for event in page:
                yield event
            after = page[-1].seq
            continue
        # Some event of this page is unreadable: go one by one past it.
        seq = after + 1
        try:
            single = await store.read_events(session_id, after=after, before=seq + 1, limit=1)
        except (Corruption, StoreFailed) as error:
            yield Problem(session_id, "line", str(error), seq)
        else:
            if not single:
                yield Problem(session_id, "gap", f"event {seq} is missing", seq)
            for event in single:
                yield event
        after = seq


class _Verification:
    """The running state of one verification."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self.store = store
        self.session = session_id
        self.digest: str | None = chain_start(session_id)
        self.seq = 0
        self.events = 0
        self.head: str | None = None
        self.head_end = 0
        self.digests: dict[int, str] = {}
        self.checked: set[str] = set()
        self.erased: set[str] = set()
        self.problems: list[Problem] = []

    def problem(self, item: Problem) -> None:
        self.problems.append(item)
        if item.kind in ("line", "gap") and item.seq is not None:
            # The chain is broken here: it is taken up again at the next readable event.
            self.seq = max(self.seq, item.seq)
            self.digest = None

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
                self.problems.append(Problem(self.session, "digest", str(error), event.seq))
        self.seq, self.digest = event.seq, event.digest
        self._check_meaning(event)
        self.digests = {self.seq: event.digest}
        try:
            slots = list(walk(event.data))
        except InvalidInput as error:
            self.problems.append(Problem(self.session, "line", str(error), event.seq))
            return
        for item in slots:
            await self._payload(item, event.seq)

    def _check_meaning(self, event: Event) -> None:
        """Check a head or an edge against its content and its predecessor."""
        if not event.known or event.type not in ("head.published", "lineage.added"):
            return
        try:
            fact = event.fact()
        except HoldfastError as error:
            self.problems.append(Problem(self.session, "line", str(error), event.seq))
            return
        if isinstance(fact, LineageAdded):
            if heads.content_id(fact) != fact.id:
                self._wrong("edge", f"edge {fact.id} does not match its content", event.seq)
        elif isinstance(fact, HeadPublished):
            if heads.content_id(fact) != fact.id:
                self._wrong("head", f"head {fact.id} does not match its content", event.seq)
            boundary = self.digests.get(event.seq - 1)
            expected = (self.session, self.head, [self.head_end + 1, event.seq - 1])
            if (fact.session, fact.basis, fact.range) != expected:
                self._wrong("head", f"head {fact.id} does not follow the one before", event.seq)
            elif boundary is not None and fact.digest != boundary:
                self._wrong("head", f"head {fact.id} covers another history", event.seq)
            self.head, self.head_end = fact.id, event.seq - 1

    def _wrong(self, kind: str, message: str, seq: int) -> None:
        self.problems.append(Problem(self.session, kind, message, seq))

    async def _payload(self, first: Slot, seq: int) -> None:
        queue = [first]
        while queue:
            item = queue.pop()
            if item.inline and item.erased is None:
                continue
            if item.erased is not None:
                self.erased.add(item.id)
                continue
            if item.id in self.checked or item.id in self.erased:
                continue
            self.checked.add(item.id)
            try:
                data = await self.store.get_payload(self.session, item.id)
                queue.extend(manifest_slots(item, data))
            except PayloadNotFound as error:
                if "erased_at" in error.details:
                    self.checked.discard(item.id)
                    self.erased.add(item.id)
                else:
                    self._bad_payload("dangling", error, item, seq)
            except InvalidRef as error:
                self._bad_payload("dangling", error, item, seq)
            except (Corruption, StoreFailed) as error:
                self._bad_payload("payload", error, item, seq)

    def _bad_payload(self, kind: str, error: HoldfastError, item: Slot, seq: int) -> None:
        self.problems.append(Problem(self.session, kind, str(error), seq, item.id))
