"""A fork at a step starts with that turn open, as it stood before the model was asked."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.errors import InvalidInput
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime import blueprint
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore, ProcessKilled

from .conftest import Lab, cell, replies

STEPS = [cell("n = 1"), cell("n += 10\nprint(n)"), cell("n += 100"), cell("FINAL(n)")]


async def worked(lab: Lab) -> tuple[holdfast.Runtime, holdfast.Session]:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    result = await source.send("count")
    assert result.value == 111
    return runtime, source


@pytest.mark.parametrize(("step", "value"), [(1, ["count"]), (3, 11), (4, 111)])
async def test_a_fork_at_a_step_takes_the_past_from_the_log_and_goes_on_live(
    lab: Lab, step: int, value: object
) -> None:
    _, source = await worked(lab)
    before = await lab.store.read_events(source.id)
    code = cell("FINAL(n)") if step > 1 else cell("FINAL(['count'])")
    other = ScriptedModel(lambda _: code, name="other")
    async with holdfast.open(lab.store, model=other) as elsewhere:
        fork = await elsewhere.fork(source.id, step=step, model="other")
        state = await elsewhere.state(fork.id)
        assert (state.kind, state.status, state.turn and state.turn.steps) == (
            "fork",
            "running",
            step - 1,
        )
        result = await fork.resume()
    assert isinstance(result, holdfast.Final), result
    assert result.value == value
    assert await lab.store.read_events(source.id) == before
    started = await lab.facts(fork.id, "step.started")
    assert [fact.model for fact in started] == ["other"]
    assert "session.revived" not in await lab.types(fork.id)
    (edge,) = await lab.facts(fork.id, "lineage.added")
    assert (edge.type, edge.from_session, edge.from_head) == ("derivation", source.id, None)
    assert (await verify(lab.store, fork.id)).ok


async def test_a_fork_at_a_step_survives_a_kill_and_its_source(lab: Lab) -> None:
    runtime, source = await worked(lab)
    fork = await runtime.fork(source.id, step=3)
    await lab.store.delete(source.id)
    await lab.store.gc(grace_seconds=0)
    lab.requests.clear()

    dying = DyingStore(lab.store.database, 1)  # type: ignore[attr-defined]
    broken = await holdfast.open(dying, model=ScriptedModel(lambda _: "lost", name="scripted"))
    with pytest.raises(ProcessKilled):
        await broken.resume(fork.id)
    dying.bury()
    await broken.close()
    result = await (await lab.open(lambda _: cell("FINAL([n, 'after'])"))).resume(fork.id)
    assert isinstance(result, holdfast.Final), result
    assert result.value == [11, "after"]
    assert lab.requests[0].messages[0].text == "count"
    turns = await runtime.turns(fork.id)
    assert [(turn.turn, turn.status) for turn in turns] == [(1, "final")]


async def test_another_agent_drives_the_fork_with_its_own_tools(lab: Lab) -> None:
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    _, source = await worked(lab)
    agents = [holdfast.Agent(), holdfast.Agent(name="doubling", tools=[double])]
    runtime = await lab.open(lambda _: cell("FINAL(double(n))"), agents=agents)
    fork = await runtime.fork(source.id, step=3, agent="doubling")
    result = await fork.resume()
    assert isinstance(result, holdfast.Final), result
    assert result.value == 22
    assert (await runtime.state(fork.id)).agent == "doubling"


async def test_a_step_that_there_is_not_creates_nothing(lab: Lab) -> None:
    runtime, source = await worked(lab)
    with pytest.raises(InvalidInput, match="has no step 9; it has steps 1 to 4"):
        await runtime.fork(source.id, step=9)
    with pytest.raises(InvalidInput, match="name one of them"):
        await runtime.fork(source.id, "sha256:" + "0" * 64, step=1)
    assert len((await runtime.sessions()).sessions) == 1


async def test_a_fork_takes_the_settings_that_were_in_force_where_it_begins(
    lab: Lab,
) -> None:
    runtime = await lab.open(lambda _: cell("FINAL(1)"))
    source = await runtime.start(max_steps=5)
    first = await source.send("one")
    await source.configure(max_steps=3)
    await source.send("two")
    early, late = await source.fork(first.head), await source.fork()
    found = [(await blueprint.load(lab.store, one.id)).settings.max_steps for one in (early, late)]
    assert found == [5, 3]
