"""Functions of the embedder, called from code: recorded before and after, by effect class."""

import asyncio
import sys

import pytest

import holdfast
from holdfast.kernels.cpython import CpythonKernel
from holdfast.runtime.tools import CallContext, Toolset, make_tool
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore

from .conftest import Lab, cell, replies
from .test_recovery import model_of


def agent(**functions) -> holdfast.Agent:
    made = tuple(
        make_tool(call, name=name, effect=effect) for name, (call, effect) in functions.items()
    )
    return holdfast.Agent(tools=(Toolset("desk", 1, made, prompt="The desk."),))


async def test_a_call_is_in_the_ledger_before_and_after(lab: Lab) -> None:
    seen = []

    async def post(context: CallContext, text: str, *, urgent: bool = False) -> dict:
        events = await lab.store.read_events(session.id, reverse=True, limit=1)
        seen.append((events[0].type, context.call_id))
        return {"posted": text, "urgent": urgent}

    code = "import desk\nFINAL(desk.post('hi', urgent=True))"
    runtime = await lab.open(replies(cell(code)), agents=[agent(post=(post, "once"))])
    session = await runtime.start()
    result = await session.send("x")
    assert result.value == {"posted": "hi", "urgent": True}
    (call,) = await runtime.calls(session.id)
    assert seen == [("call.requested", call.requested.call_id)]
    assert (call.requested.name, call.requested.effect) == ("desk.post", "once")
    assert call.resolved.outcome == "ok"
    assert "The desk." in lab.requests[0].system
    assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize(("effect", "outcome"), [("once", "unknown"), ("idempotent", "cancelled")])
async def test_a_call_in_flight_when_the_turn_runs_out_of_time_has_its_outcome(
    lab: Lab, effect: str, outcome: str
) -> None:
    async def post() -> None:
        await asyncio.Event().wait()

    code = "import desk\ndesk.post()"
    agents = [agent(post=(post, effect))]
    runtime = await lab.open(replies(cell(code)), agents=agents, turn_seconds=3)
    session = await runtime.start()
    assert isinstance(await session.send("x"), holdfast.TimedOut)
    (call,) = await runtime.calls(session.id)
    assert call.resolved.outcome == outcome
    assert (await session.state()).calls == {}


async def test_an_error_of_the_function_reaches_the_code(lab: Lab) -> None:
    def post() -> None:
        raise ValueError("no paper")

    code = "import desk\ntry:\n    desk.post()\nexcept ValueError as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)), agents=[agent(post=(post, "once"))])
    session = await runtime.start()
    assert (await session.send("x")).value == "no paper"
    (call,) = await runtime.calls(session.id)
    assert call.resolved.outcome == "error"


@pytest.mark.parametrize(("effect", "times"), [("once", 1), ("idempotent", 2)])
async def test_a_call_that_a_crash_cut_off_is_repeated_only_if_its_class_allows(
    lab: Lab, effect: str, times: int
) -> None:
    made = []

    def post(text: str, context: CallContext) -> str:
        made.append((text, context.call_id))
        return "done"

    code = (
        "import desk\ntry:\n    r = desk.post('hi')\nexcept CallError as error:\n"
        "    r = type(error).__name__\nFINAL(r)"
    )
    store = DyingStore(
        lab.store.database, lambda _, facts: any(fact.TYPE == "call.resolved" for fact in facts)
    )
    desk = agent(post=(post, effect))
    runtime = await holdfast.open(store, model=model_of(lab, replies(cell(code))), agents=[desk])
    session = await runtime.start()
    with pytest.raises(BaseException):  # noqa: B017
        await session.send("x")
    store.bury()
    await runtime.close()
    again = await lab.open(replies(cell(code)), agents=[desk])
    result = await again.resume(session.id)
    assert len(made) == times
    assert len({call_id for _, call_id in made}) == 1
    assert result.value == ("OutcomeUnknown" if effect == "once" else "done")
    outcome = (await again.calls(session.id))[0].resolved.outcome
    assert outcome == ("unknown" if effect == "once" else "ok")


async def test_a_cell_that_waits_for_someone_for_long_holds_no_worker_and_calls_once(
    lab: Lab,
) -> None:
    made, waits = [], asyncio.Event()
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def sign(text: str) -> str:
        made.append(text)
        waits.set()
        return await answer

    code = "import desk\nbefore = 1\nFINAL([before, desk.sign('here')])"
    agents = [agent(sign=(sign, "once"))]
    runtime = await lab.open(replies(cell(code)), agents=agents, kernel="cpython")
    session = await runtime.start()
    kernel = (await runtime.engine.kernels.choose("cpython")).kernel
    assert isinstance(kernel, CpythonKernel)
    assert kernel.park_seconds == 30.0
    kernel.park_seconds = 0.05
    sending = asyncio.ensure_future(session.send("x"))
    await waits.wait()
    async with asyncio.timeout(10):
        await kernel.pool.wait_until_empty()
    answer.set_result("signed")
    assert (await sending).value == [1, "signed"]
    assert made == ["here"]
    (call,) = await runtime.calls(session.id)
    assert call.resolved.outcome == "ok"


