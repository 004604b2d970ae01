"""Native tool calls: requested together, run side by side, shown once, by the ledger's rules."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import holdfast
from holdfast.core.messages import Text, ToolCall, ToolResult, assistant
from holdfast.models.port import ModelRequest
from holdfast.runtime.answers import Approve, Deny
from holdfast.runtime.tools import Toolset, make_tool
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore

from .conftest import Lab
from .test_recovery import model_of


def wish(name: str, number: int = 1, text: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(f"call_{number}", name, json.dumps(arguments) if text is None else text)


def script(*steps: Any) -> Any:
    """Return a responder that gives tool calls or text by ordinal."""

    def respond(request: ModelRequest) -> Any:
        step = steps[request.ordinal]
        return step if isinstance(step, str) else assistant(*step)

    return respond


class Desk:
    """Tools that note what was done with them."""

    def __init__(self, **rules: Any) -> None:
        self.sent: list[str] = []
        self.agent = holdfast.Agent(
            tools=[
                make_tool(self.send, name="send", **rules),
                make_tool(self.look, name="look", effect="pure"),
                Toolset("shop", 1, (make_tool(self.order, name="order", effect="idempotent"),)),
            ],
            settings={"harness": "tools", "instructions": "Be kind."},
        )

    def send(self, to: str, text: str = "hi") -> dict[str, str]:
        """Send a mail."""
        self.sent.append(to)
        return {"to": to, "text": text}

    async def look(self, what: str) -> str:
        """Look at something."""
        return f"saw {what}"

    def order(self, item: str, count: int = 1) -> int:
        """Order something."""
        self.sent.append(item)
        return count


def results(request: ModelRequest) -> list[tuple[str, str, str]]:
    """Return (call id, outcome, text) of the results that a request ends with."""
    return [
        (part.call_id, part.outcome, "".join(t.text for t in part.content if isinstance(t, Text)))
        for part in request.messages[-1].parts
        if isinstance(part, ToolResult)
    ]


async def test_text_without_a_tool_call_is_the_answer(lab: Lab) -> None:
    runtime = await lab.open(script("Hello!"), agents=[Desk().agent])
    session = await runtime.start()
    result = await session.send("hi")
    assert isinstance(result, holdfast.Final)
    assert (result.value, result.steps) == ("Hello!", 1)
    assert lab.requests[0].system == "Be kind.\n"
    names = [tool.name for tool in lab.requests[0].tools]
    assert names == ["send", "look", "shop__order"]
    assert lab.requests[0].tools[0].parameters["required"] == ["to"]


async def test_parallel_calls_come_back_in_one_message_in_the_order_of_the_reply(lab: Lab) -> None:
    desk = Desk()
    calls = (
        wish("send", 1, to="ann"),
        wish("look", 2, what="tar"),
        wish("shop__order", 3, item="x"),
    )
    runtime = await lab.open(script(calls, "done"), agents=[desk.agent])
    session = await runtime.start()
    result = await session.send("go")
    assert result.value == "done"
    assert results(lab.requests[1]) == [
        ("call_1", "ok", '{"to":"ann","text":"hi"}'),
        ("call_2", "ok", "saw tar"),
        ("call_3", "ok", "1"),
    ]
    types = [t for t in await lab.types(session.id) if t.startswith("call.")]
    assert types == ["call.requested"] * 3 + ["call.dispatched"] + ["call.resolved"] * 3
    assert [call.provider_id for call in await lab.facts(session.id, "call.requested")] == [
        *("call_1", "call_2", "call_3"),
    ]
    assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (wish("fly"), "there is no tool 'fly'; tools are: send, look, shop__order"),
        (wish("send", text="{not json"), "the arguments are not JSON"),
        (wish("send", text="[1]"), "the arguments are not a JSON object"),
        (wish("send"), "missing required field `to`"),
        (wish("send", to=1), "Expected `str`"),
        (wish("send", to="a", more=1), "unknown field `more`"),
    ],
)
async def test_a_call_that_cannot_be_made_is_a_result_that_the_model_can_act_on(
    lab: Lab, call: ToolCall, told: str
) -> None:
    desk = Desk()
    runtime = await lab.open(script((call,), "sorry"), agents=[desk.agent])
    result = await (await runtime.start()).send("go")
    assert (result.value, desk.sent) == ("sorry", [])
    ((_, outcome, text),) = results(lab.requests[1])
    assert outcome == "error"
    assert told in text


async def test_a_tool_that_fails_is_a_result(lab: Lab) -> None:
    def fail() -> None:
        raise ValueError("no paper")

    agent = holdfast.Agent(tools=[fail], settings={"harness": "tools"})
    runtime = await lab.open(script((wish("fail"),), "ok"), agents=[agent])
    await (await runtime.start()).send("go")
    assert results(lab.requests[1]) == [("call_1", "error", "error: ValueError: no paper")]


async def test_a_gated_call_waits_while_the_others_run_and_the_turn_goes_on_once_answered(
    lab: Lab,
) -> None:
    desk = Desk(approval=True)
    calls = (wish("send", 1, to="ann"), wish("shop__order", 2, item="tar"))
    runtime = await lab.open(script(calls, "done"), agents=[desk.agent])
    session = await runtime.start()
    result = await session.send("go")
    assert isinstance(result, holdfast.Suspended)
    assert desk.sent == ["tar"]
    await runtime.close()
    again = await lab.open(script(calls, "done"), agents=[desk.agent])
    (call,) = await again.open_calls(session.id)
    await again.answer(session.id, call.call_id, Approve({"to": "bob"}), by="eve")
    await again.settled()
    assert desk.sent == ["tar", "bob"]
    (first, second) = results(lab.requests[-1])
    assert "an approver changed the arguments" in first[2]
    assert second[:2] == ("call_2", "ok")
    put = (await lab.facts(session.id, "turn.put"))[-1]
    assert (put.status, put.final.value()) == ("final", "done")


async def test_a_denied_call_is_a_result(lab: Lab) -> None:
    desk = Desk(approval=True)
    runtime = await lab.open(script((wish("send", to="ann"),), "ok"), agents=[desk.agent])
    session = await runtime.start()
    await session.send("go")
    (call,) = await runtime.open_calls(session.id)
    await runtime.answer(session.id, call.call_id, Deny("not now"))
    await runtime.settled()
    assert results(lab.requests[-1]) == [("call_1", "denied", "denied: not now")]
    assert desk.sent == []


async def test_a_human_tool_is_a_question_and_its_answer_is_the_result(lab: Lab) -> None:
    desk = Desk(executor="human")
    runtime = await lab.open(script((wish("send", to="ann"),), "ok"), agents=[desk.agent])
    session = await runtime.start()
    await session.send("go")
    (wait,) = (await runtime.pending()).waits
    assert wait.kind == "question"
    assert wait.prompt.value()["arguments"] == {"to": "ann"}
    await runtime.answer(session.id, wait.call_id, {"to": "ann", "text": "by hand"})
    await runtime.settled()
    assert results(lab.requests[-1]) == [("call_1", "ok", '{"to":"ann","text":"by hand"}')]


async def cut(lab: Lab, steps: Any, agent: holdfast.Agent, after: int) -> str:
    """Drive a turn whose process ends after so many appends."""
    store = DyingStore(lab.store.database, after)
    runtime = await holdfast.open(store, model=model_of(lab, steps), agents=[agent])
    session = await runtime.start()
    with pytest.raises(BaseException):  # noqa: B017
        assert isinstance(await session.send("go"), holdfast.Queued)
    store.bury()
    await runtime.close()
    return session.id


@pytest.mark.parametrize("after", range(1, 7))
@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
async def test_a_turn_cut_anywhere_ends_and_no_once_tool_runs_twice(
    lab: Lab, after: int, effect: str
) -> None:
    desk = Desk(effect=effect)
    steps = script((wish("send", 1, to="ann"), wish("send", 2, to="bob")), "done")
    session = await cut(lab, steps, desk.agent, after)
    before = list(desk.sent)
    runtime = await lab.open(steps, agents=[desk.agent])
    result = await runtime.resume(session)
    assert isinstance(result, holdfast.Final)
    assert result.value == "done"
    outcomes = {call.outcome for call in await lab.facts(session, "call.resolved")}
    if effect == "once":
        assert max(desk.sent.count("ann"), desk.sent.count("bob")) == 1
        if set(before) and after < 4:
            assert "unknown" in outcomes
    else:
        assert outcomes == {"ok"}
    assert (await verify(lab.store, session)).ok


async def test_a_turn_that_ended_beside_open_calls_leaves_a_paired_transcript(lab: Lab) -> None:
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    agent = holdfast.Agent(tools=[wait], settings={"harness": "tools", "turn_seconds": 2})
    runtime = await lab.open(script((wish("wait"),), "fine"), agents=[agent])
    session = await runtime.start()
    assert isinstance(await session.send("go"), holdfast.TimedOut)
    (outcome,) = await lab.facts(session.id, "call.resolved")
    assert outcome.outcome == "unknown"
    assert (await session.send("again")).value == "fine"
    roles = [message.role for message in lab.requests[-1].messages]
    assert roles == ["user", "assistant", "observation", "user"]
