"""A session is named by its id, a unique beginning of it, or its friendly name."""

from __future__ import annotations

import pytest

from holdfast.cli.naming import AmbiguousSession, find_session
from holdfast.core.errors import SessionDeleted, SessionNotFound
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import friendly_name
from holdfast.stores.memory.store import MemorySessionStore


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
