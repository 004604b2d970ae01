"""Copies and moves between stores: same head ids, resumable, sealed sources, trees together."""

import itertools

import pytest

from holdfast.core.errors import (
    InvalidInput,
    LeaseHeld,
    ReadOnlySession,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.choose import open_store
from holdfast.stores.copying import copy_sessions, move_tree
from holdfast.stores.port import InboxDraft
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, all_events, drive
from holdfast.testing.histories import start_turn
from holdfast.testing.postgres_server import url_of

LARGE = "a large value " * 20_000


@pytest.fixture
async def stores(tmp_path):
    urls = [f"sqlite:{tmp_path / 'a'}", url_of(tmp_path), f"files:{tmp_path / 'b'}"]
    opened = [await open_store(url) for url in urls]
    yield opened
    for store in opened:
        await store.close()


async def told(store, name="s-1", turns=2, **started):
    driver = await drive(store, name, SessionStarted(**started))
    for number in range(turns):
        await driver.turn(f"{LARGE} {number}")
    return driver


async def test_a_copy_goes_through_every_store_with_the_same_head(stores):
    driver = await told(stores[0])
    await stores[0].release(driver.lease)
    for source, target in itertools.pairwise(stores):
        (copied,) = await copy_sessions(source, target)
        assert copied.outcome == "created"
        assert copied.head == driver.state.head
        assert not copied.read_only
        assert (await verify(target, "s-1")).problems == ()


async def test_copying_again_goes_on_where_the_last_copy_ended(stores):
    source, target, _ = stores
    driver = await told(source)
    assert [item.outcome for item in await copy_sessions(source, target)] == ["created"]
    await driver.turn("one more")
    await told(source, "s-2", turns=1)
    done = {item.session: item.outcome for item in await copy_sessions(source, target)}
    assert done == {"s-1": "forwarded", "s-2": "created"}
    done = {item.session: item.outcome for item in await copy_sessions(source, target)}
    assert done == {"s-1": "unchanged", "s-2": "unchanged"}


async def test_sessions_of_all_tenants_are_copied_to_their_own(stores):
    source, target, _ = stores
    await told(source, tenant="acme")
    (copied,) = await copy_sessions(source, target)
    assert copied.tenant == "acme"
    assert (await verify(target.of("acme"), "s-1")).problems == ()


async def test_a_copy_with_open_work_is_read_only_until_taken_over(stores):
    source, target, _ = stores
    driver = await told(source)
    await driver.play(start_turn(driver.state, "open"))
    (copied,) = await copy_sessions(source, target)
    assert copied.read_only
    with pytest.raises(ReadOnlySession):
        await target.acquire("s-1")
    await target.acquire("s-1", takeover=True)


async def test_a_move_seals_the_tree_and_brings_its_inbox(stores):
    source, target, other = stores
    root = await told(source)
    child = await told(source, "s-2", kind="child", parent={"session": "s-1", "call": "c"})
    for driver in (root, child):
        await source.release(driver.lease)
    await source.put_inbox("s-1", InboxDraft("k", "message", content=slot(LARGE, "message")))
    done = await move_tree(source, target, "s-1", by="user:ann")
    assert [(item.session, item.outcome) for item in done] == [("s-1", "moved"), ("s-2", "moved")]
    assert done[0].head == root.state.head
    last = (await all_events(source, "s-1"))[-1]
    assert last.type == "session.moved"
    assert last.data["to"] == target.flags.url
    state = await source.load_state("s-1")
    lease = await source.acquire("s-1")
    with pytest.raises(ReadOnlySession, match="drive it there"):
        await Driver(source, lease, state).say("too late")
    (item,) = await target.list_inbox("s-1")
    assert item.key == "k"
    lease = await target.acquire("s-1")
    await Driver(target, lease, await target.load_state("s-1")).turn("here")
    for name in ("s-1", "s-2"):
        assert (await verify(target, name)).problems == ()
        assert (await verify(source, name)).problems == ()
    with pytest.raises(ReadOnlySession, match="move it from there"):
        await move_tree(source, other, "s-1")


async def test_a_move_that_was_cut_short_after_the_seal_goes_on(stores, monkeypatch):
    source, target, _ = stores
    driver = await told(source)
    await driver.play(start_turn(driver.state, "open"))
    await source.release(driver.lease)
    put = type(target).release

    async def cut(self, lease):
        raise RuntimeError("cut short")

    monkeypatch.setattr(type(target), "release", cut)
    with pytest.raises(RuntimeError):
        await move_tree(source, target, "s-1")
    monkeypatch.setattr(type(target), "release", put)
    (done,) = await move_tree(source, target, "s-1")
    assert done.outcome == "moved"
    assert (await all_events(source, "s-1"))[-1].type == "session.moved"
    events = await all_events(target, "s-1")
    assert [event.digest for event in events] == [
        event.digest for event in (await all_events(source, "s-1"))[:-1]
    ]


async def test_what_is_driven_or_has_a_parent_or_is_no_other_store_is_not_moved(stores):
    source, target, _ = stores
    await told(source)
    await told(source, "s-2", kind="child", parent={"session": "s-1", "call": "c"})
    with pytest.raises(LeaseHeld):
        await move_tree(await open_store(source.flags.url), target, "s-1")
    with pytest.raises(InvalidInput, match="root"):
        await move_tree(source, target, "s-2")
    with pytest.raises(InvalidInput, match="two stores"):
        await copy_sessions(source, source)
    assert (await all_events(source, "s-1"))[-1].type != "session.moved"
