"""The AG-UI endpoint: a front end of that protocol talks to an agent, and is interrupted."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

from .conftest import ASK, House, cell
from .test_streams import served

PATH = "/api/v1/ag-ui/default"


async def run(client: Any, **body: Any) -> list[Any]:
    """Run once; return the events, each checked against the types of the protocol."""
    body = {"threadId": "t-1", "messages": [], "tools": [], "context": []} | body
    found = []
    async with client.stream("POST", PATH, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(TypeAdapter(Event).validate_python(json.loads(line[6:])))
    return found


def said(text: str) -> list[dict[str, str]]:
    return [{"id": "m-1", "role": "user", "content": text}]


async def test_a_run_streams_text_and_ends_with_its_result(house: House) -> None:
    await house.open("I count.\n" + cell("FINAL(6 * 7)"))
    async with served(house) as client:
        events = await run(client, runId="r-1", messages=said("go"))
        names = [event.type.value for event in events]
        assert names[0] == "RUN_STARTED"
        assert names[-1] == "RUN_FINISHED"
        assert names.count("TEXT_MESSAGE_START") == names.count("TEXT_MESSAGE_END") == 1
        text = "".join(e.delta for e in events if e.type.value == "TEXT_MESSAGE_CONTENT")
        assert text.startswith("I count.")
        assert events[-1].result == 42
        again = await run(client, runId="r-2", messages=said("go on"))
        assert again[-1].type.value == "RUN_FINISHED"
        (session,) = (await house.runtime.sessions()).sessions
        assert session.turns == 2


async def test_a_question_interrupts_a_run_and_the_next_one_answers_it(house: House) -> None:
    await house.open(ASK)
    async with served(house) as client:
        events = await run(client, runId="r-1", messages=said("go"))
        assert "TOOL_CALL_START" in [event.type.value for event in events]
        (interrupt,) = events[-1].outcome.interrupts
        assert (interrupt.reason, interrupt.message) == ("question", "Which port?")
        resume = [{"interruptId": interrupt.id, "status": "resolved", "payload": "cork"}]
        after = await run(client, runId="r-2", resume=resume)
        assert after[-1].type.value == "RUN_FINISHED"
        assert after[-1].result == "to cork"


async def test_a_run_without_a_message_or_of_nobody_is_refused(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("act")
    body = {"threadId": "t", "runId": "r", "messages": []}
    assert (await client.post(PATH, json=body)).json()["code"] == "invalid_input"
    nobody = await client.post("/api/v1/ag-ui/nobody", json=body)
    assert nobody.json()["code"] == "agent_missing"
