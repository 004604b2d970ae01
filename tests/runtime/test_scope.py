"""Scope: for whom tools act, from the caller to the tool and never into the log."""

import asyncio
import json
from typing import Annotated

import pytest

import holdfast
from holdfast import Agent, Approve, CallContext, Scope, ScriptedModel, Secret, tool
from holdfast.core.errors import InvalidInput, InvalidSettings
from holdfast.core.messages import Message, Text, ToolCall
from holdfast.runtime.replay import replay_session
from holdfast.runtime.tools import make_tool, tool_of
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions

PRIVATE = "token-of-alice-1234567"


class User:
    """What a program hands around for a signed-in user."""

    def __init__(self, name, token=PRIVATE):
        self.name, self.token = name, token


USERS = {"user:alice": User("alice"), "user:bob": User("bob", "token-of-bob-7654321")}


def calls(name, **arguments):
    wish = ToolCall("x1", name, json.dumps(arguments))
    return Message("assistant", (Text("on it"), wish))


def agent(*replies, tools, **more):
    model = ScriptedModel(lambda request: replies[request.ordinal])
    return Agent(harness="tools", model=model, tools=tools, **more)


async def outcome_of(session, number=0):
    """Return (outcome, result, error) of a call of a session."""
    call = (await session.calls())[number]
    shown = [
        None if item is None else await session.value(item) for item in (call.result, call.error)
    ]
    return (call.outcome, *shown)


def seen_by():
    """Return a tool that notes whom it acts for, and the list of them."""
    seen = []

    @tool(needs_scope=True)
    def pay(amount: int, context: CallContext) -> str:
        """Pay."""
        seen.append(context.scope.name)
        return "paid"

    return pay, seen


async def everything(store, session, tmp_path):
    """Return all that a store holds of a session, as text."""
    events = await store.read_events(session)
    inbox = await store.list_inbox(session, pending=False)
    await export_sessions(store, [session], tmp_path / "copy")
    parts = [repr([event.data for event in events]), repr(inbox)]
    for item in inbox:
        if item.content is not None and not item.content.inline:
            parts.append((await store.get_payload(session, item.content.id)).decode())
    return "\n".join(parts)


async def test_a_scope_reaches_the_tools_of_its_turn_and_nothing_of_it_is_stored(tmp_path):
    pay, seen = seen_by()
    store = MemorySessionStore()
    model = agent(calls("pay", amount=1), "done", tools=[pay])
    async with holdfast.open(store, agents=[model]) as runtime:
        session = await runtime.start(agent=model)
        result = await session.send("pay", scope=User("alice"))
        assert result.unwrap() == "done"
    assert seen == ["alice"]
    text = await everything(store, session.id, tmp_path)
    assert "alice" not in text
    assert PRIVATE not in text
    assert "alice" not in repr(Scope(User("alice")))


@pytest.mark.parametrize("scope", [None, Scope(reference="user:nobody")])
async def test_a_tool_that_needs_a_user_fails_with_the_system_scope_and_does_not_run(scope):
    pay, seen = seen_by()
    model = agent(calls("pay", amount=1), "sorry", tools=[pay])
    resolve = USERS.__getitem__
    async with holdfast.open(MemorySessionStore(), agents=[model], scopes=resolve) as runtime:
        session = await runtime.start(agent=model)
        assert (await session.send("pay", scope=scope)).unwrap() == "sorry"
        outcome, _, error = await outcome_of(session)
        assert (outcome, error.partition(":")[0]) == ("error", "ScopeMissing")
    assert seen == []


async def test_a_tool_that_needs_no_user_gets_none_as_the_system_scope():
    seen = []

    @tool
    def look(context: CallContext) -> str:
        """Look."""
        seen.append(context.scope)
        return "ok"

    model = agent(calls("look"), "done", tools=[look])
    async with holdfast.open(MemorySessionStore(), agents=[model]) as runtime:
        session = await runtime.start(agent=model)
        await session.ask("look")
    assert seen == [None]


