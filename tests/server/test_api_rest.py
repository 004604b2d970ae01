"""The API beyond talking: attach, budgets, artifacts, handing over, limits, approvals, tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.runtime.worker import Worker
from holdfast.server.access import Principal
from holdfast.server.guard import Limits
from holdfast.stores.memory.store import MemorySessionStore

from . import scene
from .conftest import ASK, House, cell
from .test_api import API, started
from .test_streams import items, served


@holdfast.tool(effect="once", approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


PAY = cell("FINAL(pay(amount=5))")


async def test_another_agent_is_attached_to_a_head_once_for_a_key(house: House) -> None:
    agents = [holdfast.Agent(), holdfast.Agent("auditor")]
    await house.open(cell("FINAL('seen')"), agents=agents)
    client = house.client("act")
    source = (await started(house, client))["session"]["id"]
    path = f"{API}/sessions/{source}/attachments"
    body = {"agent": "auditor", "message": "look", "wait": 30}
    made = [
        (await client.post(path, json=body, headers={"idempotency-key": "a"})).json()
        for _ in range(2)
    ]
    assert made[0]["session"]["id"] == made[1]["session"]["id"]
    assert made[0]["session"]["agent"] == "auditor"
    assert made[0]["result"]["value"] == "seen"
    missing = await client.post(path, json={"agent": "nobody"})
    assert missing.json()["code"] == "agent_missing"


async def test_a_fork_before_a_step_has_its_turn_open(house: House) -> None:
    await house.open(cell("x = 1"), cell("FINAL(x)"))
    client = house.client("act")
    source = (await started(house, client))["session"]["id"]
    path = f"{API}/sessions/{source}/forks"
    fork = (await client.post(path, json={"step": 2})).json()["session"]["id"]
    resumed = await client.post(f"{API}/sessions/{fork}/resume", json={"wait": 30})
    assert resumed.json()["value"] == 1


async def test_limits_are_read_by_readers_and_changed_by_admins_on_record(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client, admin = house.client("act"), house.client("admin", name="ada")
    session = (await started(house, client))["session"]["id"]
    path = f"{API}/sessions/{session}/budget"
    assert (await client.get(path)).json()["limits"]["max_usd"] is None
    assert (await client.post(path, json={"max_usd": "3"})).status_code == 403
    changed = await admin.post(path, json={"max_usd": "3.00", "max_tokens": 5000})
    assert changed.json()["limits"]["max_usd"] == "3.00"
    shown = (await client.get(path)).json()
    assert shown["limits"]["max_tokens"] == 5000
    assert set(shown["own"]) >= {"known_usd", "unknown"}
    configured = await house.store.read_events(session, types=["session.configured"])
    assert configured[-1].fact().by == "ada"
    assert (await admin.post(path, json={"max_usd": "lots"})).status_code == 400


async def test_runs_with_artifacts_and_questions_are_read(house: House) -> None:
    house.runtime = await house._stack.enter_async_context(await scene.opened(house.store))
    await scene.play(house.runtime)
    from holdfast.server.app import create_app

    from .conftest import HOSTS

    house.app = create_app(house.runtime, access=house.access, hosts=HOSTS)
    client = house.client("read")
    (run,) = (await client.get(f"{API}/runs")).json()["runs"]
    assert (run["id"], run["status"]) == (scene.RUN, "paused")
    shown = (await client.get(f"{API}/runs/{scene.RUN}")).json()
    assert shown["next_to_act"] == "people: lena"
    listed = (await client.get(f"{API}/runs/{scene.RUN}/artifacts")).json()["artifacts"]
    assert [item["version"] for item in listed] == [0, 1, 2]
    one = await client.get(
        f"{API}/runs/{scene.RUN}/artifacts/write", params={"version": 2, "against": 0}
    )
    assert "-Verdict: request changes" in one.json()["difference"]
    asked = (await client.get(f"{API}/runs/{scene.RUN}/interactions")).json()["interactions"]
    assert [item["assignee"] for item in asked] == ["lena"]
    assert (await client.get(f"{API}/runs/{scene.TALK}")).status_code == 404
    foreign = house.client("admin", tenant="other")
    assert (await foreign.get(f"{API}/runs/{scene.RUN}/artifacts")).status_code == 404


async def test_what_is_sent_and_answered_is_left_to_a_worker(house: House) -> None:
    await house.open(ASK, drives=False)
    client = house.client("act", "answer")
    other = await house._stack.enter_async_context(
        await holdfast.open(
            MemorySessionStore(house.store.database),
            model=house.runtime.engine.model("scripted"),
            kernel="monty",
        )
    )
    stop = asyncio.Event()
    working = asyncio.create_task(Worker(other, sweep_seconds=0.05).run(stop))
    made = await started(house, client)
    assert made["result"]["status"] in ("suspended", "pending", "queued")
    session = made["session"]["id"]
    while not (waits := (await other.pending()).waits):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # as a client that asks again
    path = f"{API}/sessions/{session}/calls/{waits[0].call_id}/answer"
    assert (await client.post(path, json={"value": "cork"})).status_code == 202
    while (await other.state(session)).status != "idle":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (turn,) = (await client.get(f"{API}/sessions/{session}/turns")).json()["turns"]
    assert turn["status"] == "final"
    lease = await house.store.lease_of(session)
    assert lease is None or lease.owner != house.store.owner
    stop.set()
    await working


async def test_an_approval_names_the_wait_and_what_was_shown(house: House) -> None:
    await house.open(PAY, agents=[holdfast.Agent(tools=[pay])])
    client = house.client("act", "answer")
    made = await started(house, client)
    session, call = made["session"]["id"], made["result"]["calls"][0]
    path = f"{API}/sessions/{session}/calls/{call}"
    wait = (await client.get(f"{path}/wait")).json()
    assert (wait["kind"], wait["arguments"]) == ("approval", {"args": [], "kwargs": {"amount": 5}})
    named = {"approve": True, "wait": wait["wait"]}
    assert (await client.post(f"{path}/answer", json=named)).status_code == 400
    stale = named | {"digest": "sha256:" + "0" * 64}
    assert (await client.post(f"{path}/answer", json=stale)).status_code == 409
    both = named | {"digest": wait["digest"], "deny": "no"}
    assert (await client.post(f"{path}/answer", json=both)).status_code == 400
    edited = named | {"digest": wait["digest"], "arguments": {"args": [], "kwargs": {"amount": 3}}}
    assert (await client.post(f"{path}/answer", json=edited)).status_code == 202
    await house.runtime.settled()
    turns = (await client.get(f"{API}/sessions/{session}/turns")).json()["turns"]
    value = await house.runtime.turns(session)
    assert turns[0]["status"] == "final"
    assert await house.runtime.value(session, value[0].final) == "paid 3"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [({"deny": "too much"}, "denied"), ({"cancel": True}, "cancelled")],
)
async def test_a_denied_or_cancelled_call_is_never_made(
    house: House, answer: dict[str, Any], outcome: str
) -> None:
    await house.open(PAY, cell("FINAL('not paid')"), agents=[holdfast.Agent(tools=[pay])])
    client = house.client("act", "answer")
    made = await started(house, client)
    session, call = made["session"]["id"], made["result"]["calls"][0]
    path = f"{API}/sessions/{session}/calls/{call}/answer"
    assert (await client.post(path, json=answer)).status_code == 202
    await house.runtime.settled()
    (view,) = (await client.get(f"{API}/sessions/{session}/calls")).json()["calls"]
    assert view["outcome"] == outcome
    assert (await client.post(path, json=answer)).status_code in (404, 409)


async def test_tenants_run_code_under_the_rules_of_the_server(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    house.runtime.engine.kernels._allow_unconfined = True
    other = house.app.state.serving.hub.of(Principal("x", "other"))
    assert other.engine.kernels.allow_unconfined
    assert other.engine.guards is house.runtime.engine.guards


async def test_streams_are_counted_and_bodies_end_at_the_limit(house: House) -> None:
    assert Limits().body_bytes == 64 << 20
    await house.open(cell("FINAL(1)"))
    async with served(house, limits=Limits(streams=2, body_bytes=2000)) as client:
        made = await client.post(f"{API}/sessions", json={"message": "go", "wait": 20})
        path = f"{API}/sessions/{made.json()['session']['id']}/stream"
        streams = [items(client, path) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        third = await client.get(path)
        assert (third.status_code, third.json()["code"]) == (429, "too_many_streams")
        await streams[0].aclose()
        for _ in range(200):
            if client_sees := (await _opens(client, path)):
                break
        assert client_sees
        large = await client.post(f"{API}/sessions", json={"message": "x" * 3000})
        assert large.status_code == 413
        await streams[1].aclose()


async def _opens(client: Any, path: str) -> bool:
    async with client.stream("GET", path) as answer:
        return answer.status_code == 200
