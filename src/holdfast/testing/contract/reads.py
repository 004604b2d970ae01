"""Chapter: pages of a log in both directions, and listings that filter and page without repeats."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import facts
from holdfast.core.errors import InvalidInput
from holdfast.stores.port import InboxDraft, SessionFilter, SessionStore
from holdfast.stores.rows import write_cursor
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import all_events, drive
from holdfast.testing.histories import start_turn


class ReadContract(ContractPlace):
    """What readers get, with no lease at all."""

    async def test_bounds_are_exclusive_and_the_limit_holds_in_both_directions(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for number in range(9):
            await driver.say(f"m{number}")
        for after in (0, 1, 4, 9, 10, 11, 99):
            for before in (None, 1, 2, 5, 10, 11, 99):
                for limit in (1, 3, 1000):
                    wanted = [n for n in range(1, 11) if n > after and n < (before or 12)]
                    page = await store.read_events("s-1", after=after, before=before, limit=limit)
                    assert [event.seq for event in page] == wanted[:limit]
                    page = await store.read_events(
                        "s-1", after=after, before=before, limit=limit, reverse=True
                    )
                    assert [event.seq for event in page] == wanted[::-1][:limit]

    async def test_types_filter_before_the_limit_counts(self, store: SessionStore) -> None:
        driver = await drive(store)
        for number in range(3):
            await driver.turn(f"t{number}")
        heads = await store.read_events("s-1", types=["head.published"], limit=2)
        assert [event.type for event in heads] == ["head.published"] * 2
        last = await store.read_events(
            "s-1", types=["turn.put", "turn.started"], limit=1, reverse=True
        )
        assert last[0].type == "turn.put"
        assert await store.read_events("s-1", types=["no.such"]) == []
        assert await store.read_events("s-1", types=[]) == []

    @pytest.mark.parametrize(
        "bounds",
        [{"after": -1}, {"limit": 0}, {"limit": -1}, {"before": 0}, {"before": -5}]
        + [{name: 2**63} for name in ("after", "limit", "before")]
        + [{name: odd} for name in ("after", "limit", "before") for odd in (1.5, "2")],
    )
    async def test_bounds_that_no_page_has_are_refused(
        self, store: SessionStore, bounds: dict[str, int]
    ) -> None:
        await drive(store)
        with pytest.raises(InvalidInput):
            await store.read_events("s-1", **bounds)  # type: ignore[arg-type]

    async def test_reads_work_beside_a_live_driver_and_take_no_lease(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        reader = await place.open()
        for number in range(5):
            await driver.say(f"m{number}")
            assert await reader.load_state("s-1") == driver.state
            assert (await all_events(reader, "s-1"))[-1].seq == driver.state.seq
        lease = await reader.lease_of("s-1")
        assert lease is not None
        assert (lease.owner, lease.epoch) == (driver.lease.owner, driver.lease.epoch)

    async def test_a_listing_is_newest_first_and_its_pages_neither_skip_nor_repeat(
        self, store: SessionStore
    ) -> None:
        for number in range(10):
            await store.create_session(f"s-{number}", facts.SessionStarted())
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.list_sessions(limit=3, cursor=cursor)
            seen += [info.id for info in page.sessions]
            # What is made meanwhile is newer than the page and must not shift it.
            await store.create_session(f"later-{len(seen)}", facts.SessionStarted())
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"s-{number}" for number in reversed(range(10))]

    async def test_a_full_last_page_is_the_end(self, store: SessionStore) -> None:
        for number in range(4):
            await store.create_session(f"s-{number}", facts.SessionStarted())
        first = await store.list_sessions(limit=2)
        second = await store.list_sessions(limit=2, cursor=first.cursor)
        assert [info.id for info in second.sessions] == ["s-1", "s-0"]
        assert second.cursor is None
        assert (await store.list_sessions(limit=4)).cursor is None

    async def test_filters_narrow_a_listing_and_still_page(self, store: SessionStore) -> None:
        for number in range(8):
            await store.create_session(
                f"s-{number}",
                facts.SessionStarted(
                    kind="child" if number % 4 == 0 else "root",
                    agent=f"a-{number % 3}",
                    labels={"n": str(number), "even": str(number % 2 == 0)},
                    parent={"session": "s-p", "call": "c"} if number % 4 == 0 else None,
                ),
            )

        async def listed(**where: object) -> list[str]:
            wanted = SessionFilter(**where)  # type: ignore[arg-type]
            first = await store.list_sessions(wanted, limit=1)
            ids = [info.id for info in first.sessions]
            while first.cursor is not None:
                first = await store.list_sessions(wanted, limit=1, cursor=first.cursor)
                ids += [info.id for info in first.sessions]
            whole = await store.list_sessions(wanted)
            assert ids == [info.id for info in whole.sessions]
            return sorted(ids)

        assert await listed(kind="child") == ["s-0", "s-4"]
        assert await listed(parent="s-p") == ["s-0", "s-4"]
        assert await listed(agent="a-1") == ["s-1", "s-4", "s-7"]
        assert await listed(label=("even", "True"), agent="a-0") == ["s-0", "s-6"]
        assert await listed(label=("n", "3")) == ["s-3"]
        assert await listed(label=("absent", "")) == []
        assert await listed(agent="a-1", kind="child") == ["s-4"]
        assert len(await listed(status="idle")) == 8
        assert await listed(status="stopped") == []

    async def test_a_listing_can_be_of_those_whose_inbox_waits(self, store: SessionStore) -> None:
        for number in range(6):
            await store.create_session(f"s-{number}", facts.SessionStarted(agent=f"a-{number}"))
        for name in ("s-1", "s-2", "s-4"):
            await store.put_inbox(name, InboxDraft("one", "message"))
        await store.put_inbox("s-2", InboxDraft("two", "message"))
        drivers = [
            await drive(store, name, facts.SessionStarted(agent=f"a-{name[2:]}"))
            for name in ("s-2", "s-4")
        ]
        for driver in drivers:
            await driver.append(driver.message("read"), consumes=["one"])

        async def listed(**where: Any) -> list[str]:
            ids, cursor = [], None
            while True:
                page = await store.list_sessions(SessionFilter(**where), limit=1, cursor=cursor)
                ids += [info.id for info in page.sessions]
                cursor = page.cursor
                if cursor is None:
                    return ids

        assert await listed(waiting=True) == ["s-2", "s-1"]
        assert await listed(waiting=False) == ["s-5", "s-4", "s-3", "s-0"]
        assert await listed(waiting=True, agent="a-1", status="idle") == ["s-1"]
        assert await listed(waiting=True, agent="a-3") == []
        await drivers[0].append(drivers[0].message("read"), consumes=["two"])
        assert await listed(waiting=True) == ["s-1"]
        for odd in (1, "yes", 0):
            with pytest.raises(InvalidInput, match="whether something waits"):
                await listed(waiting=odd)

    async def test_a_row_says_what_the_state_says(self, store: SessionStore) -> None:
        driver = await drive(store, started=facts.SessionStarted(agent="bot", labels={"a": "b"}))
        head = await driver.turn("hi")
        info = await store.session_info("s-1")
        assert (info.id, info.agent, info.labels) == ("s-1", "bot", {"a": "b"})
        assert (info.seq, info.turns, info.head) == (driver.state.seq, 1, head)
        assert (info.status, info.last_turn, info.inbox) == ("idle", "final", 0)
        assert (info.started_at, info.updated_at) == (
            driver.state.started_at,
            driver.state.updated_at,
        )
        assert (await store.list_sessions()).sessions == (info,)

    async def test_running_is_only_shown_while_a_live_lease_stands_behind_it(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.play(start_turn(driver.state, "hi"))
        assert (await store.session_info("s-1")).status == "running"
        await store.release(driver.lease)
        assert (await store.session_info("s-1")).status == "interrupted"
        interrupted = await store.list_sessions(SessionFilter(status="interrupted"))
        assert [info.id for info in interrupted.sessions] == ["s-1"]
        assert (await store.list_sessions(SessionFilter(status="running"))).sessions == ()
        assert (await store.load_state("s-1")).status == "running"

    @pytest.mark.parametrize("cursor", ["", "x", "é", "-1", "A" * 5000, write_cursor(2**64)])
    async def test_a_cursor_that_no_listing_returned_is_refused(
        self, store: SessionStore, cursor: str
    ) -> None:
        with pytest.raises(InvalidInput):
            await store.list_sessions(cursor=cursor)
        with pytest.raises(InvalidInput):
            await store.list_sessions(limit=0)
        with pytest.raises(InvalidInput):
            await store.list_sessions(limit=2**63)
        with pytest.raises(InvalidInput):
            await store.list_sessions(limit=1.5)  # type: ignore[arg-type]
