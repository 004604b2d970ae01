"""A recorded session is executed again without a provider, and differs in nothing."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.facts import EvalAdded
from holdfast.models.errors import QuotaExceeded, RateLimited
from holdfast.models.port import ModelRequest
from holdfast.runtime.replay import ReplayReport, replay_export, replay_session
from holdfast.stores.portable import export_sessions

from .conftest import Lab, cell, replies

KERNELS = ["cpython", "monty"]


async def replayed(lab: Lab, session: str) -> ReplayReport:
    return await replay_session(lab.store, session)


@pytest.mark.parametrize("kernel", KERNELS)
async def test_code_failures_fan_outs_and_inputs_replay_without_divergence(
    lab: Lab, kernel: str
) -> None:
    def leaf(prompt: str) -> str:
        if prompt == "bad":
            raise RateLimited("slow down")
        return f"<{prompt}>"

    steps = [
        "Let me think first.",
        cell("total = len(text)\nprint(total)"),
        cell("1 / 0"),
        cell("answers = map_lm(['a', 'bad', 'a', 'c'])\nprint(answers)"),
        cell("one = lm('a')\nprint(one)") + "\n" + cell("FINAL([total, one, len(answers)])"),
        cell("FINAL(total + 1)"),
    ]
    runtime = await lab.open(replies(*steps, leaf=leaf), kernel=kernel)
    session = await runtime.start()
    first = await session.send("work", inputs={"text": "four"})
    assert isinstance(first, holdfast.Final)
    await session.send("again")
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut) == (None, None)
    assert (report.turns, report.steps, report.cells) == (2, 6, 6)


async def test_time_and_chance_come_from_the_recording(lab: Lab) -> None:
    code = "import time, random, uuid\nseen = (time.time(), random.random(), uuid.uuid4())"
    runtime = await lab.open(
        replies(cell(f"{code}\nlm('a')\nlater = time.time()\nprint(seen, later)"), cell("FINAL(1)"))
    )
    session = await runtime.start()
    await session.send("go")
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut) == (None, None)


async def test_tool_calls_are_answered_from_the_recording_and_never_made(lab: Lab) -> None:
    made: list[str] = []

    @holdfast.tool(effect="once")
    def post(text: str) -> dict:
        """Post a text."""
        made.append(text)
        if text == "bad":
            raise ValueError("refused")
        return {"id": len(made)}

    steps = [
        cell(
            "first = post('hello')\ntry:\n    post('bad')\nexcept Exception as error:\n"
            "    print(type(error).__name__, error)"
        ),
        cell("FINAL(first)"),
    ]
    agent = holdfast.Agent(name="poster", tools=[post])
    runtime = await lab.open(replies(*steps), agents=[agent])
    session = await runtime.start(agent="poster")
    result = await session.send("go")
    assert isinstance(result, holdfast.Final)
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut) == (None, None)
    assert made == ["hello", "bad"]


async def test_a_recorded_error_is_raised_again(lab: Lab) -> None:
    def respond(request: ModelRequest) -> str:
        if request.ordinal == 0:
            raise QuotaExceeded("no credit")
        return cell("FINAL(2)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    await session.send("one")
    await session.send("two")
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut, report.turns) == (None, None, 2)


async def test_forks_and_compactions_replay(lab: Lab) -> None:
    def respond(request: ModelRequest) -> str:
        return "notes" if request.purpose == "summary" else cell("x = 1\nFINAL(x)")

    runtime = await lab.open(respond, context_tokens=6000)
    session = await runtime.start()
    for _ in range(8):
        await session.send("word " * 800)
    await runtime.compact(session, "window")
    await session.send("and now?")
    assert len(await lab.facts(session.id, "session.compacted")) >= 2
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut, report.turns) == (None, None, 9)
    fork = await runtime.fork(session)
    await fork.send("another way")
    report = await replayed(lab, fork.id)
    assert (report.difference, report.cut, report.turns) == (None, None, 1)


async def test_a_turn_that_ran_out_of_steps_replays(lab: Lab) -> None:
    runtime = await lab.open(replies(*[cell("print(1)")] * 9), max_steps=3)
    session = await runtime.start()
    await session.send("go")
    report = await replayed(lab, session.id)
    assert (report.difference, report.cut, report.steps) == (None, None, 3)


async def test_the_first_divergence_is_reported_with_both_sides(lab: Lab, tmp_path: Path) -> None:
    """What a cell reads from the outside may have changed since."""
    file = tmp_path / "data.txt"
    file.write_text("before")
    runtime = await lab.open(
        replies(cell(f"print(open({str(file)!r}).read())"), cell("FINAL(1)")),
        work_area=str(tmp_path),
    )
    session = await runtime.start()
    await session.send("read")
    file.write_text("after")
    report = await replayed(lab, session.id)
    assert report.difference is not None
    assert report.difference.kind == "cell"
    assert "before" in str(report.difference.recorded)
    assert "after" in str(report.difference.replayed)


async def test_a_call_that_the_recording_does_not_have_is_a_divergence(
    lab: Lab, monkeypatch: Any
) -> None:
    runtime = await lab.open(replies(cell("print(lm('a'))"), cell("FINAL(1)")))
    session = await runtime.start()
    await session.send("ask")
    from holdfast.runtime import recordings

    async def nothing(self: Any, event: Any, fact: Any) -> None:
        return None

    monkeypatch.setattr(recordings._Loader, "_leaf", nothing)
    report = await replayed(lab, session.id)
    assert report.difference is not None
    assert report.difference.kind == "call"
    assert "lm" in report.difference.replayed


async def test_an_export_replays_and_leaves_the_store_as_it_was(lab: Lab, tmp_path: Path) -> None:
    runtime = await lab.open(replies(cell("FINAL(lm('x'))")))
    session = await runtime.start()
    await session.send("go")
    before = (await lab.store.load_state(session.id)).digest
    path = tmp_path / "session.holdfast"
    await export_sessions(lab.store, [session.id], path)
    (report,) = await replay_export(path)
    assert (report.session, report.difference) == (session.id, None)
    assert (await lab.store.load_state(session.id)).digest == before
    assert len(await lab.facts(session.id, EvalAdded.TYPE)) == 1


async def test_a_parent_replays_with_the_answers_of_its_children_and_so_does_each_child(
    lab: Lab,
) -> None:
    def respond(request: ModelRequest) -> str:
        if "child task" in request.first_user_text:
            return cell("FINAL('done')")
        return (
            cell("answers = map_rlm(['child task 1', 'child task 2'])\nprint(len(answers))"),
            cell("FINAL(len(answers))"),
        )[request.ordinal]

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("delegate")
    assert isinstance(result, holdfast.Final)
    children = {fact.child for fact in await lab.facts(session.id, "call.requested") if fact.child}
    assert len(children) == 2
    for one in (session.id, *children):
        report = await replayed(lab, one)
        assert (report.difference, report.cut) == (None, None), one
