"""Live streams: every stored event once, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn

from holdfast.server.app import create_app

from .conftest import ASK, House, cell

API = "/api/v1"


@asynccontextmanager
async def served(house: House, **options: Any) -> AsyncIterator[Any]:
    """Serve a house on a real socket; a transport in this process would not stream."""
    config = uvicorn.Config("", port=0, log_level="error", timeout_graceful_shutdown=1)
    listening = config.bind_socket()
    host = f"127.0.0.1:{listening.getsockname()[1]}"
    config.app = create_app(house.runtime, access=house.access, hosts=(host,), **options)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0)
    _, token = house.access.create("ann", ["admin"])
    headers = {"authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=300)
    base = f"http://{host}"
    async with httpx2.AsyncClient(
        base_url=base, headers=headers, timeout=20, limits=limits
    ) as client:
        yield client
    server.should_exit = True
    await serving


async def items(client: Any, path: str, **headers: str) -> AsyncIterator[tuple[str, Any, Any]]:
    """Yield (name, id, data) of a stream."""
    async with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        found: dict[str, str] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                found[name] = value
            elif "data" in found:
                yield found["event"], found.get("id"), json.loads(found["data"])
                found = {}
            else:
                found = {}


async def test_a_client_that_breaks_off_at_random_sees_every_event_once(house: House) -> None:
    await house.open(*[cell(f"x = {n}") for n in range(8)], cell("FINAL(x)"))
    async with served(house) as client:
        made = await client.post(f"{API}/sessions", json={"message": "go"})
        session = made.json()["session"]["id"]
        chance, seen, last = random.Random(7), [], {}
        while not seen or seen[-1][1] != "head.published":
            stop_after = chance.randint(1, 6)
            async for name, number, data in items(
                client, f"{API}/sessions/{session}/stream", **last
            ):
                if name != "event":
                    assert number is None
                    continue
                seen.append((data["seq"], data["type"]))
                last = {"last-event-id": number}
                stop_after -= 1
                if not stop_after or data["type"] == "head.published":
                    break
        stored = await house.store.read_events(session)
        assert seen == [(event.seq, event.type) for event in stored][: len(seen)]
        assert len(seen) >= 20


async def test_hints_name_the_sessions_that_move(house: House) -> None:
    await house.open(ASK)
    async with served(house) as client:
        stream = items(client, f"{API}/stream")
        first = asyncio.ensure_future(anext(stream))
        for _ in range(100):
            made = await client.post(f"{API}/sessions", json={})
            if first.done():
                break
        name, _, data = await first
        assert name == "hint"
        assert data["session"].startswith("s-")
        assert made.status_code == 201
        await stream.aclose()


async def test_two_hundred_viewers_follow_one_session(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    async with served(house) as client:
        made = await client.post(f"{API}/sessions", json={})
        session = made.json()["session"]["id"]
        # One caller has at most 64 streams.
        tokens = [house.access.create(f"v{n}", ["read"])[1] for n in range(4)]

        async def follow(number: int) -> list[int]:
            seen: list[int] = []
            bearer = {"authorization": f"Bearer {tokens[number % 4]}"}
            async for name, _, data in items(client, f"{API}/sessions/{session}/stream", **bearer):
                if name == "event":
                    seen.append(data["seq"])
                    if data["type"] == "head.published":
                        return seen
            return seen

        following = [asyncio.create_task(follow(n)) for n in range(200)]
        await client.post(f"{API}/sessions/{session}/messages", json={"message": "go"})
        everyone = await asyncio.gather(*following)
        assert all(seen == everyone[0] and seen[0] == 1 for seen in everyone)
