"""Erasing an input takes every copy that the runtime made of it, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import NotRestorable, PayloadNotFound
from holdfast.core.facts import TurnStarted
from holdfast.core.payloads import Reachable, walk
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.choose import open_store
from holdfast.stores.port import SessionStore
from holdfast.stores.verify import verify

from .conftest import cell, replies

SECRET = "Jane Doe 4711"
SMALL = f"{SECRET} lives in Ulm"
LARGE = f"{SECRET} " + "lives in Ulm. " * 20_000


@pytest.fixture(params=["memory", "sqlite", "files"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    place = {
        "memory": "memory:",
        "sqlite": f"sqlite:{tmp_path}/s.db",
        "files": f"files:{tmp_path}/s",
    }
    opened = await open_store(place[request.param])
    yield opened
    await opened.close()


async def stored(store: SessionStore, session_id: str) -> str:
    """Return all that the store holds of a session, as text to search."""
    events = await store.read_events(session_id)
    inbox = await store.list_inbox(session_id)
    slots = [item for event in events for item in walk(event.data)]
    slots += [item.content for item in inbox if item.content is not None]
    parts = [(item.data or b"").decode("utf-8", "replace") for item in slots]
    reachable = Reachable(slots)
    for item in reachable:
        if item.erased is None:
            try:
                data = await store.get_payload(session_id, item.id)
            except PayloadNotFound:
                continue
            reachable.follow(item, data)
            parts.append(data.decode("utf-8", "replace"))
    return "\n".join(parts)


async def input_id(session: holdfast.Session[object], name: str) -> str:
    for event in await session.events(types=["turn.started"]):
        fact = event.fact()
        assert isinstance(fact, TurnStarted)
        if name in fact.inputs:
            return fact.inputs[name].id
    raise AssertionError(name)


def opened(store: SessionStore, *steps: str) -> Any:
    return holdfast.open(store, model=ScriptedModel(replies(*steps), name="scripted"))


@pytest.mark.parametrize("text", [SMALL, LARGE], ids=["small", "large"])
async def test_an_erased_input_is_nowhere_in_the_session(store: SessionStore, text: str) -> None:
    steps = [cell("size = len(letter)"), cell("FINAL(size)")]
    async with opened(store, *steps) as runtime:
        session = await runtime.start()
        await session.ask("How long?", inputs={"letter": text, "other": "stays"}, key="k")
        assert SECRET in await stored(store, session.id)
        before = await verify(store, session.id)
        done = await session.erase(await input_id(session, "letter"), "gdpr-17")
        assert done.copies >= 3  # the message of the inbox, the card, the checkpoints
        assert SECRET not in await stored(store, session.id)
        after = await verify(store, session.id)
        assert (after.ok, after.digest, after.head) == (True, before.digest, before.head)
        assert (await session.messages())[0].message.text == "How long?"
        with pytest.raises(NotRestorable, match="fork it at an earlier head"):
            await session.ask("And now?")
        assert SECRET not in await stored(store, session.id)
        again = await session.erase(await input_id(session, "letter"), "gdpr-17")
        assert (again.places, again.copies) == (0, 0)


async def test_a_session_that_let_go_of_the_input_goes_on(store: SessionStore) -> None:
    steps = [cell("size = len(letter)\ndel letter"), cell("FINAL(size)"), cell("FINAL(size + 1)")]
    async with opened(store, *steps) as runtime:
        session = await runtime.start()
        assert await session.ask("How long?", inputs={"letter": SMALL}) == len(SMALL)
        await session.erase(await input_id(session, "letter"), "gdpr-17")
        assert SECRET not in await stored(store, session.id)
    async with opened(store, *steps) as runtime:
        assert await runtime.session(session.id).ask("And one more?") == len(SMALL) + 1


async def test_a_value_that_is_no_input_goes_alone(store: SessionStore) -> None:
    async with opened(store, cell("FINAL(1)")) as runtime:
        session = await runtime.start()
        await session.ask("Write to Jane", inputs={"letter": SMALL})
        message = (await session.events(types=["message.appended"]))[0].fact()
        done = await session.erase(message.content.id, "asked")  # type: ignore[attr-defined]
        assert (done.places, done.copies) == (1, 0)
        assert [item.name for item in (await session.variables()).variables] == ["letter"]


async def test_the_frame_of_a_compaction_that_shows_the_input_goes_too(store: SessionStore) -> None:
    steps = [cell("a = 1"), cell("b = 2"), cell("FINAL(len(letter))"), cell("FINAL(2)")]
    async with opened(store, *steps) as runtime:
        session = await runtime.start()
        await session.ask("How long?", inputs={"letter": SMALL})
        await session.ask("Again")
        assert await session.compact("window") is not None
        assert f"- letter: str of {len(SMALL)} characters, '{SECRET}" in await stored(
            store, session.id
        )
        await session.erase(await input_id(session, "letter"), "gdpr-17")
        assert SECRET not in await stored(store, session.id)
