"""Hooks around a turn: they add to a request, halt or look, and harm nothing by failing."""

import asyncio
import json
import threading

import pytest

import holdfast
from holdfast import Agent, Halt, Hook, ScriptedModel, tool
from holdfast.core.errors import InvalidSettings
from holdfast.core.facts import StepStarted
from holdfast.core.messages import ToolCall, assistant
from holdfast.runtime.replay import replay_session
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify


def calls(name, **arguments):
    return assistant(ToolCall("x1", name, json.dumps(arguments)))


class Program:
    """An agent with one tool, whose model notes what it was sent."""

    def __init__(self, *replies, hooks, harness="tools", **settings):
        self.requests, self.ran = [], []

        def respond(request):
            self.requests.append(request)
            return replies[request.ordinal]

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.ran.append(amount)
            return "paid"

        self.agent = Agent(
            harness=harness,
            model=ScriptedModel(respond),
            tools=[pay],
            hooks=hooks,
            settings=settings,
        )

    async def run(self, store=None, message="go"):
        store = store or MemorySessionStore()
        async with holdfast.open(store, agents=[self.agent]) as runtime:
            session = await runtime.start(session_id="s-1", agent=self.agent)
            result = await session.send(message)
        assert (await verify(store, "s-1")).ok
        return result, store


def texts(request):
    return "\n".join(message.text for message in request.messages)


class Note(Hook):
    """Adds a note to every request."""

    def __init__(self, text="it is noon"):
        self.text, self.asked = text, []

    def before_model(self, context, messages):
        self.asked.append((context.session, context.turn, len(messages)))
        return self.text


async def test_what_a_hook_adds_is_sent_and_never_stored():
    note = Note()
    program = Program(calls("pay", amount=1), "done", hooks=[note])
    result, store = await program.run()
    assert result.unwrap() == "done"
    assert ["noon" in texts(request) for request in program.requests] == [True, True]
    assert len(note.asked) == 2
    assert "noon" not in repr([event.data for event in await store.read_events("s-1")])


async def test_the_digest_of_a_request_is_that_without_what_hooks_add():
    digests = []
    for hooks in ([], [Note("a")], [Note("b")]):
        _, store = await Program("done", hooks=hooks).run()
        events = await store.read_events("s-1", types=[StepStarted.TYPE])
        digests.append(events[0].fact().request)
    assert len(set(digests)) == 1
    assert digests[0]


async def test_more_than_the_reserve_halts_the_turn_and_names_the_hook():
    program = Program("done", hooks=[Note("word " * 20_000)])
    result, _ = await program.run()
    assert (result.status, result.code) == ("failed", "halted")
    assert "Note" in result.error
    assert program.requests == []


async def test_the_reserve_counts_against_the_context():
    program = Program("done", hooks=[Note()], context_tokens=4200, compaction="")
    result, _ = await program.run()
    assert result.status == "budget_exceeded"


class Stop(Hook):
    """Halts where it is told to."""

    def __init__(self, where):
        self.where = where

    def before_model(self, context, messages):
        return Halt("not today") if self.where == "before_model" else None

    async def after_reply(self, context, reply):
        return Halt("not today") if self.where == "after_reply" else None

    def before_tool(self, context, use):
        return Halt("not today") if self.where == "before_tool" else None

    def after_tool(self, context, use):
        return Halt("not today") if self.where == "after_tool" else None


@pytest.mark.parametrize("harness", ["tools", "code"])
@pytest.mark.parametrize(
    ("where", "asked", "ran"),
    [("before_model", 0, 0), ("after_reply", 1, 0), ("before_tool", 1, 0), ("after_tool", 1, 1)],
)
async def test_a_hook_halts_a_turn_with_its_reason(harness, where, asked, ran):
    reply = calls("pay", amount=1) if harness == "tools" else "```python\npay(1)\nFINAL(1)\n```"
    program = Program(reply, "done", hooks=[Stop(where)], harness=harness)
    result, store = await program.run()
    assert (result.status, result.code) == ("failed", "halted")
    assert "Stop: not today" in result.error
    assert (len(program.requests), len(program.ran)) == (asked, ran)
    state = await store.load_state("s-1")
    assert (state.turn, state.calls, state.spend.unknown_usd) == (None, {}, 0)
    if where in ("before_tool", "after_tool"):
        async with holdfast.open(store, agents=[program.agent]) as runtime:
            (call,) = await runtime.calls("s-1")
            assert call.outcome == ("cancelled" if where == "before_tool" else "ok")


async def test_a_halted_turn_is_not_run_again_after_a_restart():
    program = Program("done", hooks=[Stop("before_model")])
    _, store = await program.run()
    async with holdfast.open(store, agents=[program.agent], recover=True) as runtime:
        await runtime.settled()
        assert await runtime.resume("s-1") is None
    assert program.requests == []


