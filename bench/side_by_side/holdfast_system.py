"""Holdfast's side of the work: whole turns of the tools harness, which needs no kernel."""

from __future__ import annotations

import asyncio
import functools
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast
from bench.side_by_side.work import (
    ASSISTANT_BYTES,
    USER_BYTES,
    Case,
    Figures,
    Size,
    check,
    die,
    late_ms,
    peak_mb,
    stored,
    text,
    timed,
)
from holdfast.core.facts import HeadPublished
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.runtime.runtime import open_runtime  # at the top: importing is not opening
from holdfast.stores.port import SessionFilter
from holdfast.stores.sqlite import store as _loaded  # noqa: F401

ROOM = 10_000_000
"""Tokens of a window that nothing fills: a compaction would leave others more to do than us."""


@holdfast.tool(executor="human")
def which() -> str:
    """Which one?"""
    return ""


def _talks(request: ModelRequest) -> str:
    return text(2 * request.ordinal + 1, ASSISTANT_BYTES)


def _asks(request: ModelRequest) -> Any:
    return "done" if request.ordinal % 2 else assistant(ToolCall("x", "which", "{}"))


def _agent(name: str, model: Callable[[ModelRequest], Any], **options: Any) -> holdfast.Agent[Any]:
    scripted = holdfast.ScriptedModel(model, name=name)
    return holdfast.Agent(name, harness="tools", model=scripted, **options)


TALKS = _agent("talks", _talks)
ASKS = _agent("asks", _asks, tools=[which])


def _opened(place: Path, url: str, agent: holdfast.Agent[Any]) -> Any:
    where = url or str(place)
    return open_runtime(where, agents=[agent], context_tokens=ROOM, max_fanout=2000)


async def _said(runtime: holdfast.Runtime, session: str) -> list[str]:
    found: list[str] = []
    after = 0
    while page := await runtime.messages(session, after=after, limit=500):
        found += [view.message.text for view in page]
        after = page[-1].seq
    return found


async def _converse(runtime: holdfast.Runtime, name: str, turns: int) -> list[float]:
    session = runtime.session(name, agent=TALKS, create=True)
    took: list[float] = []
    for number in range(turns):
        with timed(took):
            await session.send(text(2 * number, USER_BYTES))
    return took


