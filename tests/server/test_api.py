"""The API: sessions are created, driven, read and answered over HTTP, and repeats are harmless."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from .conftest import ASK, House, cell

API = "/api/v1"


async def started(house: House, client: Any, **body: Any) -> dict[str, Any]:
    body = {"message": "go", "wait": 30} | body
    answer = await client.post(f"{API}/sessions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_session_is_created_and_works_on_its_message(house: House) -> None:
    await house.open(cell("FINAL(6 * 7)"))
    client = house.client("act")
    made = await started(house, client, labels={"team": "quay"})
    assert made["result"]["status"] == "final"
    assert made["result"]["value"] == 42
    session = made["session"]["id"]
    listed = (await client.get(f"{API}/sessions", params={"label": "team=quay"})).json()
    assert [row["id"] for row in listed["sessions"]] == [session]


async def test_sessions_are_listed_in_pages_without_repeats(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    made = [(await started(house, client, message=None))["session"]["id"] for _ in range(5)]
    seen, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await client.get(f"{API}/sessions", params=params)).json()
        seen += [row["id"] for row in page["sessions"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


async def test_the_same_key_creates_one_session_and_works_its_message_once(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    client.headers["idempotency-key"] = "order-17"
    first = await started(house, client)
    second = await started(house, client)
    assert first["session"]["id"] == second["session"]["id"]
    assert second["session"]["turns"] == 1
    forks = [
        (await client.post(f"{API}/sessions/{first['session']['id']}/forks", json={})).json()
        for _ in range(2)
    ]
    assert forks[0]["session"]["id"] == forks[1]["session"]["id"]


async def test_a_message_that_nobody_waits_for_is_worked_and_read_by_its_key(house: House) -> None:
    await house.open(cell("FINAL('done')"))
    client = house.client("act")
    session = (await started(house, client, message=None))["session"]["id"]
    path = f"{API}/sessions/{session}/messages"
    sent = await client.post(path, json={"message": "go"}, headers={"idempotency-key": "k1"})
    assert sent.status_code in (200, 202)
    for _ in range(200):
        result = (await client.get(f"{path}/k1/result")).json()
        if result["status"] == "final":
            break
        await asyncio.sleep(0.02)  # polled as a client does
    assert result["value"] == "done"


async def test_a_question_is_listed_answered_once_and_the_session_goes_on(house: House) -> None:
    await house.open(ASK)
    client = house.client("act", "answer")
    made = await started(house, client)
    assert made["result"]["status"] == "suspended"
    session, call = made["session"]["id"], made["result"]["calls"][0]
    (row,) = (await client.get(f"{API}/pending")).json()["pending"]
    assert (row["session"], row["call"], row["prompt"]) == (session, call, "Which port?")
    path = f"{API}/sessions/{session}/calls/{call}"
    wait = (await client.get(f"{path}/wait")).json()
    answer = await client.post(f"{path}/answer", json={"value": "cork", "wait": wait["wait"]})
    assert answer.status_code == 202, answer.text
    await house.runtime.settled()
    turns = (await client.get(f"{API}/sessions/{session}/turns")).json()["turns"]
    assert turns[0]["status"] == "final"
    late = await client.post(f"{path}/answer", json={"value": "hull", "wait": wait["wait"]})
    assert late.status_code in (404, 409)
    admitted = await house.store.read_events(session, types=["input.admitted"])
    assert [event.fact().by for event in admitted][-1] == "ann"


@pytest.mark.parametrize(
    "what",
    ["events", "messages", "turns", "steps", "evals", "leaves", "calls", "heads", "edges"],
)
async def test_every_history_is_read_in_pages(house: House, what: str) -> None:
    await house.open(cell("x = 1"), cell("FINAL(x)"))
    client = house.client("act")
    session = (await started(house, client))["session"]["id"]
    path = f"{API}/sessions/{session}/{what}"
    whole = (await client.get(path, params={"limit": 1000})).json()[what]
    seen, after = [], 0
    while after is not None:
        page = (await client.get(path, params={"limit": 1, "after": after})).json()
        seen += page[what]
        after = page.get("after", page.get("next"))
    assert seen == whole


async def test_the_state_beside_the_log_is_readable(house: House) -> None:
    await house.open(cell("x = 1"), cell("FINAL(x)"))
    client = house.client("act")
    session = (await started(house, client))["session"]["id"]
    for what in ("tree", "variables", "context", "verify", "audit", "replay"):
        answer = await client.get(f"{API}/sessions/{session}/{what}")
        assert answer.status_code == 200, (what, answer.text)
    assert (await client.get(f"{API}/sessions/{session}/verify")).json()["ok"]


async def test_a_payload_is_read_whole_and_by_range(house: House) -> None:
    await house.open(cell("FINAL('x' * 100_000)"))
    client = house.client("act")
    session = (await started(house, client))["session"]["id"]
    final = (await client.get(f"{API}/sessions/{session}/turns")).json()["turns"][0]["final"]
    path = f"{API}/sessions/{session}/payloads/{final['$ref'] if '$ref' in final else final['id']}"
    whole = await client.get(path)
    assert whole.headers["content-disposition"].startswith("attachment")
    part = await client.get(path, headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    last = await client.get(path, headers={"range": "bytes=-5"})
    assert last.content == whole.content[-5:]
    beyond = await client.get(path, headers={"range": "bytes=9999999-"})
    assert beyond.status_code == 416
    head = await client.head(path)
    assert head.headers["content-length"] == str(len(whole.content))


async def test_a_stopped_session_says_so_and_stopping_again_is_harmless(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    session = (await started(house, client))["session"]["id"]
    for _ in range(2):
        answer = await client.post(f"{API}/sessions/{session}/stop")
        assert answer.json()["status"] == "stopped"
    sent = await client.post(f"{API}/sessions/{session}/messages", json={"message": "more"})
    assert sent.json()["status"] == "stopped"


async def test_errors_are_problem_documents_with_the_codes_of_the_command_line(
    house: House,
) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    missing = await client.get(f"{API}/sessions/nobody")
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["code"] == "session_not_found"
    wrong = await client.get(f"{API}/sessions/NOT AN ID")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_id")
    agent = await client.post(f"{API}/sessions", json={"agent": "nobody"})
    assert agent.json()["code"] == "agent_missing"
    field = await client.post(f"{API}/sessions", json={"capability": "all"})
    assert (field.status_code, field.json()["code"]) == (400, "invalid_input")


async def test_compacting_twice_with_one_key_happens_once(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    session = (await started(house, client))["session"]["id"]
    path = f"{API}/sessions/{session}/compact"
    both = [
        await client.post(path, json={"strategies": ["window"]}, headers={"idempotency-key": "c"})
        for _ in range(2)
    ]
    assert both[0].json() == both[1].json()
    compacted = await house.store.read_events(session, types=["session.compacted"])
    assert len(compacted) <= 1


async def test_health_readiness_and_metrics(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    assert (await house.client().get("/healthz")).json() == {"status": "ok"}
    assert (await house.client().get("/readyz")).status_code == 200
    text = (await house.client("admin").get(f"{API}/metrics")).text
    assert "holdfast_http_requests_total" in text
    assert (await house.client("read").get(f"{API}/metrics")).status_code == 403


async def test_the_openapi_document_has_every_route(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    document = (await house.client("read").get(f"{API}/openapi.json")).json()
    assert f"{API}/sessions/{{session_id}}/stream" in document["paths"]
    assert json.dumps(document)