def _next_of_none() -> int:
    return next(iter([]))


async def _cancelled_inside() -> None:
    raise asyncio.CancelledError("gave up")


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _mute() -> None:
    raise _Mute


async def _leave() -> None:
    sys.exit(3)


@pytest.mark.parametrize("call", [_next_of_none, _cancelled_inside, sys.exit, _leave, _mute])
async def test_however_a_function_fails_the_code_is_told_and_the_turn_goes_on(lab, call) -> None:
    code = "import desk\ntry:\n    desk.do()\nexcept Exception as error:\n    FINAL('told')"
    runtime = await lab.open(replies(cell(code)), agents=[agent(do=(call, "once"))])
    session = await runtime.start()
    result = await asyncio.wait_for(session.send("x"), 10)
    assert result.value == "told"
    (made,) = await runtime.calls(session.id)
    assert made.resolved.outcome == "error"


def _bad_bytes() -> str:
    return b"\xff".decode()


def _group() -> None:
    raise ExceptionGroup("two things", [ValueError("one"), OSError("two")])


@pytest.mark.parametrize("kernel", ["cpython", "monty"])
@pytest.mark.parametrize(
    ("call", "caught", "told"),
    [
        (_bad_bytes, "ValueError", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (_group, "Exception", "ExceptionGroup: two things (2 sub-exceptions)"),
    ],
)
async def test_an_error_that_no_single_message_makes_is_told_as_what_it_is_a_kind_of(
    lab, kernel, call, caught, told
) -> None:
    code = f"import desk\ntry:\n    desk.do()\nexcept {caught} as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)), agents=[agent(do=(call, "once"))], kernel=kernel)
    session = await runtime.start()
    result = await asyncio.wait_for(session.send("x"), 10)
    assert isinstance(result, holdfast.Final), result
    assert result.value.startswith(told)


async def test_a_plain_function_may_return_an_awaitable(lab: Lab) -> None:
    async def later(n: int) -> int:
        return n + 1

    runtime = await lab.open(
        replies(cell("import desk\nFINAL(desk.do(1))")),
        agents=[agent(do=(lambda n: later(n), "once"))],
    )
    assert (await (await runtime.start()).send("x")).value == 2


async def cut_at_outcome_of(lab: Lab, code: str, name: str, agents: list, **options) -> str:
    """Drive a turn to the outcome of a tool's call, which is lost with the process."""

    def dies(_, facts):
        return any(name in fact.call_id for fact in facts if fact.TYPE == "call.resolved")

    store = DyingStore(lab.store.database, dies)
    model = model_of(lab, replies(cell(code)))
    runtime = await holdfast.open(store, model=model, agents=agents, **options)
    session = await runtime.start()
    with pytest.raises(BaseException):  # noqa: B017
        await session.send("x")
    store.bury()
    await runtime.close()
    return session.id


async def test_a_rerun_sees_the_pure_answers_that_the_cell_saw(lab: Lab) -> None:
    answers, posted = iter(["first", "second"]), []
    desk = agent(search=(lambda: next(answers), "pure"), post=(posted.append, "idempotent"))
    code = "import desk\nfound = desk.search()\ndesk.post(found)\nFINAL(found)"
    session = await cut_at_outcome_of(lab, code, "desk.post", [desk])
    again = await lab.open(replies(cell(code)), agents=[desk])
    result = await again.resume(session)
    assert isinstance(result, holdfast.Final)
    assert (result.value, posted) == ("first", ["first", "first"])
    effects = [call.effect for call in await again.calls(session)]
    assert effects == ["pure", "idempotent"]


async def test_a_cell_that_writes_a_file_it_had_read_is_run_again_with_what_it_read(
    lab: Lab, tmp_path
) -> None:
    (tmp_path / "count.txt").write_text("1")
    code = (
        f"import work\ntext = open('{tmp_path}/count.txt').read()\n"
        "work.write_text('count.txt', text + '1')\nFINAL(text)"
    )
    options = {"profile": "trusted", "work_area": str(tmp_path)}
    session = await cut_at_outcome_of(lab, code, "work.write_text", [], **options)
    assert (tmp_path / "count.txt").read_text() == "11"
    again = await lab.open(replies(cell(code)), **options)
    result = await again.resume(session)
    assert isinstance(result, holdfast.Final)
    assert (result.value, (tmp_path / "count.txt").read_text()) == ("1", "11")


async def test_the_observation_of_a_diverged_cell_tells_what_its_calls_came_to(lab: Lab) -> None:
    made = []
    desk = agent(post=(made.append, "once"))
    code = "import desk, time\ndesk.post(time.process_time_ns())\nFINAL(1)"
    session = await cut_at_outcome_of(lab, code, "desk.post", [desk])
    again = await lab.open(replies(cell(code), cell("FINAL(2)")), agents=[desk])
    result = await again.resume(session)
    assert isinstance(result, holdfast.Final)
    assert (result.value, len(made)) == (2, 1)
    seen = lab.requests[-1].messages[-1].text
    assert "did not run the same way again" in seen
    assert f"desk.post({{'args': [{made[0]}], 'kwargs': {{}}}}): unknown" in seen
