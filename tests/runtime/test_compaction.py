"""A transcript that grows too long is rewritten in one event; nothing of the log is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import HoldfastError, InvalidInput, InvalidSettings, SessionBusy
from holdfast.core.facts import BudgetReserved
from holdfast.models.errors import ContextTooLong, ServerError
from holdfast.models.port import ModelRequest
from holdfast.runtime.transcript import load_transcript
from holdfast.stores.verify import verify

from .conftest import Lab, cell


def talk(
    step: Callable[[ModelRequest], str], summary: Callable[[str], str] = lambda text: "notes"
) -> Any:
    """Return a responder of steps and summaries."""

    def respond(request: ModelRequest) -> str:
        return summary(request.prompt) if request.purpose == "summary" else step(request)

    return respond


def known(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.messages)


async def long_session(lab: Lab, responder: Any, turns: int = 8, **options: Any) -> Any:
    runtime = await lab.open(responder, **{"context_tokens": 8000, **options})
    session = await runtime.start()
    for number in range(turns):
        result = await session.send(f"turn {number}: " + "word " * 700)
        assert isinstance(result, holdfast.Final), result
    return runtime, session


def done(request: ModelRequest) -> str:
    return cell("FINAL('done')")


async def test_a_session_with_a_small_window_lives_for_two_hundred_turns(lab: Lab) -> None:
    """An early fact that the summaries kept is known in the end; where one went is told."""

    def summarise(text: str) -> str:
        return "The code word is heron." if "heron" in text else "The code word was lost."

    def step(request: ModelRequest) -> str:
        if request.messages[-1].text.startswith("what is the code word"):
            return cell(f"FINAL({'heron' in known(request)})")
        return cell("FINAL('ok')")

    runtime = await lab.open(talk(step, summarise), context_tokens=8000)
    session = await runtime.start()
    await session.send("The code word is heron. Remember it. The lock has number osprey.")
    for number in range(199):
        result = await session.send(f"entry {number}: " + "lorem ipsum " * 100)
        assert isinstance(result, holdfast.Final)
    result = await session.send("what is the code word?")
    assert isinstance(result, holdfast.Final)
    assert result.value is True
    compactions = await lab.facts(session.id, "session.compacted")
    assert len(compactions) > 5
    assert {fact.strategy for fact in compactions} == {"summary"}
    assert "osprey" not in known(lab.requests[-1])
    said = (await lab.store.read_events(session.id, types=["message.appended"]))[0]
    (lost,) = [p for p in (await runtime.context(session.id)).parts if p.seq == said.seq]
    first = (await lab.store.read_events(session.id, types=["session.compacted"]))[0]
    assert not lost.included
    assert lost.why == f"left out by the compaction at event {first.seq} (summary)"
    assert said.seq <= first.fact().span[1]
    hard = 8000 * 95 // 100
    assert all(len(known(r)) // 4 + len(r.system) // 4 <= hard for r in lab.requests)
    heads = await lab.facts(session.id, "head.published")
    assert sum(head.kind == "compaction" for head in heads) == len(compactions)
    assert len(await lab.facts(session.id, "message.appended")) == 201 * 3
    assert not (await verify(lab.store, session.id)).problems


async def test_a_compaction_keeps_the_beginning_of_what_the_model_is_sent_until_the_next(
    lab: Lab,
) -> None:
    await long_session(lab, talk(done), turns=14)
    steps = [r for r in lab.requests if r.purpose == "step"]
    changed = [
        index
        for index in range(1, len(steps))
        if steps[index].messages[: len(steps[index - 1].messages)] != steps[index - 1].messages
    ]
    summaries = [r for r in lab.requests if r.purpose == "summary"]
    assert len(changed) == len(summaries) >= 2
    assert all("[continuation]" in steps[index].messages[0].text for index in changed)


async def test_revival_sends_what_the_same_process_would_have_sent(lab: Lab) -> None:
    runtime, session = await long_session(lab, talk(done))
    await session.send("before")
    before = lab.requests[-1].messages
    await runtime.close()
    again = await lab.open(talk(done))
    await again.send(session.id, "after")
    assert lab.requests[-1].messages[: len(before)] == before


async def test_a_full_context_inside_a_turn_compacts_instead_of_ending_it(lab: Lab) -> None:
    def step(request: ModelRequest) -> str:
        return (
            cell(f"kept = {request.ordinal}\nprint('x' * 3000)")
            if request.ordinal < 20
            else (cell("FINAL(kept)"))
        )

    runtime = await lab.open(talk(step), context_tokens=4000, compaction="summary,window")
    session = await runtime.start()
    result = await session.send("count, please")
    assert isinstance(result, holdfast.Final)
    assert result.value == 19
    assert len(await lab.facts(session.id, "turn.started")) == 1
    assert await lab.facts(session.id, "session.compacted")
    sent = lab.requests[-1]
    assert "[continuation]" in sent.messages[0].text
    assert "kept: int" in sent.messages[0].text
    assert sent.messages[1].text == "count, please"
    assert sent.messages[2].role == "assistant"


async def test_old_output_is_evicted_with_a_stub_that_says_how_to_get_it_back(lab: Lab) -> None:
    def step(request: ModelRequest) -> str:
        return cell(f"rows = 'row {request.ordinal} ' * 400\nprint(rows)\nFINAL(1)")

    runtime = await lab.open(talk(step), context_tokens=8000, compaction="evict,summary")
    session = await runtime.start()
    for number in range(12):
        await session.send(f"read {number}")
    first = (await lab.facts(session.id, "session.compacted"))[0]
    assert first.strategy == "evict"
    assert first.reservation is None
    observations = [m for m in lab.requests[-1].messages if m.role == "observation"]
    stub = observations[0].text
    assert "row 0" in stub
    assert "were evicted from the context" in stub
    seq = int(stub.partition("event ")[2].partition(",")[0])
    event = (await lab.store.read_events(session.id, after=seq - 1, limit=1))[0]
    assert event.fact().content.id in stub
    assert lab.requests[-1].messages[0].text == "read 0"


async def test_a_window_leaves_whole_turns_out_and_asks_no_model(lab: Lab) -> None:
    _, session = await long_session(lab, talk(done), compaction="window")
    assert not [r for r in lab.requests if r.purpose == "summary"]
    facts = await lab.facts(session.id, "session.compacted")
    assert {fact.strategy for fact in facts} == {"window"}
    roles = [message.role for message in lab.requests[-1].messages]
    assert roles[1:4] == ["user", "assistant", "observation"]


async def test_a_failing_summary_is_recorded_and_falls_back_to_the_window(lab: Lab) -> None:
    def fails(text: str) -> str:
        raise ServerError("overloaded")

    _, session = await long_session(lab, talk(done, fails))
    failed = await lab.facts(session.id, "compaction.failed")
    compacted = await lab.facts(session.id, "session.compacted")
    assert len(failed) == len(compacted) >= 1
    assert {fact.strategy for fact in compacted} == {"window"}
    reserved = await lab.facts(session.id, "budget.reserved")
    assert [fact.reservation for fact in reserved] == [fact.reservation for fact in failed]
    assert (await lab.store.load_state(session.id)).reserved == {}


async def test_a_window_after_a_summary_carries_its_notes_on(lab: Lab) -> None:
    made = []

    def once(text: str) -> str:
        made.append(text)
        if len(made) > 1:
            raise ServerError("overloaded")
        return "the answer is 42"

    _, session = await long_session(lab, talk(done, once), turns=16)
    assert len(made) >= 2
    assert "the answer is 42" in lab.requests[-1].messages[0].text
    assert (await lab.facts(session.id, "session.compacted"))[-1].strategy == "window"


async def test_a_summary_is_reserved_before_and_settled_with_its_cost(lab: Lab) -> None:
    _, session = await long_session(lab, talk(done))
    events = await lab.store.read_events(session.id)
    kinds = [event.type for event in events]
    place = kinds.index("session.compacted")
    fact = events[place].fact()
    assert kinds[place - 1] == "budget.reserved"
    assert events[place - 1].fact().reservation == fact.reservation
    assert fact.reservation == f"compaction:1-{fact.span[1]}"
    assert (fact.prompt_version, fact.model, fact.cost_usd) == (1, "scripted", "0")
    assert fact.usage["output_tokens"] == 2
    assert kinds[place + 1] == "head.published"


async def test_compacting_twice_compacts_once(lab: Lab) -> None:
    runtime = await lab.open(talk(done))
    session = await runtime.start()
    for number in range(4):
        await session.send(f"turn {number} " + "word " * 200)
    first = await runtime.compact(session)
    assert first is not None
    assert first.tokens_after < first.tokens_before
    assert await runtime.compact(session) is None
    assert len(await lab.facts(session.id, "session.compacted")) == 1
    assert isinstance(await session.send("go on"), holdfast.Final)


async def test_a_summary_that_a_crash_took_counts_at_its_ceiling_and_is_made_again(
    lab: Lab,
) -> None:
    runtime, session = await long_session(lab, talk(done), turns=2)
    await runtime.close()
    lease = await lab.store.acquire(session.id)
    reserved = BudgetReserved(reservation="compaction:1-9", usd="0.5", tokens=3000)
    state = await lab.store.load_state(session.id)
    await lab.store.append(lease, state.seq, [reserved])
    await lab.store.release(lease)
    again = await lab.open(talk(done))
    await again.send(session.id, "go on")
    state = await lab.store.load_state(session.id)
    assert state.reserved == {}
    assert (state.spend.held_usd, state.spend.held_tokens) == ("0.5", 3000)
    lost = (await lab.facts(session.id, "compaction.failed"))[0]
    assert lost.unknown


async def test_a_compaction_that_is_cut_by_the_time_limit_leaves_nothing_reserved(
    lab: Lab,
) -> None:
    never = asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        if request.purpose == "summary":
            await never.wait()
        return cell("print('x' * 3000)")

    runtime = await lab.open(respond, context_tokens=4000, turn_seconds=5, compaction="summary")
    session = await runtime.start()
    result = await session.send("go")
    assert isinstance(result, holdfast.TimedOut)
    assert (await lab.store.load_state(session.id)).reserved == {}
    assert [fact.unknown for fact in await lab.facts(session.id, "compaction.failed")] == [True]


async def test_a_fork_of_a_compaction_goes_on_with_what_was_kept(lab: Lab) -> None:
    runtime, session = await long_session(lab, talk(done))
    await runtime.compact(session, "window")
    kept = await load_transcript(lab.store, await lab.store.load_state(session.id))
    fork = await runtime.fork(session)
    await fork.send("what now?")
    assert list(lab.requests[-1].messages[:-1]) == kept.messages
    long = await lab.open(talk(done), context_tokens=8000)
    for _ in range(6):
        await long.send(fork.id, "word " * 1500)
    assert await lab.facts(fork.id, "session.compacted")
    assert not (await verify(lab.store, fork.id)).problems


async def test_only_known_strategies_are_taken_and_only_between_steps(lab: Lab) -> None:
    with pytest.raises(InvalidSettings, match="evict, summary, window"):
        await lab.open(talk(done), compaction="magic")
    runtime = await lab.open(talk(done))
    session = await runtime.start()
    with pytest.raises(InvalidInput, match="'magic' is not a compaction strategy"):
        await runtime.compact(session, "magic")
    entered, never = asyncio.Event(), asyncio.Event()

    async def hangs(request: ModelRequest) -> str:
        entered.set()
        await never.wait()
        return ""

    hanging = await lab.open(hangs)
    other = await hanging.start()
    task = asyncio.ensure_future(other.send("x"))
    await entered.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, HoldfastError)):
        await task
    with pytest.raises(SessionBusy, match="between two steps"):
        await hanging.compact(other)


async def test_without_strategies_a_full_context_ends_the_turn(lab: Lab) -> None:
    runtime = await lab.open(
        talk(lambda request: cell("print('x' * 4000)")), context_tokens=4000, compaction=""
    )
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert result.limit == "context_tokens"


async def test_the_context_says_why_each_part_is_in_or_out(lab: Lab) -> None:
    runtime, session = await long_session(lab, talk(done))
    await runtime.compact(session, "window")
    await session.send("and now?")
    view = await runtime.context(session.id)
    inside = [part for part in view.parts if part.included]
    assert [part.role for part in inside[:2]] == ["system", "user"]
    assert inside[1].part == "frame"
    assert inside[1].why == f"written by the compaction at event {view.boundary}"
    sent = [message.text for message in lab.requests[-1].messages]
    assert [part.text for part in inside[1 : 1 + len(sent)]] == sent
    out = [part for part in view.parts if not part.included]
    compactions = await lab.store.read_events(session.id, types=["session.compacted"])
    assert out[0].why == f"left out by the compaction at event {compactions[0].seq} (summary)"
    assert out[-1].why == f"left out by the compaction at event {compactions[1].seq} (window)"
    assert len(out) + len(inside) == 2 + len(await lab.facts(session.id, "message.appended"))


async def test_what_a_provider_finds_too_long_is_compacted_and_asked_again(lab: Lab) -> None:
    def respond(request: ModelRequest) -> str:
        if request.purpose != "step":
            return "notes"
        if sum(len(message.text) for message in request.messages) > 20_000:
            raise ContextTooLong("the window is full")
        return cell("print('x' * 15_000)") if request.ordinal < 4 else cell("FINAL('done')")

    runtime = await lab.open(respond)
    session = await runtime.start(context_tokens=60_000)
    result = await session.send("go on")
    assert isinstance(result, holdfast.Final), result
    failed = [fact for fact in await lab.facts(session.id, "step.put") if fact.status == "failed"]
    assert failed
    assert await lab.facts(session.id, "session.compacted")
