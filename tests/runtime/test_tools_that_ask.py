"""Tools that ask in mid-call: the call waits durably, and goes on with the answer it needs."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import CallContext, NeedsAnswer, OutcomeLost
from holdfast.core.errors import AnswerRefused, CallFailed, CallWaits, InvalidInput
from holdfast.runtime.answers import Approve, Deny, Fail
from holdfast.runtime.tools import make_tool
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies
from .test_tools_harness import script, wish

YES = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


class Bin:
    """A tool that deletes a file after it was told twice that it may."""

    def __init__(self, effect: str = "once", **rules: Any) -> None:
        self.calls: list[tuple[str, int]] = []
        self.scopes: list[Any] = []
        tool = make_tool(self.remove, name="remove", effect=effect, **rules)
        self.tool = tool
        self.native = holdfast.Agent("native", tools=[tool], harness="tools")
        self.coding = holdfast.Agent("coding", tools=[tool], settings={"kernel": "monty"})

    def remove(self, path: str, context: CallContext) -> str:
        """Remove a file."""
        self.calls.append((path, len(context.answers)))
        self.scopes.append(context.scope)
        if any(answer.declined for answer in context.answers):
            return f"kept: {context.answers[-1].declined}"
        if len(context.answers) < 2:
            state = {"round": len(context.answers) + 1}
            raise NeedsAnswer(f"Really remove {path}?", schema=YES, state=state)
        first, second = context.answers
        return f"{path} {first.value['sure']} {first.state} {second.value['sure']} {second.state}"


async def say(runtime: holdfast.Runtime, session: str, said: Any, **about: Any) -> None:
    (call,) = await runtime.open_calls(session)
    await runtime.answer(session, call.call_id, said, **about)
    await runtime.settled()


DONE = "a True {'round': 1} False {'round': 2}"


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
@pytest.mark.parametrize("kind", ["native", "coding"])
async def test_a_call_waits_for_each_answer_over_restarts(lab: Lab, kind, effect) -> None:
    files = Bin(effect)
    agent = getattr(files, kind)
    if kind == "native":
        model = script([wish("remove", path="a")], "done")
    else:
        model = replies(cell("x = remove('a')\nFINAL(x)"))
    runtime = await lab.open(model, agents=[agent])
    session = await runtime.start(agent=agent)
    result = await session.send("x", scope="me")
    assert isinstance(result, holdfast.Suspended)
    (wait,) = (await runtime.pending()).waits
    assert wait.kind == "question"
    prompt = await runtime.value(session.id, wait.prompt)
    assert prompt["question"] == "Really remove a?"
    with pytest.raises(InvalidInput):
        await session.answer(wait.call_id, {"sure": "perhaps"})
    with pytest.raises(AnswerRefused):
        await session.answer(wait.call_id, Approve())
    await runtime.close()

    runtime = await lab.open(model, agents=[agent])
    await say(runtime, session.id, {"sure": True}, by="ann")
    assert (await runtime.state(session.id)).status == "suspended"
    await runtime.close()

    runtime = await lab.open(model, agents=[agent])
    await say(runtime, session.id, {"sure": False})
    (call,) = [call for call in await runtime.calls(session.id) if call.name == "remove"]
    assert call.outcome == "ok"
    assert await runtime.value(session.id, call.result) == DONE
    assert [count for _, count in files.calls[-3:]] == [0, 1, 2]
    assert (await verify(lab.store, session.id)).ok
    assert (await runtime.state(session.id)).status == "idle"


async def test_what_an_approver_changed_holds_after_the_answer_too(lab: Lab) -> None:
    files = Bin(approval=True)
    runtime = await lab.open(
        script([wish("remove", path="a")], "done"),
        agents=[files.native],
        scopes=lambda reference: f"<{reference}>",
    )
    session = await runtime.start(agent=files.native)
    await session.send("x")
    scope = holdfast.Scope("boss", reference="boss")
    await say(runtime, session.id, Approve({"path": "b"}), scope=scope)
    await say(runtime, session.id, {"sure": True})
    await say(runtime, session.id, {"sure": True})
    assert files.calls == [("b", 0), ("b", 1), ("b", 2)]
    assert files.scopes == ["<boss>"] * 3
    assert "an approver changed the arguments" in str(lab.requests[-1].messages[-1])


@pytest.mark.parametrize(
    ("said", "outcome", "told"),
    [(Deny("no way"), "ok", "kept: no way"), (Fail("gone home"), "error", "gone home")],
)
async def test_no_answer_is_an_outcome_too(lab: Lab, said, outcome, told) -> None:
    files = Bin()
    runtime = await lab.open(script([wish("remove", path="a")], "done"), agents=[files.native])
    session = await runtime.start(agent=files.native)
    await session.send("x")
    await say(runtime, session.id, said)
    (call,) = await runtime.calls(session.id)
    assert call.outcome == outcome
    assert await runtime.value(session.id, call.result or call.error) == told


@pytest.mark.parametrize("effect", ["once", "pure"])
async def test_a_call_of_a_program_waits_too(lab: Lab, effect) -> None:
    files = Bin(effect)
    agent = holdfast.Agent("harness", external=True)
    runtime = await lab.open(replies(), agents=[agent])
    session = runtime.session("s", agent=agent, create=True)
    for number in range(2):
        for _ in range(2):
            with pytest.raises(CallWaits) as waits:
                await session.call(files.tool, {"path": "a"}, key="k")
        await session.answer(waits.value.call_id, {"sure": number == 0})
    assert await session.call(files.tool, {"path": "a"}, key="k") == DONE
    assert len(files.calls) == 3


@pytest.mark.parametrize(("effect", "outcome"), [("once", "unknown"), ("idempotent", "error")])
async def test_a_tool_may_say_that_nobody_knows_what_it_did(lab: Lab, effect, outcome) -> None:
    def push() -> None:
        raise OutcomeLost("the line went dead")

    agent = holdfast.Agent("harness", external=True)
    runtime = await lab.open(replies(), agents=[agent])
    session = runtime.session("s", agent=agent, create=True)
    with pytest.raises(CallFailed) as failed:
        await session.call(make_tool(push, effect=effect), key="k")
    assert failed.value.outcome == outcome