class Broken(Hook):
    """Fails everywhere."""

    def before_model(self, context, messages):
        raise RuntimeError("broken")

    after_reply = before_tool = after_tool = turn_ended = before_model


class Slow(Hook):
    """Never comes back."""

    timeout_seconds = 0.02

    async def before_model(self, context, messages):
        await asyncio.Event().wait()

    after_reply = before_tool = after_tool = turn_ended = before_model


class BlockingObserver(Hook):
    """Blocks its thread for as long as the test lasts."""

    observer = True
    timeout_seconds = 30

    def __init__(self):
        self.free = threading.Event()

    def before_model(self, context, messages):
        self.free.wait()

    after_reply = before_tool = after_tool = turn_ended = before_model


async def test_hooks_that_fail_or_are_slow_harm_nothing():
    observer = BlockingObserver()
    program = Program(calls("pay", amount=1), "done", hooks=[Broken(), Slow(), observer])
    try:
        result, _ = await program.run()
    finally:
        observer.free.set()
    assert result.unwrap() == "done"
    assert program.ran == [1]


@pytest.mark.parametrize("kind", [Broken, Slow])
async def test_a_required_hook_that_fails_halts_the_turn(kind):
    hook = kind()
    hook.required = True
    program = Program("done", hooks=[hook])
    result, _ = await program.run()
    assert result.code == "halted"
    assert kind.__name__ in result.error
    assert program.requests == []


async def test_an_observer_sees_the_whole_turn_in_order():
    seen = []

    class Log(Hook):
        observer = True

        def before_model(self, context, messages):
            seen.append(("before_model", context.step))

        def after_reply(self, context, reply):
            seen.append(("after_reply", reply.text))

        async def before_tool(self, context, use):
            seen.append(("before_tool", use.name, dict(use.arguments)))

        def after_tool(self, context, use):
            seen.append(("after_tool", use.outcome, use.value))

        def turn_ended(self, context, result):
            seen.append(("turn_ended", result.status))

    program = Program(calls("pay", amount=1), "done", hooks=[Log()])
    await program.run()
    assert seen == [
        ("before_model", 1),
        ("after_reply", ""),
        ("before_tool", "pay", {"amount": 1}),
        ("after_tool", "ok", "paid"),
        ("before_model", 2),
        ("after_reply", "done"),
        ("turn_ended", "final"),
    ]


async def test_hooks_are_asked_again_when_an_interrupted_call_is_made_again():
    note = Note()
    store = MemorySessionStore()
    asked = asyncio.Event()

    async def hang(request):
        asked.set()
        await asyncio.Event().wait()

    first = Agent(harness="tools", model=ScriptedModel(hang), hooks=[note])
    async with holdfast.open(store, agents=[first]) as runtime:
        session = await runtime.start(session_id="s-1", agent=first)
        sending = asyncio.ensure_future(session.send("go"))
        await asked.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    seen = []
    second = Agent(
        harness="tools", model=ScriptedModel(lambda r: seen.append(r) or "done"), hooks=[note]
    )
    async with holdfast.open(store, agents=[second]) as runtime:
        assert (await runtime.resume("s-1")).unwrap() == "done"
    assert len(note.asked) == 2
    assert "noon" in texts(seen[0])


async def test_hooks_are_asked_again_in_a_replay_and_what_they_add_is_not_compared():
    _, store = await Program("done", hooks=[Note("then")]).run()
    note = Note("now")
    report = await replay_session(store, "s-1", hooks=[note])
    assert report.difference is None
    assert len(note.asked) == 1


def test_what_is_not_a_hook_is_refused():
    with pytest.raises(InvalidSettings, match="Hook"):
        Agent(hooks=[print])


async def test_a_hook_can_forbid_a_task_for_another_agent_and_is_told_of_its_end():
    seen = []

    class Guard(Hook):
        def before_tool(self, context, use):
            return Halt("no") if use.arguments["task"] == "bad" else None

        def after_tool(self, context, use):
            seen.append((use.name, use.outcome, use.value["value"]))

    def respond(request):
        if request.first_user_text == "good":
            return "done"
        return "told" if request.ordinal else calls("helper", task=request.first_user_text[:-1])

    helper = Agent("helper", harness="tools")
    lead = Agent("lead", tools=[helper], harness="tools", hooks=[Guard()])
    async with await holdfast.open("memory:", model=ScriptedModel(respond), agents=[lead]) as one:
        good = await (await one.start()).send("good!")
        assert (good.value, seen) == ("told", [("helper", "ok", "done")])
        bad = await (await one.start()).send("bad!")
        assert (bad.status, bad.error) == ("failed", "hook Guard: no")
        assert len((await one.sessions()).sessions) == 3
