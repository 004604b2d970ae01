"""`holdfast.client` against a real server: the same talk in async code and in other code."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import AsyncClient, Client, RequestRefused

from .conftest import ASK, House, cell
from .test_streams import served


async def test_a_talk_with_a_question_over_the_async_client(house: House) -> None:
    await house.open(ASK)
    async with served(house) as plain:
        _, token = house.access.create("cy", ["act", "answer"])
        async with AsyncClient(str(plain.base_url), token) as client:
            session, result = await client.create("go", wait=20, key="k1", labels={"a": "b"})
            assert result is not None
            assert result.status == "suspended"
            again, _ = await client.create("go", key="k1", labels={"a": "b"})
            assert again.id == session.id
            (wait,) = [item async for item in client.pending(session=session.id)]
            assert wait.prompt == "Which port?"
            await client.answer(session.id, wait.call, "cork")
            seen = []
            async for event in client.follow(session.id):
                if event.seq is not None:
                    seen.append(event)
                if event.type == "head.published":
                    break
            assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
            stored = [event async for event in client.events(session.id)]
            assert seen == stored[: len(seen)]
            fork = await client.fork(session.id)
            assert {item.id async for item in client.sessions()} == {session.id, fork.id}
            assert await client.verify(session.id)
            with pytest.raises(RequestRefused, match="nobody") as caught:
                await client.session("nobody")
            assert (caught.value.status, caught.value.code) == (404, "session_not_found")


async def test_the_same_without_async(house: House) -> None:
    await house.open(cell("FINAL('done')"))
    async with served(house) as plain:
        _, token = house.access.create("cy", ["act"])

        def talk(url: str) -> None:
            with Client(url, token) as client:
                session, _ = client.create()
                result = client.send(session.id, "go", wait=20)
                assert (result.is_final, result.value) == (True, "done")
                assert client.result(session.id, result.key or "").value == "done"
                assert [item.id for item in client.sessions()] == [session.id]
                events = list(client.events(session.id))
                first = next(client.follow(session.id))
                assert first == events[0]
                assert client.stop(session.id).status == "stopped"

        await asyncio.to_thread(talk, str(plain.base_url))
