"""Calls that wait for people: durable, answered once, and the code goes on where it stood."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import (
    AnswerRefused,
    AnswerStale,
    CallNotFound,
    InvalidInput,
    SessionBusy,
)
from holdfast.runtime.answers import Approve, Deny, Fail
from holdfast.runtime.tools import Toolset, make_tool
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies

ASK = cell("x = ask('Which port?')\ny = x.upper()\nFINAL(f'to {y}')")


async def waiting(lab: Lab, code: str = ASK, **options: Any) -> tuple[holdfast.Runtime, str]:
    """Start a session whose turn waits, and close the runtime that began it."""
    first = await lab.open(replies(code, cell("FINAL(None)")), **options)
    session = await first.start(agent=next(iter(first.agents)))
    result = await session.send("x")
    assert isinstance(result, holdfast.Suspended), result
    await first.close()
    again = await lab.open(replies(code, cell("FINAL(None)")), **options)
    return again, session.id


async def answered(runtime: holdfast.Runtime, session: str, said: Any, **about: Any) -> Any:
    (call,) = await runtime.open_calls(session)
    await runtime.answer(session, call.call_id, said, **about)
    await runtime.settled()
    turn = (await runtime.turns(session))[-1]
    return turn


async def due(runtime: holdfast.Runtime) -> None:
    """Apply deadlines until one has passed."""
    (wait,) = (await runtime.pending()).waits
    left = datetime.fromisoformat(wait.deadline) - datetime.now(UTC)
    await asyncio.sleep(max(0.0, left.total_seconds()) + 0.001)
    assert await runtime.tick() == [wait.session]


async def value_of(lab: Lab, session: str) -> Any:
    put = (await lab.facts(session, "turn.put"))[-1]
    return None if put.final is None else put.final.value()


async def test_code_goes_on_after_a_question_in_another_process(lab: Lab) -> None:
    runtime, session = await waiting(lab)
    state = await runtime.state(session)
    assert state.status == "suspended"
    assert await lab.store.lease_of(session) is None
    (wait,) = (await runtime.pending()).waits
    assert (wait.session, wait.kind, wait.prompt.value()) == (session, "question", "Which port?")
    assert isinstance(await runtime.resume(session), holdfast.Suspended)
    await answered(runtime, session, "oslo", by="ann")
    assert await value_of(lab, session) == "to OSLO"
    (resolved,) = await lab.facts(session, "call.resolved")
    assert (resolved.outcome, resolved.by) == ("ok", "ann")
    assert await lab.facts(session, "session.revived") == []
    assert len(lab.requests) == 1
    assert (await verify(lab.store, session)).ok


async def test_the_first_answer_wins_and_another_is_stale(lab: Lab) -> None:
    runtime, session = await waiting(lab, agents=[holdfast.Agent(name="default")])
    (call,) = await runtime.open_calls(session)
    await asyncio.gather(
        *(runtime.answer(session, call.call_id, "oslo") for _ in range(3)), return_exceptions=True
    )
    await runtime.settled()
    with pytest.raises((AnswerStale, CallNotFound)):
        await runtime.answer(session, call.call_id, "bergen")
    assert await value_of(lab, session) == "to OSLO"
    assert len(await lab.facts(session, "call.resolved")) == 1


@pytest.mark.parametrize("said", [1, None, {"a": 1}, Approve(), Deny()])
async def test_an_answer_of_the_wrong_kind_is_refused_and_changes_nothing(
    lab: Lab, said: Any
) -> None:
    runtime, session = await waiting(lab)
    before = await runtime.state(session)
    (call,) = await runtime.open_calls(session)
    with pytest.raises(AnswerRefused):
        await runtime.answer(session, call.call_id, said)
    with pytest.raises(CallNotFound):
        await runtime.answer(session, "c-other", "oslo")
    assert await runtime.state(session) == before


async def test_an_answer_is_checked_against_the_form_of_the_question(lab: Lab) -> None:
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    code = cell(f"FINAL(ask('How many?', {form!r})['n'] + 1)")
    runtime, session = await waiting(lab, code)
    (call,) = await runtime.open_calls(session)
    for wrong in ({}, {"n": "1"}, "1", [1]):
        with pytest.raises(InvalidInput, match="does not fit"):
            await runtime.answer(session, call.call_id, wrong)
    await answered(runtime, session, {"n": 4})
    assert await value_of(lab, session) == 5


async def test_three_questions_one_after_the_other_are_asked_once_each(lab: Lab) -> None:
    code = cell("FINAL([ask(f'{n}?') for n in range(3)])")
    runtime, session = await waiting(lab, code)
    for said in ("a", "b", "c"):
        await answered(runtime, session, said)
    assert await value_of(lab, session) == ["a", "b", "c"]
    assert len(await lab.facts(session, "call.requested")) == 3
    assert len(lab.requests) == 1


def desk(name: str = "default", **rules: Any) -> tuple[holdfast.Agent, list[Any]]:
    sent: list[Any] = []

    def send(to: str, text: str = "hi") -> str:
        """Send a mail."""
        sent.append((to, text))
        return f"sent to {to}"

    made = make_tool(send, **rules)
    return holdfast.Agent(name, tools=[Toolset("mail", 1, (made,))]), sent


GATED = cell(
    "import mail\ntry:\n    r = mail.send('ann')\nexcept Exception as e:\n"
    "    r = f'{type(e).__name__}: {e}'\nFINAL(r)"
)


async def test_a_gated_tool_runs_once_it_is_approved(lab: Lab) -> None:
    agent, sent = desk(approval=True)
    runtime, session = await waiting(lab, GATED, agents=[agent])
    assert sent == []
    (wait,) = (await runtime.pending()).waits
    shown = {"tool": "mail.send", "arguments": {"to": "ann", "text": "hi"}}
    assert (wait.kind, wait.prompt.value()) == ("approval", shown)
    with pytest.raises(AnswerRefused, match="waits for an approval"):
        await runtime.answer(session, wait.call_id, "yes")
    await answered(runtime, session, Approve(), by="bob")
    assert (await value_of(lab, session), sent) == ("sent to ann", [("ann", "hi")])
    types = [t for t in await lab.types(session) if t.startswith("call.")]
    assert types == [
        "call.requested",
        "call.suspended",
        "call.approved",
        "call.dispatched",
        "call.resolved",
    ]


async def test_a_denied_call_is_an_error_that_code_can_catch(lab: Lab) -> None:
    agent, sent = desk(approval=lambda arguments: arguments["to"] == "ann")
    runtime, session = await waiting(lab, GATED, agents=[agent])
    await answered(runtime, session, Deny("not on Fridays"))
    assert await value_of(lab, session) == "PermissionError: not on Fridays"
    assert sent == []


async def test_edited_arguments_are_what_runs_and_the_original_is_kept(lab: Lab) -> None:
    agent, sent = desk(approval=True)
    runtime, session = await waiting(lab, GATED, agents=[agent])
    (call,) = await runtime.open_calls(session)
    other = Approve(digest="sha256:" + "0" * 64)
    with pytest.raises(AnswerStale, match="other arguments"):
        await runtime.answer(session, call.call_id, other)
    await answered(runtime, session, Approve({"to": "bob", "text": "no"}))
    assert sent == [("bob", "no")]
    (request,) = await lab.facts(session, "call.requested")
    assert request.arguments.value()["args"] == ["ann"]


async def test_a_rule_that_does_not_apply_asks_nobody(lab: Lab) -> None:
    agent, sent = desk(approval=lambda arguments: arguments["to"] != "ann")
    runtime = await lab.open(replies(GATED), agents=[agent])
    result = await (await runtime.start()).send("x")
    assert (result.value, len(sent)) == ("sent to ann", 1)


async def test_a_gated_client_tool_waits_twice(lab: Lab) -> None:
    agent, sent = desk(approval=True, executor="client")
    runtime, session = await waiting(lab, GATED, agents=[agent])
    await answered(runtime, session, Approve())
    (wait,) = (await runtime.pending()).waits
    assert (wait.kind, wait.wait) == ("client", 2)
    await answered(runtime, session, "done by the client")
    assert (await value_of(lab, session), sent) == ("done by the client", [])


async def test_a_client_may_say_that_its_call_failed(lab: Lab) -> None:
    agent, _ = desk(executor="client")
    runtime, session = await waiting(lab, GATED, agents=[agent])
    await answered(runtime, session, Fail("ValueError: no such person"))
    assert await value_of(lab, session) == "ValueError: no such person"


async def test_an_assignee_is_enforced(lab: Lab) -> None:
    agent, _ = desk(approval=True, assignee="ann")
    runtime, session = await waiting(lab, GATED, agents=[agent])
    (call,) = await runtime.open_calls(session)
    with pytest.raises(AnswerRefused, match="waits for 'ann'"):
        await runtime.answer(session, call.call_id, Approve(), by="bob")
    await answered(runtime, session, Approve(), by="ann")
    assert await value_of(lab, session) == "sent to ann"


async def test_a_deadline_brings_the_default_and_the_turn_goes_on(lab: Lab) -> None:
    code = cell("FINAL(ask('Now?', default='no', timeout_seconds=0.01))")
    runtime, session = await waiting(lab, code)
    await due(runtime)
    await runtime.settled()
    assert await value_of(lab, session) == "no"
    assert await runtime.tick() == []


async def test_a_deadline_without_a_default_is_an_error_in_the_code(lab: Lab) -> None:
    code = cell(
        "try:\n    r = ask('Now?', timeout_seconds=0.01)\nexcept TimeoutError:\n    r = 'late'\n"
        "FINAL(r)"
    )
    runtime, session = await waiting(lab, code)
    await due(runtime)
    await runtime.settled()
    assert await value_of(lab, session) == "late"


async def test_a_wait_is_called_off_by_cancel(lab: Lab) -> None:
    code = cell("try:\n    r = ask('Now?')\nexcept CallError as e:\n    r = 'off'\nFINAL(r)")
    runtime, session = await waiting(lab, code)
    (call,) = await runtime.open_calls(session)
    await runtime.cancel(session, call.call_id)
    await runtime.settled()
    assert await value_of(lab, session) == "off"


async def test_two_threads_wait_at_once_and_are_answered_in_reverse(lab: Lab) -> None:
    code = cell(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool:\n    r = list(pool.map(ask, ['a?', 'b?']))\nFINAL(r)"
    )
    runtime, session = await waiting(lab, code)
    first, second = await runtime.open_calls(session)
    await runtime.answer(session, second.call_id, "2")
    await runtime.settled()
    assert (await runtime.state(session)).status == "suspended"
    await runtime.answer(session, first.call_id, "1")
    await runtime.settled()
    assert await value_of(lab, session) == ["1", "2"]


async def test_a_message_to_a_session_that_waits_is_refused_or_queued(lab: Lab) -> None:
    runtime, session = await waiting(lab)
    with pytest.raises(SessionBusy, match="answer first"):
        await runtime.send(session, "hello?")
    queued = await runtime.send(session, "hello?", when_busy="queue")
    assert isinstance(queued, holdfast.Queued)
    await answered(runtime, session, "oslo")
    assert [turn.status for turn in await runtime.turns(session)] == ["final", "final"]


async def test_an_answer_needs_no_agent_and_survives_the_death_of_everyone(lab: Lab) -> None:
    agent, sent = desk("postman", approval=True)
    owner, session = await waiting(lab, GATED, agents=[agent])
    await owner.close()
    outsider = await lab.open(replies())
    # Nobody here can drive it: the decision is admitted all the same.
    await outsider.store.load_state(session)
    (call,) = await outsider.open_calls(session)
    await outsider.answer(session, call.call_id, Approve())
    await outsider.settled()
    await outsider.close()
    again = await lab.open(replies(GATED), agents=[agent])
    result = await again.resume(session)
    assert (result.value, sent) == ("sent to ann", [("ann", "hi")])


async def test_a_message_that_steers_is_shown_after_the_results_and_before_the_next_call(
    lab: Lab,
) -> None:
    first, second = cell("import time\nx = 1"), cell("FINAL(x)")
    asked, go_on, seen = asyncio.Event(), asyncio.Event(), asyncio.Event()
    list_inbox = lab.store.list_inbox

    async def listed(*arguments: Any, **options: Any) -> Any:
        items = await list_inbox(*arguments, **options)
        if items:
            seen.set()
        return items

    lab.store.list_inbox = listed  # type: ignore[method-assign]

    async def respond(request: Any) -> str:
        if request.ordinal == 0:
            asked.set()
            await go_on.wait()
        return (first, second)[request.ordinal]

    runtime = await lab.open(respond)
    session = await runtime.start()
    turn = asyncio.ensure_future(session.send("go"))
    await asked.wait()
    queued = await runtime.send(session, "use x", when_busy="steer", key="s-1")
    assert isinstance(queued, holdfast.Queued)
    await seen.wait()
    go_on.set()
    assert isinstance(await turn, holdfast.Final)
    roles = [(message.role, message.text) for message in lab.requests[1].messages]
    assert [role for role, _ in roles] == ["user", "assistant", "observation", "user"]
    assert roles[-1] == ("user", "use x")
    assert [turn.status for turn in await runtime.turns(session.id)] == ["final"]
    inputs = [message.input for message in await lab.facts(session.id, "message.appended")]
    assert inputs == [None, None, None, "s-1", None, None]


async def test_a_message_that_interrupts_calls_off_what_the_turn_waits_for(lab: Lab) -> None:
    code = cell("try:\n    x = ask('Which port?')\nexcept CallError:\n    x = 'none'")
    runtime = await lab.open(replies(code, cell("FINAL(x)")))
    session = await runtime.start()
    assert isinstance(await session.send("go"), holdfast.Suspended)
    result = await runtime.send(session, "never mind", when_busy="interrupt")
    await runtime.settled()
    assert isinstance(result, holdfast.Final)
    assert result.value == "none"
    assert lab.requests[-1].messages[-1].text == "never mind"
    (outcome,) = await lab.facts(session.id, "call.resolved")
    assert outcome.outcome == "cancelled"
