"""A tree of sessions whose process ends anywhere is finished by whoever resumes its root.

The tree has three levels, leaf calls in each, a fan-out, a compaction and an attach. It is cut off
at every append, of whichever session; children that had ended are not run again, no stored answer
is paid for twice, what the provider was asked agrees with what the logs say of it, and every sum of
the tree is that of its parts.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.state import State
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore

from .children import tree
from .conftest import Lab

TREE = Path(tree.__file__)
WRITES = 80
"""More than the tree takes."""


async def send_root(runtime: holdfast.Runtime, **settings: Any) -> holdfast.TurnResult:
    await runtime.start(session_id="root", **settings)
    return await runtime.send("root", "root")


async def cut_off(
    lab: Lab,
    provider: Any,
    after: int,
    agents: Any = (),
    work: Callable[..., Awaitable[holdfast.TurnResult]] = send_root,
    **settings: Any,
) -> bool:
    """Work a tree in a process that ends after so many appends; tell whether it did."""
    store = DyingStore(lab.store.database, after)  # type: ignore[attr-defined]
    model = (
        provider
        if isinstance(provider, ScriptedModel)
        else ScriptedModel(provider, name="scripted")
    )
    runtime = await holdfast.open(store, model=model, agents=agents)
    try:
        return not isinstance(await work(runtime, **settings), holdfast.Final)
    except BaseException:
        return True
    finally:
        store.bury()
        await runtime.close()


async def states_of(store: SessionStore) -> dict[str, State]:
    found = (await store.list_sessions()).sessions
    return {info.id: await store.load_state(info.id) for info in found}


async def tree_sums(lab: Lab) -> None:
    """Check that every session's delegated sums are those of its children, and none is open."""
    for state in (await states_of(lab.store)).values():
        assert state.reserved == {}
    await sums_agree(lab.store)


async def sums_agree(store: SessionStore) -> None:
    """Check every session's delegated sums against the children whose end it has recorded."""
    states = await states_of(store)
    for state in states.values():
        open_children = {aside.child for aside in state.reserved.values() if aside.child}
        below = [
            one
            for one in states.values()
            if (one.parent or {}).get("session") == state.session
            and one.session not in open_children
        ]
        for name in ("calls", "tokens", "held_tokens", "driven_ms"):
            parts = sum(getattr(one.total, name) for one in below)
            assert getattr(state.delegated, name) == parts, (state.session, name)


async def recorded_answers(store: SessionStore) -> Counter[str]:
    """Return the questions whose answers are in a log."""
    found: Counter[str] = Counter()
    for session, state in (await states_of(store)).items():
        events = await store.read_events(session, types=["message.appended"])
        if not events:
            continue
        content: Any = events[0].fact().content  # type: ignore[union-attr]
        task = str(content.value()).split("\n")[0]
        for ordinal in range(state.counters.get("answered", 0)):
            found[f"{task} {ordinal}"] += 1
        for event in await store.read_events(session, types=["leaf.called"]):
            leaf: Any = event.fact()
            if leaf.status == "ok":
                found[f"leaf {leaf.request.value()['prompt']}"] += 1
        found["summary"] += len(await store.read_events(session, types=["session.compacted"]))
    return +found


async def check_agreement(store: SessionStore, before: Counter[str], after: Counter[str]) -> None:
    """Check what the provider was asked, in all, against what the logs say of it.

    `before` are the answers that were in the logs when the process ended.
    """
    recorded = await recorded_answers(store)
    assert sum(recorded.values()) == tree.QUESTIONS
    assert set(recorded) == set(after), "all that was asked is told, and all that is told was asked"
    for question, times in after.items():
        if question in before:
            assert times == recorded[question], f"paid for twice: {question}"
    states = (await states_of(store)).values()
    told = sum(state.spend.calls for state in states)
    unknown = sum(max(state.spend.unknown_tokens, state.spend.unknown_usd) for state in states)
    assert told - unknown == tree.QUESTIONS
    assert told - unknown <= sum(after.values()) <= told


async def finished(store: SessionStore, note: Callable[[str], None], **settings: Any) -> None:
    """Finish the tree in another process, and check all that it came to."""
    async with await holdfast.open(store, model=tree.model(note)) as runtime:
        result = await tree.work(runtime, **settings)
        assert isinstance(result, holdfast.Final), result
        assert result.value == tree.ANSWER
        await runtime.settled()
    states = await states_of(store)
    assert len(states) == tree.SESSIONS
    for session, state in states.items():
        assert (await verify(store, session)).ok
        assert state.reserved == {}
    await sums_agree(store)
    types = [event.type for event in await store.read_events("root")]
    assert types.count("session.compacted") == 1


@pytest.mark.parametrize(
    "start",
    [0, pytest.param(1, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)],
)
async def test_a_tree_cut_off_at_any_append_is_finished_by_resuming_its_root(start: int) -> None:
    cuts = 0
    for after in range(start, WRITES, 4):
        lab, asked = Lab(None, MemorySessionStore()), list[str]()  # type: ignore[arg-type]
        if not await cut_off(lab, tree.model(asked.append), after, work=tree.work):
            break
        cuts += 1
        store = MemorySessionStore(lab.store.database)  # type: ignore[attr-defined]
        await sums_agree(store)
        before = await recorded_answers(store)
        await finished(store, asked.append)
        await check_agreement(store, before, Counter(asked))
    assert 8 <= cuts < WRITES // 4


async def killed_and_finished(url: str, folder: Path, at: int) -> bool:
    """Kill a process after its n-th durable write, and finish its tree; False if it had ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TREE), url, str(folder), str(at), "after"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    if process.returncode == 0:
        return False
    assert process.returncode == -signal.SIGKILL, errors.decode()
    witness = folder / "witness"
    async with await holdfast.open(url, model=ScriptedModel([])) as runtime:
        store = runtime.store
        await sums_agree(store)
        before = await recorded_answers(store)
        await finished(store, tree.witness(witness), work_area=str(folder))
        asked = Counter(map(json.loads, witness.read_text().splitlines()))
        await check_agreement(store, before, asked)
    return True


@pytest.mark.parametrize(
    ("kind", "at"),
    [*(("sqlite", at) for at in (8, 15, 22, 30, 36)), ("files", 17)],
)
async def test_a_process_killed_in_mid_tree_loses_nothing_and_pays_nothing_twice(
    kind: str, at: int, tmp_path: Path
) -> None:
    assert await killed_and_finished(f"{kind}:{tmp_path / 'store'}", tmp_path, at)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_process_killed_after_each_durable_write_of_a_tree(
    kind: str, start: int, tmp_path: Path
) -> None:
    for at in range(1 + start, WRITES, 8):
        folder = tmp_path / str(at)
        folder.mkdir()
        if not await killed_and_finished(f"{kind}:{folder / 'store'}", folder, at):
            break
    assert 30 < at < WRITES - 8
