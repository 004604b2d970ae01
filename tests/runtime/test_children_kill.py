"""A tree of sessions whose process ends anywhere is finished by whoever resumes its root.

The tree has three levels: a root that gives out two tasks at once, a child of one of them, and leaf
calls in each. It is cut off at every append, of whichever session, on a store that outlives the
process; children that had ended are not run again, and no stored answer is paid for twice.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore

from .children import tree
from .conftest import Lab, cell

TREE = Path(tree.__file__)

SCRIPTS = {
    "root": [
        cell("told = lm('before')\nfound = map_rlm(['left', 'right'], inputs={'n': 2})"),
        cell("FINAL([told, [one['value'] for one in found], lm('after')])"),
    ],
    "left": [cell("deep = rlm('deep', inputs={'n': n + 1})"), cell("FINAL(deep['value'] * 2)")],
    "right": [cell("FINAL(lm('right leaf'))")],
    "deep": [cell("said = map_lm(['a', 'b'])"), cell("FINAL(n + len(said))")],
}
ANSWER = ["<before>", [10, "<right leaf>"], "<after>"]


class Provider:
    """A model that notes every question: session by its task, and which step or leaf."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, request: ModelRequest) -> str:
        task = request.first_user_text.split("\n")[0]
        if request.purpose == "leaf":
            self.asked[f"{task}: leaf {request.prompt}"] += 1
            return f"<{request.prompt}>"
        self.asked[f"{task}: step {request.ordinal}"] += 1
        return SCRIPTS[task][request.ordinal]


async def cut_off(lab: Lab, provider: Any, after: int, agents: Any = (), **settings: Any) -> bool:
    """Work the tree in a process that ends after so many appends; tell whether it did."""
    store = DyingStore(lab.store.database, after)  # type: ignore[attr-defined]
    model = ScriptedModel(provider, name="scripted")
    runtime = await holdfast.open(store, model=model, agents=agents)
    await runtime.start(session_id="root", **settings)
    try:
        result = await runtime.send("root", "root")
        return not isinstance(result, holdfast.Final)
    except BaseException:
        return True
    finally:
        store.bury()
        await runtime.close()


async def stored_answers(lab: Lab) -> Counter[str]:
    """Return what was paid for and is in a log."""
    found: Counter[str] = Counter()
    for info in (await lab.store.list_sessions()).sessions:
        (message, *_) = await lab.facts(info.id, "message.appended") or [None]
        if message is None:
            continue
        task = str(message.content.value()).split("\n")[0]
        state = await lab.store.load_state(info.id)
        for ordinal in range(state.counters.get("answered", 0)):
            found[f"{task}: step {ordinal}"] += 1
        for leaf in await lab.facts(info.id, "leaf.called"):
            if leaf.status == "ok":
                found[f"{task}: leaf {leaf.request.value()['prompt']}"] += 1
    return found


async def tree_sums(lab: Lab) -> None:
    """Check that every session's delegated sums are those of its children, and none is open."""
    sessions = (await lab.store.list_sessions()).sessions
    states = {info.id: await lab.store.load_state(info.id) for info in sessions}
    for state in states.values():
        below = [
            one for one in states.values() if (one.parent or {}).get("session") == state.session
        ]
        assert state.delegated.calls == sum(one.total.calls for one in below)
        assert state.delegated.tokens == sum(one.total.tokens for one in below)
        assert state.delegated.held_tokens == sum(one.total.held_tokens for one in below)
        assert state.reserved == {}


async def cut_and_resumed(lab: Lab, after: int) -> bool:
    """Cut the tree off, resume its root in another process; tell whether it had been cut."""
    first = Provider()
    if not await cut_off(lab, first, after):
        return False
    before = await stored_answers(lab)
    second = Provider()
    async with await holdfast.open(
        MemorySessionStore(lab.store.database),  # type: ignore[attr-defined]
        model=ScriptedModel(second, name="scripted"),
    ) as runtime:
        result = await runtime.resume("root")
        if result is None:
            result = await runtime.send("root", "root")
        assert isinstance(result, holdfast.Final), result
        assert result.value == ANSWER
    again = {question for question in second.asked if question in before}
    assert not again, f"paid for twice: {again}"
    assert len((await lab.store.list_sessions()).sessions) == 4
    for info in (await lab.store.list_sessions()).sessions:
        assert (await verify(lab.store, info.id)).ok
    await tree_sums(lab)
    return True


@pytest.mark.parametrize("start", range(4))
async def test_a_tree_cut_off_at_any_append_is_finished_by_resuming_its_root(start: int) -> None:
    cuts = 0
    for after in range(start, 80, 4):
        lab = Lab(None, MemorySessionStore())  # type: ignore[arg-type]
        if not await cut_and_resumed(lab, after):
            break
        cuts += 1
    assert cuts >= 5


@pytest.mark.parametrize(
    ("kind", "at"), [("sqlite", 6), ("sqlite", 13), ("sqlite", 20), ("files", 16)]
)
async def test_a_process_killed_in_mid_tree_loses_nothing_and_pays_nothing_twice(
    kind: str, at: int, tmp_path: Path
) -> None:
    url = f"{kind}:{tmp_path / 'store'}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TREE), url, str(tmp_path), str(at), "after"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    witness = tmp_path / "witness"
    before = Counter(witness.read_text().splitlines()) if witness.exists() else Counter()
    model = tree.model(witness)
    async with await holdfast.open(url, model=model) as runtime:
        found = (await runtime.store.list_sessions()).sessions
        stored = sum([(await runtime.state(info.id)).spend.calls for info in found])
        result = await runtime.resume("root")
        assert isinstance(result, holdfast.Final), result
        assert result.value == tree.ANSWER
        for info in (await runtime.store.list_sessions()).sessions:
            assert (await verify(runtime.store, info.id)).ok
    after = Counter(witness.read_text().splitlines())
    again = sum((after - before).values()) - (len(after) - len(before))
    assert again <= sum(before.values()) - stored, "what the log had was asked again"