async def test_a_reference_is_stored_and_resolved_again_in_another_process():
    pay, seen = seen_by()

    @tool(executor="human")
    def which() -> str:
        """Which account?"""

    def program():
        return agent(calls("which"), calls("pay", amount=2), "done", tools=[pay, which])

    store = MemorySessionStore()
    first = program()
    async with holdfast.open(store, agents=[first], scopes=USERS.__getitem__) as runtime:
        session = await runtime.start(agent=first)
        scope = Scope(USERS["user:alice"], reference="user:alice")
        waiting = await session.send("pay", scope=scope)
        (call_id,) = waiting.calls
    second = program()
    async with holdfast.open(store, agents=[second], scopes=USERS.__getitem__) as runtime:
        # Whoever answers does not become the one whom the turn acts for.
        await runtime.answer(session.id, call_id, "mine", scope=User("bob"))
        await runtime.settled()
        assert (await runtime.state(session.id)).last_turn == "final"
    assert seen == ["alice"]


async def test_a_turn_without_a_reference_goes_on_for_who_resumes_it():
    pay, seen = seen_by()

    @tool(executor="human")
    def which() -> str:
        """Which account?"""

    model = agent(calls("which"), calls("pay", amount=2), "done", tools=[pay, which])
    async with holdfast.open(MemorySessionStore(), agents=[model]) as runtime:
        session = await runtime.start(agent=model)
        waiting = await session.send("pay", scope=User("alice"))
        await session.answer(waiting.calls[0], "mine", scope=User("bob"))
        await runtime.settled()
        assert (await session.state()).last_turn == "final"
    assert seen == ["bob"]


async def test_an_approved_call_acts_for_its_approver_whoever_sent_the_message():
    seen = []

    @tool(approval=True, needs_scope=True)
    def refund(amount: int, context: CallContext) -> str:
        """Refund."""
        seen.append((context.scope.name, amount))
        return "ok"

    model = agent(calls("refund", amount=5), "done", tools=[refund])
    async with holdfast.open(
        MemorySessionStore(), agents=[model], scopes=USERS.__getitem__
    ) as runtime:
        session = await runtime.start(agent=model)
        waiting = await session.send("refund", scope=Scope(reference="user:alice"))
        (call_id,) = waiting.calls
        with pytest.raises(InvalidInput, match="reference"):
            await session.answer(call_id, Approve(), scope=USERS["user:bob"])
        await session.answer(call_id, Approve(), scope=Scope(reference="user:bob"))
        await runtime.settled()
        assert (await session.state()).last_turn == "final"
    assert seen == [("bob", 5)]


async def test_an_approval_without_a_scope_runs_with_the_system_scope():
    pay, seen = seen_by()
    gated = make_tool(tool_of(pay).call, approval=True, needs_scope=True)
    model = agent(calls("pay", amount=5), "done", tools=[gated])
    async with holdfast.open(
        MemorySessionStore(), agents=[model], scopes=USERS.__getitem__
    ) as runtime:
        session = await runtime.start(agent=model)
        waiting = await session.send("pay", scope=Scope(reference="user:alice"))
        await session.answer(waiting.calls[0], Approve())
        await runtime.settled()
        assert (await outcome_of(session))[0] == "error"
    assert seen == []


async def test_a_queued_message_acts_for_its_own_sender_and_needs_a_reference():
    pay, seen = seen_by()

    @tool(executor="human")
    def which() -> str:
        """Which account?"""

    replies = [calls("which"), "asked", calls("pay", amount=1), "done"]
    model = agent(*replies, tools=[pay, which])
    async with holdfast.open(
        MemorySessionStore(), agents=[model], scopes=USERS.__getitem__
    ) as runtime:
        session = await runtime.start(agent=model)
        waiting = await session.send("one", scope=User("alice"))
        with pytest.raises(InvalidInput, match="reference"):
            await session.send("two", scope=User("bob"), when_busy="queue")
        await session.send("two", scope=Scope(reference="user:bob"), when_busy="queue")
        await session.answer(waiting.calls[0], "it", scope=User("alice"))
        await runtime.settled()
        await session.resume(scope=User("alice"))
    assert seen == ["bob"]


