"""What children, forks and replays cost, with a model that answers at once.

Children are given out by one `map_rlm`, each with a kernel of its own or by the tools harness,
which has none. Forks are taken of a session with a namespace of 10 MB: each is one record that
refers to what its source stored. A replayed step is one recorded reply and its cell.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import holdfast
from bench.table import Figure, as_result
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.replay import replay_session
from holdfast.runtime.tools import make_tool
from holdfast.stores.sqlite.store import SqliteSessionStore

WIDTHS = (100, 1000)
FORKS = 100
NAMESPACE_BYTES = 10_000_000
REPLAYED_STEPS = 200


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    for width in WIDTHS:
        for harness, aim in (("code", 10.0), ("tools", 3.0)):
            took = _in_place(lambda place, w=width, h=harness: children(place, w, h))
            name = f"{width} children, {'a kernel each' if harness == 'code' else 'no kernel'}"
            figures.append(Figure(name, 1000 * took / width, "ms each", at_most=aim))
    size = _in_place(_forks)
    figures.append(Figure("a fork of a 10 MB namespace", size, "bytes", at_most=2048))
    rate = _in_place(lambda place: _replayed(place, "code"))
    figures.append(Figure("replayed steps", rate, "steps/s", note="the kernel's time included"))
    rate = _in_place(lambda place: _replayed(place, "tools"))
    figures.append(Figure("replayed steps, no kernel", rate, "steps/s", at_least=1000))
    return as_result("children, forks and replays (SQLite)", figures)


def _in_place(work: object) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
        return asyncio.run(work(Path(place)))  # type: ignore[operator]


def _cell(code: str) -> str:
    return f"```python\n{code}\n```"


async def children(place: Path, width: int, harness: str) -> float:
    """Return how long one `map_rlm` of so many children takes, by their harness."""

    def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return _cell(f"FINAL(len(map_rlm(['x'] * {width}, harness='{harness}')))")
        return "done" if harness == "tools" else _cell("FINAL(1)")

    store = await SqliteSessionStore.open(place)
    async with holdfast.open(store, model=ScriptedModel(respond, name="instant")) as runtime:
        session = await runtime.start(max_fanout=width)
        began = time.perf_counter()
        result = await session.send("root")
        assert isinstance(result, holdfast.Final)
        took = time.perf_counter() - began
    await store.close()
    return took


async def _forks(place: Path) -> float:
    """Return what each fork adds to the store, closed before and after: the WAL is in the file."""
    reply = _cell("import random\nblob = random.randbytes(10_000_000)\nFINAL(1)")
    model = ScriptedModel(lambda _: reply, name="instant")
    async with holdfast.open(place / "store", model=model) as runtime:
        session = (await runtime.start()).id
        await runtime.send(session, "fill")
    before = _bytes(place)
    assert before > NAMESPACE_BYTES
    async with holdfast.open(place / "store", model=model) as runtime:
        for _ in range(FORKS):
            await runtime.fork(session)
    return (_bytes(place) - before) / FORKS


def _bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


async def _replayed(place: Path, harness: str) -> float:
    """Return how many recorded steps a second are executed again, each with a cell or a call."""
    last = REPLAYED_STEPS - 1

    def respond(request: ModelRequest) -> object:
        if harness == "code":
            return _cell("FINAL(1)" if request.ordinal == last else "n = 1")
        if request.ordinal == last:
            return "done"
        return assistant(ToolCall(f"call_{request.ordinal}", "look", "{}"))

    store = await SqliteSessionStore.open(place)
    agent = holdfast.Agent(tools=[make_tool(_look, name="look", effect="pure")])
    model = ScriptedModel(respond, name="instant")
    options = {"max_steps": REPLAYED_STEPS, "context_tokens": 0, "harness": harness}
    async with holdfast.open(store, model=model, agents=[agent]) as runtime:
        session = await runtime.start(**options)  # type: ignore[arg-type]
        await session.send("go")
        began = time.perf_counter()
        report = await replay_session(store, session.id)
        took = time.perf_counter() - began
        assert (report.difference, report.steps) == (None, REPLAYED_STEPS)
    await store.close()
    return report.steps / took


def _look() -> str:
    """Look."""
    return "seen"
