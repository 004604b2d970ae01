"""Chapter: calls that wait are listed over all sessions; the first answer to each counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import InboxConflict, InvalidInput, InvalidRef
from holdfast.core.events import now
from holdfast.core.facts import CallExtended, CallResolved, SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.port import (
    DuePage,
    InboxDraft,
    InboxItem,
    PendingFilter,
    PendingWait,
    SessionFilter,
    SessionStore,
)
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import drive
from holdfast.testing.histories import start_turn

PAST, FUTURE = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00.000000Z"
BIG = "a large question " * 300


async def waiting(store: SessionStore, **where: Any) -> list[PendingWait]:
    """Return all waits that match, read one by one."""
    due_before = where.pop("due_before", None)
    found: list[PendingWait] = []
    cursor = None
    while True:
        page = await store.pending(
            PendingFilter(**where), due_before=due_before, limit=1, cursor=cursor
        )
        found += page.waits
        cursor = page.cursor
        if cursor is None:
            break
    whole = await store.pending(PendingFilter(**where), due_before=due_before)
    assert list(whole.waits) == found
    return found


async def names(store: SessionStore, **where: Any) -> list[str]:
    """Return session and call of all waits that match."""
    return [f"{wait.session}/{wait.call_id}" for wait in await waiting(store, **where)]


class WaitsContract(ContractPlace):
    """Calls that wait for someone."""

    async def test_a_call_that_waits_is_listed_with_what_they_must_know(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store, started=SessionStarted(agent="clerk"))
        done = await driver.ask("c-1", "Pay?", deadline=FUTURE, assignee="ann", kind="approval")
        other = await place.open()
        (wait,) = await waiting(other)
        assert wait == PendingWait(
            session="s-1",
            tenant="default",
            agent="clerk",
            call_id="c-1",
            name="ask",
            wait=1,
            kind="approval",
            since=done.events[-1].at,
            seq=done.state.seq,
            deadline=FUTURE,
            assignee="ann",
            prompt=slot("Pay?", "message"),
        )
        assert wait.prompt is not None
        assert wait.prompt.value() == "Pay?"
        assert await waiting(await place.reopen(store)) == [wait]

    async def test_a_wait_is_listed_until_its_call_moves_on(self, store: SessionStore) -> None:
        driver = await drive(store)
        await driver.ask("c-1")
        await driver.ask("c-2", wait=1, deadline=PAST)
        await driver.append(CallExtended(call_id="c-2", deadline=FUTURE))
        assert [wait.deadline for wait in await waiting(store)] == [None, FUTURE]
        await driver.ask("c-1", "Really?", wait=2, assignee="bob")
        (second, first) = await waiting(store)
        assert (first.call_id, first.wait, first.assignee) == ("c-1", 2, "bob")
        assert second.call_id == "c-2"
        await driver.append(CallResolved(call_id="c-1", outcome="ok"))
        assert await names(store) == ["s-1/c-2"]
        await driver.append(CallResolved(call_id="c-2", outcome="expired"))
        assert await waiting(store) == []
        assert (await verify(store, "s-1")).ok

    async def test_filters_narrow_the_waits_of_all_sessions(self, store: SessionStore) -> None:
        for number in range(4):
            started = SessionStarted(agent=f"a-{number % 2}")
            driver = await drive(store, f"s-{number}", started)
            deadline = (None, PAST, "2021-01-01T00:00:00+00:00", FUTURE)[number]
            kind = "question" if number < 2 else "approval"
            await driver.ask("c", deadline=deadline, kind=kind, assignee=("ann", "bob")[number % 2])
        assert await names(store) == ["s-0/c", "s-1/c", "s-2/c", "s-3/c"]
        assert await names(store, session="s-2") == ["s-2/c"]
        assert await names(store, agent="a-1") == ["s-1/c", "s-3/c"]
        assert await names(store, assignee="ann") == ["s-0/c", "s-2/c"]
        assert await names(store, kind="approval", assignee="bob") == ["s-3/c"]
        assert await names(store, due_before=now()) == ["s-1/c", "s-2/c"]
        assert await names(store, due_before="2020-06-01T00:00:00Z") == ["s-1/c"]
        assert await names(store, due_before=now(), session="s-3") == []
        assert await names(store, session="s-9") == []
        for wrong in ({"due_before": "soon"}, {"session": "../x"}, {"kind": 3}):
            with pytest.raises(InvalidInput):
                await waiting(store, **wrong)

    async def test_a_large_question_is_a_payload_of_its_session_and_can_be_erased(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", BIG)
        await driver.ask("c-2", "a secret question")
        for wait, text in zip(await waiting(store), (BIG, "a secret question"), strict=True):
            assert wait.prompt is not None
            if not wait.prompt.inline:
                assert await store.get_payload("s-1", wait.prompt.id) == text.encode()
            await store.erase("s-1", wait.prompt.id, "privacy")
        for wait in await waiting(store):
            assert wait.prompt is not None
            assert wait.prompt.erased is not None

    async def test_a_session_that_is_deleted_or_imported_takes_its_waits_along(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", deadline=PAST)
        await store.release(driver.lease)
        path = place.path.parent / "export"
        await export_sessions(store, ["s-1"], path)
        elsewhere = await place.sibling("copy").open()
        await import_sessions(elsewhere, path)
        assert await waiting(elsewhere) == await waiting(store)
        await store.delete("s-1")
        assert await waiting(store) == []

    async def test_the_first_of_answer_and_expiry_wins(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", deadline=PAST)
        stores = [store, await place.open()]
        drafts = [
            InboxDraft("answer-1", "answer", "c-1", slot("yes", "answer"), wait=1),
            InboxDraft("expiry-1", "expiry", "c-1", wait=1),
        ]
        results = await asyncio.gather(
            *(stores[n % 2].put_inbox("s-1", drafts[n // 2]) for n in range(4)),
            return_exceptions=True,
        )
        stored = await store.list_inbox("s-1")
        assert len(stored) == 1
        losers = [result for result in results if isinstance(result, InboxConflict)]
        winners = [result for result in results if isinstance(result, InboxItem)]
        assert winners == stored * 2
        assert len(losers) == 2

    async def test_the_same_answer_under_another_key_is_the_one_that_counts(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1")
        yes = slot("yes", "answer")
        first = await store.put_inbox("s-1", InboxDraft("a", "answer", "c-1", yes, by="ann"))
        assert (first.wait, first.by) == (1, "ann")
        again = InboxDraft("b", "answer", "c-1", yes, wait=1, by="bob")
        assert await store.put_inbox("s-1", again) == first
        assert await store.put_inbox("s-1", InboxDraft("a", "answer", "c-1", yes)) == first
        for other in (
            InboxDraft("b", "answer", "c-1", slot("no", "answer")),
            InboxDraft("a", "answer", "c-1", yes, wait=2),
            InboxDraft("b", "extend", "c-1", slot(FUTURE, "input")),
            InboxDraft("b", "cancel", "c-1"),
        ):
            with pytest.raises(InboxConflict):
                await store.put_inbox("s-1", other)
        assert await store.list_inbox("s-1") == [first]

    async def test_what_counted_still_keeps_others_out_once_it_is_consumed(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", deadline=PAST)
        await store.put_inbox("s-1", InboxDraft("a", "answer", "c-1", slot("yes", "answer")))
        await driver.append(CallResolved(call_id="c-1", outcome="ok"), consumes=["a"])
        for late in ("expiry", "cancel"):
            with pytest.raises(InboxConflict):
                await store.put_inbox("s-1", InboxDraft("b", late, "c-1", wait=1))

    async def test_each_wait_of_a_call_has_an_answer_of_its_own(self, store: SessionStore) -> None:
        driver = await drive(store)
        await driver.ask("c-1")
        answer = slot("yes", "answer")
        await store.put_inbox("s-1", InboxDraft("a", "answer", "c-1", answer))
        await driver.ask("c-1", "And now?", wait=2)
        second = await store.put_inbox("s-1", InboxDraft("b", "answer", "c-1", answer))
        assert (second.key, second.wait) == ("b", 2)
        with pytest.raises(InboxConflict):
            await store.put_inbox("s-1", InboxDraft("c", "answer", "c-1", wait=1))

    async def test_a_wait_can_be_extended_and_cancelled_until_it_is_decided(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", deadline=FUTURE)
        kinds = ("extend", "extend", "cancel", "answer")
        for number, kind in enumerate(kinds):
            draft = InboxDraft(f"k-{number}", kind, "c-1")  # type: ignore[arg-type]
            await store.put_inbox("s-1", draft)
        assert [item.kind for item in await store.list_inbox("s-1")] == list(kinds)

    async def test_an_expiry_is_refused_before_its_deadline_and_where_nothing_waits(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c-1", deadline=FUTURE)
        await driver.ask("c-2")
        for call_id, wait in (("c-1", 1), ("c-1", None), ("c-2", 1), ("c-3", None)):
            with pytest.raises(InboxConflict, match="cannot expire"):
                await store.put_inbox("s-1", InboxDraft("e", "expiry", call_id, wait=wait))
        await driver.append(CallExtended(call_id="c-1", deadline=PAST))
        with pytest.raises(InboxConflict, match="cannot expire"):
            await store.put_inbox("s-1", InboxDraft("e", "expiry", "c-1", wait=2))
        item = await store.put_inbox("s-1", InboxDraft("e", "expiry", "c-1"))
        assert item.wait == 1
        await driver.append(CallResolved(call_id="c-1", outcome="expired"), consumes=["e"])

    async def test_items_about_waits_that_there_cannot_be_are_refused(
        self, store: SessionStore
    ) -> None:
        await drive(store)
        for wait in (0, -1, True, "1", 2**63):
            with pytest.raises(InvalidInput):
                await store.put_inbox(
                    "s-1",
                    InboxDraft("k", "answer", "c", wait=wait),  # type: ignore[arg-type]
                )
        with pytest.raises(InvalidInput):
            await store.put_inbox("s-1", InboxDraft("k", "answer", "c", by=3))  # type: ignore[arg-type]
        assert await store.list_inbox("s-1") == []


class WorkContract(ContractPlace):
    """What a sweep finds."""

    async def due(self, store: SessionStore, at: str | None = None) -> dict[str, tuple[str, ...]]:
        """Return the sessions with work and the reasons, read one by one."""
        found: dict[str, tuple[str, ...]] = {}
        page: DuePage | None = None
        while page is None or page.cursor is not None:
            cursor = None if page is None else page.cursor
            page = await store.work_due(at or now(), limit=1, cursor=cursor)
            found |= {due.session: due.reasons for due in page.sessions}
        assert len((await store.work_due(at or now())).sessions) == len(found)
        return found

    async def test_a_sweep_finds_inbox_items_due_deadlines_and_turns_without_a_driver(
        self, place: Place, store: SessionStore
    ) -> None:
        drivers = {
            name: await drive(store, name) for name in ("ask", "late", "idle", "turn", "far")
        }
        await store.put_inbox("ask", InboxDraft("m", "message"))
        await drivers["late"].ask("c", deadline=PAST)
        await drivers["far"].ask("c", deadline=FUTURE)
        turn = drivers["turn"]
        await turn.play(start_turn(turn.state, "hi"))
        assert await self.due(store) == {}  # all of them are driven
        for driver in drivers.values():
            await store.release(driver.lease)
        everything = {"ask": ("inbox",), "late": ("deadline",), "turn": ("open",)}
        assert await self.due(store) == everything
        assert await self.due(await place.open()) == everything
        assert "far" in await self.due(store, "3000-01-01T00:00:00Z")
        assert await self.due(store, "2019-01-01T00:00:00Z") == {
            "ask": ("inbox",),
            "turn": ("open",),
        }
        with pytest.raises(InvalidInput):
            await store.work_due("now")

    async def test_a_sweep_finds_the_turn_of_a_driver_that_died(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.play(start_turn(driver.state, "hi"))
        await store.release(driver.lease)
        await self.die_holding(store, "s-1")
        assert await self.due(await place.open()) == {"s-1": ("open",)}

    async def test_a_sweep_passes_over_copies_that_nobody_took_over(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.ask("c", deadline=PAST)
        path = place.path.parent / "export"
        await export_sessions(store, ["s-1"], path)
        elsewhere = await place.sibling("copy").open()
        await import_sessions(elsewhere, path)
        assert await self.due(elsewhere) == {}
        await elsewhere.release(await elsewhere.acquire("s-1", takeover=True))
        assert await self.due(elsewhere) == {"s-1": ("deadline",)}

    async def test_sessions_are_found_by_name_and_status(self, store: SessionStore) -> None:
        for number in range(3):
            await drive(store, f"s-{number}")
        info = await store.session_info("s-1")
        assert (await store.list_sessions(SessionFilter(name=info.name))).sessions == (info,)
        found = await store.list_sessions(SessionFilter(name=info.name, status="stopped"))
        assert found.sessions == ()


class PostsContract(ContractPlace):
    """Items for other sessions, put with an append."""

    async def test_a_post_is_put_with_its_batch_or_not_at_all(self, store: SessionStore) -> None:
        driver, other = await drive(store, "s-1"), await drive(store, "s-2")
        draft = InboxDraft("done", "child_ended", "c-1", slot("the value", "final"))
        if not store.flags.posts:
            with pytest.raises(InvalidInput, match="posts"):
                await driver.append(driver.message("x"), posts=[("s-2", draft)])
            assert (await store.load_state("s-1")).seq == 1
            return
        with pytest.raises(InvalidInput):
            await driver.append(driver.message("x"), posts=[("../x", draft)])
        with pytest.raises(Exception, match="not open"):
            await driver.append(CallResolved(call_id="none", outcome="ok"), posts=[("s-2", draft)])
        assert await store.list_inbox("s-2") == []
        await driver.append(driver.message("ended"), posts=[("s-2", draft)], release=True)
        (item,) = await store.list_inbox("s-2")
        assert (item.key, item.kind, item.call_id) == ("done", "child_ended", "c-1")
        assert await store.put_inbox("s-2", draft) == item
        await other.append(other.message("took it"), consumes=["done"])
        for session in ("s-1", "s-2"):
            assert (await verify(store, session)).ok

    async def test_what_a_post_names_becomes_the_targets_own(self, store: SessionStore) -> None:
        if not store.flags.posts:
            return
        driver = await drive(store, "s-1")
        await drive(store, "s-2")
        small, large = slot(BIG, "final"), slot(BIG * 50, "final")
        await driver.say(small)
        await driver.say(large)
        named = [
            InboxDraft(f"k-{n}", "message", content=item.bare())
            for n, item in enumerate((small, large))
        ]
        brought = slot("brought along " * 9000, "final")
        foreign = InboxDraft("k", "message", content=slot("not ours " * 300, "final").bare())
        with pytest.raises(InvalidRef):
            await driver.append(driver.message("x"), posts=[("s-2", foreign)])
        await driver.append(
            driver.message("x"),
            posts=[
                *(("s-2", draft) for draft in named),
                ("s-2", InboxDraft("k-2", "message", content=brought)),
            ],
        )
        await store.release(driver.lease)
        await store.delete("s-1")
        await store.gc(grace_seconds=-1)
        for item in (small, large, brought):
            assert await store.get_payload("s-2", item.id) == item.data
        assert (await verify(store, "s-2")).ok

    async def test_a_post_that_its_target_does_not_take_is_logged_and_dropped(
        self, store: SessionStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        if not store.flags.posts:
            return
        driver, other = await drive(store, "s-1"), await drive(store, "s-2")
        gone = await drive(store, "s-3")
        await store.release(gone.lease)
        await store.delete("s-3")
        await other.ask("c-1")
        await store.put_inbox("s-2", InboxDraft("a", "answer", "c-1", slot("yes", "answer")))
        late = InboxDraft("b", "answer", "c-1", slot("no", "answer"))
        posts = [("s-9", late), ("s-3", late), ("s-2", late)]
        done = await driver.append(driver.message("x"), posts=posts)
        assert done.state.seq == 2
        assert [item.key for item in await store.list_inbox("s-2")] == ["a"]
        for target in ("s-9", "s-3", "s-2"):
            assert f"to session {target}, which did not take it" in caplog.text

    async def test_who_follows_the_target_hears_of_a_post(
        self, place: Place, store: SessionStore
    ) -> None:
        if not store.flags.posts:
            return
        driver = await drive(store, "s-1")
        await drive(store, "s-2")
        for listener in (store, await place.open()):
            async with listener.subscribe_all() as hints:
                await driver.append(
                    driver.message("x"),
                    posts=[("s-2", InboxDraft(f"k-{id(listener)}", "message"))],
                )
                async with asyncio.timeout(10):
                    while (await anext(aiter(hints))).session != "s-2":
                        pass