async def test_code_and_its_children_act_for_the_sender():
    pay, seen = seen_by()
    parent = "```python\nimport bank\nbank.pay(1)\nFINAL(rlm('pay too'))\n```"
    child = "```python\nimport bank\nbank.pay(2)\nFINAL('ok')\n```"
    model = ScriptedModel(lambda request: parent if request.first_user_text == "go" else child)
    one = Agent(model=model, tools=[holdfast.Toolset("bank", tools=[pay])])
    async with holdfast.open(MemorySessionStore(), agents=[one]) as runtime:
        session = await runtime.start(agent=one)
        result = await session.send("go", scope=User("alice"))
        assert result.status == "final", result
    assert seen == ["alice", "alice"]


def secret_tool():
    given = []

    @tool(effect="idempotent")
    def charge(amount: int, key: Annotated[str, Secret("stripe")], *, loud: bool = False) -> dict:
        """Charge."""
        given.append(key)
        if loud:
            raise ValueError(f"bad key {key}")
        return {"amount": amount, "used": [key]}

    return charge, given


async def test_a_secret_is_hidden_from_the_model_and_filled_in_at_dispatch(tmp_path):
    charge, given = secret_tool()
    declared = tool_of(charge)
    assert "key" not in declared.signature
    assert "key" not in declared.parameters["properties"]
    store = MemorySessionStore()
    replies = [calls("charge", amount=3), calls("charge", amount=4, loud=True), "done"]
    model = agent(*replies, tools=[charge])
    async with holdfast.open(
        store, agents=[model], secrets={"stripe": "sk-very-secret"}.get
    ) as runtime:
        session = await runtime.start(agent=model)
        assert (await session.send("charge")).unwrap() == "done"
        assert (await outcome_of(session))[1] == {"amount": 3, "used": ["[secret stripe]"]}
        assert (await outcome_of(session, 1))[2] == "ValueError: bad key [secret stripe]"
    assert given == ["sk-very-secret"] * 2
    assert "sk-very-secret" not in await everything(store, session.id, tmp_path)


async def test_a_secret_that_is_not_here_fails_the_call_before_it_runs():
    charge, given = secret_tool()
    for secrets in (None, {}.__getitem__, lambda name: None):
        model = agent(calls("charge", amount=3), "done", tools=[charge])
        async with holdfast.open(MemorySessionStore(), agents=[model], secrets=secrets) as runtime:
            session = await runtime.start(agent=model)
            await session.send("charge")
            assert (await outcome_of(session))[2].startswith("SecretMissing")
    assert given == []


async def test_values_are_redacted_before_they_are_stored(tmp_path):
    number = "4111-1111"

    def redact(kind, value):
        return json.loads(json.dumps(value).replace(number, f"[{kind}]"))

    @tool(effect="pure")
    def find(text: str) -> dict:
        """Find."""
        return {"found": number, "text": text}

    @tool(executor="human")
    def which() -> str:
        """Which?"""

    store = MemorySessionStore()
    replies = [calls("find", text=number), calls("which"), f"it is {number}"]
    model = agent(*replies, tools=[find, which])
    async with holdfast.open(store, agents=[model], redact=redact) as runtime:
        session = await runtime.start(agent=model)
        waiting = await session.send(f"my card is {number}")
        await session.answer(waiting.calls[0], f"that of {number}")
        await runtime.settled()
        result = (await session.turns())[-1]
        assert result.status == "final"
        assert (await outcome_of(session))[1] == {"found": "[result]", "text": "[reply]"}
        assert (await outcome_of(session, 1))[1] == "that of [answer]"
    assert number not in await everything(store, session.id, tmp_path)


async def test_a_redact_hook_that_fails_keeps_the_value_out_of_the_log(tmp_path):
    def redact(kind, value):
        raise ValueError("broken")

    store = MemorySessionStore()
    model = agent("fine", tools=[])
    async with holdfast.open(store, agents=[model], redact=redact) as runtime:
        session = await runtime.start(agent=model)
        await session.send("a private thing")
    assert "private thing" not in await everything(store, session.id, tmp_path)