def _program(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


async def b1(place: Path, size: Size, url: str) -> Figures:
    async with _opened(place, url, TALKS) as runtime:
        took = await _converse(runtime, "t", size.turns)
        check(await _said(runtime, "t"), size.turns)
    return {"seconds": sum(took), "ms at the end": late_ms(took), "bytes": stored(place)}


async def b2(place: Path, size: Size, url: str) -> Figures:
    turns = size.cold // 8  # a turn is eight events
    async with _opened(place, url, TALKS) as runtime:
        await _converse(runtime, "t", turns)
    program = (
        "import asyncio, sys, time\n"
        "from bench.side_by_side import holdfast_system as system\n"
        f"asyncio.run(system.cold({str(place)!r}, {url!r}, {turns}))\n"
    )
    done = _program(program)
    assert done.returncode == 0, done.stderr
    ms, memory = done.stdout.split()
    return {"ms": float(ms), "peak MB": float(memory)}


async def cold(place: str, url: str, turns: int) -> None:
    """Print how long it takes until the state of a session is there, in a new process."""
    started = time.perf_counter()
    async with _opened(Path(place), url, TALKS) as runtime:
        state = await runtime.state("t")
        ms = 1000 * (time.perf_counter() - started)
        assert state.seq >= 4 * turns, state.seq
    print(ms, peak_mb())


async def b3(place: Path, size: Size, url: str) -> Figures:
    async with _opened(place, url, TALKS) as runtime:
        await _converse(runtime, "t", size.turns)
        wanted = min(100, size.turns)
        started = time.perf_counter()
        heads = await runtime.store.read_events(
            "t", types=[HeadPublished.TYPE], reverse=True, limit=wanted
        )
        messages = await runtime.messages("t", after=heads[-1].seq, limit=2 * wanted)
        ms = 1000 * (time.perf_counter() - started)
        assert len(heads) == wanted
        assert len(messages) >= 2 * (wanted - 1)
    return {"ms for 100": ms}


async def b4(place: Path, size: Size, url: str) -> Figures:
    figures: Figures = {}
    for width in size.children:

        def root(request: ModelRequest, width: int = width) -> str:
            if request.first_user_text == "root":
                code = f"FINAL(len(map_rlm(['x'] * {width}, harness='tools')))"
                return f"```python\n{code}\n```"
            return "done"

        model = holdfast.ScriptedModel(root, name="root")
        agent = holdfast.Agent("root", model=model)
        folder = place / str(width)
        async with _opened(folder, url, agent) as runtime:
            session = runtime.session(f"root-{width}", agent=agent, create=True)
            took: list[float] = []
            with timed(took):
                found = await session.ask("root")
            assert found == width, found
        figures[f"ms each of {width}"] = 1000 * took[0] / width
    return figures


async def b5(place: Path, size: Size, url: str) -> Figures:
    async with _opened(place, url, TALKS) as runtime:
        await _converse(runtime, "t", size.turns)
        half = (await runtime.heads("t", limit=size.turns))[size.turns // 2].id
    before = stored(place)
    took: list[float] = []
    async with _opened(place, url, TALKS) as runtime:
        for number in range(size.forks):
            with timed(took):
                await runtime.fork("t", half, session_id=f"fork-{number}")
    grown = (stored(place) - before) / size.forks
    return {"ms each": 1000 * sum(took) / size.forks, "bytes each": grown}


async def b6(place: Path, size: Size, url: str) -> Figures:
    async with _opened(place, url, TALKS) as runtime:
        started = time.perf_counter()
        names = [f"s-{number}" for number in range(size.sessions)]
        await asyncio.gather(*(_converse(runtime, name, size.session_turns) for name in names))
        seconds = time.perf_counter() - started
        check(await _said(runtime, names[-1]), size.session_turns)
    return {"turns/s": size.sessions * size.session_turns / seconds}


async def b7(place: Path, size: Size, url: str) -> Figures:
    async with _opened(place, url, ASKS) as runtime:
        for number in range(size.waits):
            session = runtime.session(f"s-{number}", agent=ASKS, create=True)
            await session.send("go")
    started = time.perf_counter()
    async with _opened(place, url, ASKS) as runtime:
        while waits := (await runtime.pending(limit=100)).waits:
            for wait in waits:
                await runtime.answer(wait.session, wait.call_id, "a")
            await runtime.settled()
        seconds = time.perf_counter() - started
        page = await runtime.sessions(SessionFilter(status="idle"), limit=size.waits + 1)
        assert len(page.sessions) == size.waits
    return {"seconds": seconds, "bytes each": stored(place) / size.waits}


async def b8(place: Path, size: Size, url: str) -> Figures:
    agent = holdfast.Agent("log", external=True)
    records = [holdfast.Record("item", {"n": n}) for n in range(size.events)]
    async with _opened(place, url, agent) as runtime:
        session = runtime.session("t", agent=agent, create=True)
        for start in range(0, size.events, 1000):
            await session.record_all(records[start : start + 1000])
        tip = (await session.state()).seq
        chance, seen, after = random.Random(7), list[int](), 0
        started = time.perf_counter()
        while after < tip:
            left = chance.randrange(100, 5000)
            async with runtime.subscribe("t", after=after) as subscription:
                async for event in subscription:
                    seen.append(event.seq)
                    after, left = event.seq, left - 1
                    if not left or after == tip:
                        break
        seconds = time.perf_counter() - started
    repeats = len(seen) - len(set(seen))
    return {
        "events/s": len(seen) / seconds,
        "gaps": tip - len(set(seen)),
        "repeats": repeats,
    }


async def b9(place: Path, size: Size, url: str) -> Figures:
    blob = text(1, size.blob)
    agent = holdfast.Agent("log", external=True)
    async with _opened(place, url, agent) as runtime:
        session = runtime.session("t", agent=agent, create=True)
        for number in range(size.blob_turns):
            await session.record("result", {"turn": number, "found": blob})
        assert (await session.records("result", limit=1))[0].value["found"] == blob
    return {"times its size": stored(place) / size.blob}


async def b10(place: Path, size: Size, url: str) -> Figures:
    program = (
        "import asyncio\n"
        "from pathlib import Path\n"
        "from bench.side_by_side import holdfast_system as system\n"
        f"asyncio.run(system.cut_short(Path({str(place)!r}), {url!r}, {size.unfinished}))\n"
    )
    done = _program(program)
    assert done.returncode == -9, done.stderr
    started = time.perf_counter()
    async with _opened(place, url, TALKS) as runtime:
        taken: set[str] = set()
        while len(taken) < size.unfinished:  # leases of the dead process end in a few seconds
            taken |= set(await runtime.recover())
            await runtime.settled()
        seconds = time.perf_counter() - started
        page = await runtime.sessions(SessionFilter(status="idle"), limit=size.unfinished + 1)
        assert len(page.sessions) == size.unfinished, len(page.sessions)
    return {"seconds": seconds}


async def cut_short(place: Path, url: str, count: int) -> None:
    """Begin turns whose models never answer, then die."""
    asked = 0
    all_asked = asyncio.Event()

    async def silent(request: ModelRequest) -> str:
        nonlocal asked
        asked += 1
        if asked == count:
            all_asked.set()
        await asyncio.Event().wait()
        return ""

    agent = _agent("talks", silent)
    async with _opened(place, url, agent) as runtime:
        sends = [
            asyncio.ensure_future(runtime.session(f"s-{n}", agent=agent, create=True).send("go"))
            for n in range(count)
        ]
        await all_asked.wait()
        die()
        await asyncio.gather(*sends)


def _run(work: Callable[[Path, Size, str], Awaitable[Figures]], url: str) -> Case:
    def case(place: Path, size: Size) -> Figures:
        return asyncio.run(work(place, size, url))  # type: ignore[arg-type]

    return functools.wraps(work)(case)


def cases(url: str = "") -> dict[str, Case]:
    """Return the cases by name, on the folder of the case or on a server."""
    named = {"B1": b1, "B2": b2, "B3": b3, "B4": b4, "B5": b5}
    named |= {"B6": b6, "B7": b7, "B8": b8, "B9": b9, "B10": b10}
    return {name: _run(work, url) for name, work in named.items()}
