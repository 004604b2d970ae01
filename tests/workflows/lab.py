"""A place to run workflows for real: stores that outlive their runtimes, and a witness outside."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import holdfast
from holdfast.core.errors import AnswerStale, CallNotFound
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.tools import CallContext, tool
from holdfast.stores.choose import open_store
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.faults import ProcessKilled
from holdfast.workflows.reading import read_text
from holdfast.workflows.registry import registry
from holdfast.workflows.runs import Runs

RUN = "r-1"


class Transient(Exception):
    """A failure that may pass."""

    code = "tool_transient"


class Witness:
    """Counts what was done, whoever did it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.by_call: Counter[str] = Counter()

    def tools(self) -> list[Any]:
        @tool(effect="idempotent")
        def work(what: str, context: CallContext) -> dict[str, str]:
            """Do some work."""
            self.done[what] += 1
            self.by_call[context.call_id] += 1
            return {"did": what}

        @tool(effect="once")
        def pay(what: str, context: CallContext) -> dict[str, str]:
            """Do what must not be done twice."""
            self.done[what] += 1
            self.by_call[context.call_id] += 1
            return {"paid": what}

        return [work, pay]

    def functions(self) -> dict[str, Any]:
        def flaky() -> int:
            self.done["flaky"] += 1
            if self.done["flaky"] < 3:
                raise Transient
            return 3

        def broken() -> None:
            raise ValueError("never")

        return {"flaky": flaky, "broken": broken}

    def __call__(self, request: ModelRequest) -> str:
        task = request.first_user_text.split("\n")[0]
        self.asked[task] += 1
        return f"said {task}"


class Lab:
    """One store, and processes that come and go."""

    def __init__(self, place: str | MemorySessionStore) -> None:
        self.place = place
        self.witness = Witness()

    async def store(self) -> Any:
        if isinstance(self.place, MemorySessionStore):
            return MemorySessionStore(self.place.database)
        return await open_store(self.place)

    async def process(self, after: int | None = None, model: Any = None, **given: Any) -> Process:
        """Begin a process; it ends before its append number `after`, if that is given."""
        store = await self.store()
        process = Process(self, store, after)
        answers = ScriptedModel(model or self.witness, name="scripted")
        agents = given.pop("agents", None) or [
            holdfast.Agent(name, harness="tools") for name in ("writer", "critic", "default")
        ]
        process.runtime = await holdfast.open(store, model=answers, agents=agents)
        options = {
            "tools": self.witness.tools(),
            "functions": self.witness.functions(),
            **given,
        }
        process.runs = Runs(process.runtime, registry(**options))
        return process


class Process:
    """A runtime with its runs, which may be killed."""

    runtime: holdfast.Runtime
    runs: Runs

    def __init__(self, lab: Lab, store: Any, after: int | None) -> None:
        self.lab = lab
        self.store = store
        self.appends = 0
        self.killed = asyncio.Event()
        self._others = asyncio.all_tasks()
        append = store.append

        async def counted(*arguments: Any, **options: Any) -> Any:
            if self.killed.is_set() or (after is not None and self.appends >= after):
                self.killed.set()
                raise ProcessKilled
            self.appends += 1
            return await append(*arguments, **options)

        store.append = counted

    async def end(self) -> None:
        """End the process, as if it had been killed: its leases are those of a dead owner."""
        database = getattr(self.store, "database", None)
        if database is not None:
            database.owners.pop(self.store.owner, None)
        if self.killed.is_set():
            mine = asyncio.all_tasks() - self._others - {asyncio.current_task()}
            for task in mine:
                task.cancel()
            if mine:
                await asyncio.wait(mine, timeout=1)
        else:
            await self.runtime.close()
        await self.store.close()

    async def until_killed(self, work: Any) -> Any:
        """Do some work; raise as soon as the process was killed, whoever noticed it."""
        task, over = asyncio.ensure_future(work), asyncio.ensure_future(self.killed.wait())
        await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if self.killed.is_set():
            raise ProcessKilled
        return await task


async def until_over(process: Process, answers: dict[str, Any], result: Any = None) -> Any:
    """Drive a run until it settles, answering what people are asked."""
    result = result or await process.runs.drive(RUN)
    for _ in range(20):
        if result.status != "paused":
            return result
        await process.runtime.tick()
        for asked in await process.runs.interactions(RUN):
            said = answers.get(asked.node)
            if asked.open and said is not None:
                try:
                    await process.runs.answer(RUN, asked.id, said)
                except (AnswerStale, CallNotFound):
                    continue
        await process.runtime.settled()
        await asyncio.sleep(0.03 if "expired" in answers.values() else 0)
        result = await process.runs.drive(RUN)
    return result


async def run_once(
    lab: Lab, text: str, after: int | None, answers: dict[str, Any], **given: Any
) -> tuple[bool, Any, int]:
    """Run a workflow in one process; tell whether it was killed, its result, and its appends."""
    process = await lab.process(after, **given)
    flow, problems = read_text(text, "w.yaml")
    assert problems == [], "\n".join(map(str, problems))
    result, killed = None, False
    try:
        await process.runs.create(flow, run_id=RUN)
        result = await process.until_killed(until_over(process, answers))
    except BaseException as error:
        if not isinstance(error, ProcessKilled):
            raise
        killed = True
    finally:
        appends = process.appends
        await process.end()
    return killed, result, appends


async def finished_by_another(lab: Lab, text: str, answers: dict[str, Any], **given: Any) -> Any:
    """Take the run up in another process, and drive it to its end."""
    process = await lab.process(**given)
    flow, _ = read_text(text, "w.yaml")
    try:
        await process.runs.create(flow, run_id=RUN)
        return await until_over(process, answers)
    finally:
        await process.end()