async def test_an_idempotent_tool_is_tried_again_and_a_once_tool_may_not_be():
    tries = []

    @tool(effect="idempotent", retry=2)
    def flaky(context: CallContext) -> str:
        """Fail twice."""
        tries.append(context.call_id)
        if len(tries) < 3:
            raise ConnectionError("down")
        return "up"

    model = agent(calls("flaky"), "done", tools=[flaky])
    async with holdfast.open(MemorySessionStore(), agents=[model]) as runtime:
        session = await runtime.start(agent=model)
        await session.ask("go")
        assert (await outcome_of(session))[:2] == ("ok", "up")
    assert len(tries) == 3
    assert len(set(tries)) == 1
    with pytest.raises(InvalidSettings, match="never repeated"):
        make_tool(seen_by, retry=1)


@pytest.mark.parametrize(("effect", "outcome"), [("once", "unknown"), ("pure", "expired")])
async def test_a_tool_that_hangs_ends_with_its_deadline(effect, outcome):
    @tool(effect=effect, deadline_seconds=0.05)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()

    model = agent(calls("hang"), "done", tools=[hang])
    async with holdfast.open(MemorySessionStore(), agents=[model]) as runtime:
        session = await runtime.start(agent=model)
        assert (await session.send("go")).unwrap() == "done"
        assert (await outcome_of(session))[0] == outcome


async def test_what_cells_print_ask_and_give_out_is_redacted_before_it_is_stored(tmp_path):
    number = "4111-1111"

    def redact(kind, value):
        return json.loads(json.dumps(value).replace(number, f"[{kind}]"))

    # Written so that no part of a reply holds the number: only what the cell makes of it does.
    made = "number = '-'.join(['4' + '111', '1' * 4])\n"
    first = (
        made + "print(number)\nlm('leaf ' + number)\nwhich = ask('Is it ' + number + '?')\n"
        "told = rlm('task ' + number, inputs={'card': number})\nprint(which, told['value'])\n"
        "del number\n[4, '-'.join(['4111', '1111'])][1]"
    )
    replies = [f"```python\n{first}\n```", f"```python\n{made}raise ValueError(number)\n```"]
    replies.append(f"```python\n{made}kept, number = number, 0\ndel kept\nFINAL('x')\n```")

    def respond(request):
        if request.purpose == "leaf" or request.first_user_text.startswith("task"):
            heard.append(request.prompt)
            return "```python\nFINAL(card)\n```"
        return replies[request.ordinal]

    heard, store = [], MemorySessionStore()
    model = ScriptedModel(respond, name="redacted")
    async with holdfast.open(store, model=model, redact=redact) as runtime:
        session = await runtime.start()
        waiting = await session.send("go")
        await session.answer(waiting.calls[0], f"no, {number}")
        await runtime.settled()
        assert (await session.turns())[-1].status == "final"
        shown = [m.message.text for m in await session.messages() if m.message.role != "user"]
        assert "no, [answer] [input]" in "".join(shown)
        assert "ValueError: [output]" in "".join(shown)
        sessions = [info.id for info in (await store.list_sessions()).sessions]
    assert len(sessions) == 2
    assert any("leaf [message]" in text for text in heard)
    for one in sessions:
        assert number not in await everything(store, one, tmp_path)
    report = await replay_session(store, session.id, redact=redact)
    assert report.difference is None


async def test_a_secret_that_code_prints_is_replaced_by_its_name(tmp_path):
    @tool
    def charge(key: Annotated[str, Secret("stripe")]) -> dict:
        """Charge."""
        return {"half": key[:7], "rest": key[7:]}

    code = "got = charge()\nprint(got['half'] + got['rest'])\ndel got\nFINAL('paid')"
    model = ScriptedModel(lambda request: f"```python\n{code}\n```", name="printer")
    store, shop = MemorySessionStore(), holdfast.Agent(model=model, tools=[charge])
    secrets = {"stripe": "sk-very-secret"}.get
    async with holdfast.open(store, agents=[shop], secrets=secrets) as runtime:
        session = await runtime.start(agent=shop)
        assert (await session.send("pay")).unwrap() == "paid"
        shown = "".join(m.message.text for m in await session.messages())
        assert "[secret stripe]" in shown
    assert "sk-very-secret" not in await everything(store, session.id, tmp_path)
