"""A session is named by its id, a unique beginning of it, or its friendly name."""

from __future__ import annotations

import contextlib

import pytest

from holdfast.cli.naming import AmbiguousId, AmbiguousSession, find_head, find_payload, find_session
from holdfast.core.errors import InvalidId, SessionDeleted, SessionNotFound
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import friendly_name
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.driver import drive


@pytest.fixture
async def store():
    store = MemorySessionStore()
    for session in ("s-0a1", "s-0a2", "s-0b1", "s-0b", "gone"):
        await store.create_session(session, SessionStarted())
    await store.delete("gone")
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("s-0a1", "s-0a1"), ("s-0b", "s-0b"), ("0b1", "s-0b1"), (friendly_name("s-0a2"), "s-0a2")],
)
async def test_one_session_is_found(store, given, meant):
    assert (await find_session(store, given)).id == meant


async def test_the_beginning_of_a_name_is_enough(store):
    assert (await find_session(store, friendly_name("s-0a1")[:-1])).id == "s-0a1"


async def test_what_fits_several_lists_them(store):
    with pytest.raises(AmbiguousSession, match=r"s-0a2.*s-0a1"):
        await find_session(store, "s-0a")


@pytest.mark.parametrize("given", ["nobody", "", "../x", "\x1b[31m", "S-0A1"])
async def test_what_fits_none_says_where_to_look(store, given):
    with pytest.raises(SessionNotFound, match="holdfast sessions"):
        await find_session(store, given)


async def test_a_deleted_session_is_said_to_be_deleted(store):
    with pytest.raises(SessionDeleted):
        await find_session(store, "gone")


async def test_a_head_and_a_payload_are_found_by_a_unique_beginning_of_their_id(store):
    driver = await drive(store, "s-0c")
    heads = [await driver.turn(f"{number} " * 400) for number in range(3)]
    for head in heads:
        assert await find_head(store, "s-0c", head[:15]) == head
        assert await find_head(store, "s-0c", head.removeprefix("sha256:")[:8]) == head
    (message, *_) = await store.read_events("s-0c", types=["message.appended"])
    payload = message.data["content"]["$ref"]
    assert await find_payload(store, "s-0c", payload[:20]) == payload


async def test_a_beginning_that_fits_no_head_or_several_is_refused(store):
    driver = await drive(store, "s-0c")
    for number in range(20):
        await driver.turn(str(number))
    # Twenty heads share sixteen first digits, so at least one digit fits several.
    told = []
    for digit in "0123456789abcdef":
        with contextlib.suppress(InvalidId):
            try:
                await find_head(store, "s-0c", digit)
            except AmbiguousId as error:
                told.append(str(error))
    assert told
    assert "give more of the id" in told[0]
    with pytest.raises(InvalidId):
        await find_head(store, "s-0c", "0" * 20)
