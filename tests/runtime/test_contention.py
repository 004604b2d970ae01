"""Several processes and one session: one drives it, the others are told, queued or obeyed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import LeaseHeld
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.database import MemoryDatabase
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import Appended, InboxItem, SessionStore
from holdfast.stores.verify import verify

from .children.talk import provider
from .conftest import cell
from .test_kill import workload

CHILD = Path(__file__).parent / "children" / "talk.py"
DURABLE = ("sqlite", "files")


@dataclass
class Speaker:
    """A child that talks to the session."""

    process: asyncio.subprocess.Process

    async def says(self) -> dict[str, Any]:
        """Return the next thing that the child tells."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the child ended without a word"
        return dict(json.loads(line))

    async def ends(self) -> int:
        return await self.process.wait()


class Table:
    """A session in a durable store, and the processes around it."""

    def __init__(self, kind: str, folder: Path, store: SessionStore) -> None:
        self.url = f"{kind}:{folder / 'store'}"
        self.folder = folder
        self.store = store
        self.session = ""
        self.children: list[asyncio.subprocess.Process] = []

    async def speaker(self, *words: str) -> Speaker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            self.url,
            str(self.folder),
            self.session,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.children.append(process)
        return Speaker(process)

    def go(self) -> None:
        (self.folder / "go").touch()

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[holdfast.Runtime]:
        """Open a runtime of this process on the same store."""
        async with await holdfast.open(self.store, model=provider(self.folder)) as runtime:
            yield runtime

    async def until(self, kind: str) -> None:
        """Wait until the session's log holds an event of a kind."""
        async with self.store.subscribe(self.session) as items:
            async for item in items:
                if getattr(item, "type", "") == kind:
                    return

    async def turns(self) -> list[str]:
        async with self.runtime() as runtime:
            return [turn.status for turn in await runtime.turns(self.session)]


@asynccontextmanager
async def laid(kind: str, folder: Path) -> AsyncIterator[Table]:
    store = await workload.open_place(f"{kind}:{folder / 'store'}")
    table = Table(kind, folder, store)
    try:
        async with table.runtime() as runtime:
            table.session = (await runtime.start()).id
        yield table
        assert (await verify(store, table.session)).ok
    finally:
        for child in table.children:
            if child.returncode is None:
                child.kill()
                await child.wait()
        await store.close()


@pytest.mark.parametrize("kind", DURABLE)
async def test_one_process_works_and_the_others_are_told_who_or_queued(
    tmp_path: Path, kind: str
) -> None:
    async with laid(kind, tmp_path) as table:
        first = await table.speaker("send", "wait for me")
        assert "wait for me" in (await first.says())["asked"]
        second = await table.speaker("send", "plain second")
        refusal = await second.says()
        assert refusal["error"] == "lease_held"
        assert f"process {first.process.pid} " in refusal["message"]
        third = await table.speaker("send", "plain third", "--queue")
        assert (await third.says())["status"] == "queued"
        assert await third.ends() == 0
        table.go()
        assert await first.says() == {"status": "final", "value": "waited"}
        assert "plain third" in (await first.says())["asked"]
        assert await first.ends() == 0
        assert await table.turns() == ["final", "final"]
        assert await table.store.list_inbox(table.session) == []


@pytest.mark.parametrize("kind", DURABLE)
async def test_a_killed_holder_is_followed_at_once(tmp_path: Path, kind: str) -> None:
    async with laid(kind, tmp_path) as table:
        first = await table.speaker("send", "wait for me")
        await first.says()
        first.process.kill()
        await first.ends()
        table.go()
        async with table.runtime() as runtime:
            result = await runtime.send(table.session, "plain words")
            assert isinstance(result, holdfast.Final)
            assert result.value == "plain"
        assert await table.turns() == ["final", "final"]


@pytest.mark.parametrize("kind", DURABLE)
@pytest.mark.parametrize(
    ("message", "begun"),
    [("wait for ever", "step.started"), ("burn the cpu", "step.put")],
    ids=["in a model call", "in a cell"],
)
async def test_stop_from_another_process_settles_what_is_under_way(
    tmp_path: Path, kind: str, message: str, begun: str
) -> None:
    async with laid(kind, tmp_path) as table:
        first = await table.speaker("send", message)
        await first.says()
        await table.until(begun)
        async with table.runtime() as runtime:
            assert await runtime.stop(table.session) is None  # its driver settles it
            assert (await first.says())["status"] == "stopped"
            assert await first.ends() == 0
            assert (await runtime.state(table.session)).status == "stopped"
            after = await runtime.send(table.session, "plain words")
            assert isinstance(after, holdfast.Stopped)
            again = await runtime.stop(table.session)
            assert isinstance(again, holdfast.Stopped)
        assert await table.turns() == ["stopped"]


async def test_a_stop_whose_driver_was_killed_is_settled_by_whoever_comes_next(
    tmp_path: Path,
) -> None:
    async with laid("sqlite", tmp_path) as table:
        first = await table.speaker("send", "wait for ever")
        await first.says()
        first.process.send_signal(signal.SIGSTOP)
        async with table.runtime() as runtime:
            assert await runtime.stop(table.session) is None
            first.process.kill()
            await first.ends()
            result = await runtime.resume(table.session)
            assert isinstance(result, holdfast.Stopped)
        assert await table.turns() == ["stopped"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("message", "begun", "value"),
    [("wait a moment", "step.started", "waited"), ("spin a while", "leaf.called", "spun")],
    ids=["in a model call", "in a cell"],
)
async def test_a_signal_breaks_off_cleanly_and_resume_goes_on(
    tmp_path: Path, how: signal.Signals, message: str, begun: str, value: str
) -> None:
    async with laid("sqlite", tmp_path) as table:
        first = await table.speaker("send", message)
        await first.says()
        await table.until(begun)
        first.process.send_signal(how)
        assert await first.ends() != 0
        assert await table.turns() == ["interrupted"]
        table.go()
        async with table.runtime() as runtime:
            result = await runtime.resume(table.session)
            assert isinstance(result, holdfast.Final)
            assert result.value == value
        assert await table.turns() == ["final"]


async def test_ctrl_c_in_the_blocking_face_is_recorded_too(tmp_path: Path) -> None:
    async with laid("sqlite", tmp_path) as table:
        first = await table.speaker("send", "wait a moment", "--sync")
        await first.says()
        first.process.send_signal(signal.SIGINT)
        assert await first.ends() != 0
        assert await table.turns() == ["interrupted"]


async def test_a_second_send_in_the_same_runtime_is_busy_from_the_first_moment(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(lambda request: cell("FINAL(1)"))
    async with await holdfast.open(f"sqlite:{tmp_path / 'store'}", model=model) as runtime:
        session = await runtime.start()
        results = await asyncio.gather(
            *(session.send(str(number)) for number in range(4)), return_exceptions=True
        )
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["Final", "SessionBusy", "SessionBusy", "SessionBusy"]


class LateInbox:
    """A store whose inbox is written only after the lease that was in the way is free."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner
        self.waiting = asyncio.Event()
        self.free = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def put_inbox(self, *arguments: Any) -> Any:
        self.waiting.set()
        await self.free.wait()
        return await self.inner.put_inbox(*arguments)


async def test_a_message_queued_just_as_its_driver_lets_go_is_worked_by_its_sender() -> None:
    database = MemoryDatabase()
    late: Any = LateInbox(MemorySessionStore(database))

    async def respond(request: ModelRequest) -> str:
        if request.prompt == "first":
            await late.waiting.wait()
        return cell(f"FINAL({request.prompt!r})")

    async with (
        await holdfast.open(MemorySessionStore(database), model=ScriptedModel(respond)) as left,
        await holdfast.open(late, model=ScriptedModel(respond)) as right,
    ):
        session = await left.start()
        first = asyncio.ensure_future(session.send("first"))
        async with left.subscribe(session.id) as items:
            async for item in items:
                if getattr(item, "type", "") == "step.started":
                    break
        second = asyncio.ensure_future(right.send(session.id, "second", when_busy="queue"))
        assert isinstance(await first, holdfast.Final)
        await left.settled()
        late.free.set()
        result = await second
        assert isinstance(result, holdfast.Final)
        assert result.value == "second"
        assert await late.list_inbox(session.id) == []


class LateReturn(MemorySessionStore):
    """A store in which something happens while the batch that gave the lease back returns."""

    def __init__(self, happening: Callable[[LateReturn], Awaitable[None]]) -> None:
        super().__init__()
        self.happening = happening
        self.stop_seen = asyncio.Event()

    async def append(self, *arguments: Any, **options: Any) -> Appended:
        done = await super().append(*arguments, **options)
        if done.inbox is not None and not done.inbox:
            await self.happening(self)
        return done

    async def list_inbox(self, *arguments: Any, **options: Any) -> list[InboxItem]:
        items = await super().list_inbox(*arguments, **options)
        if any(item.kind == "stop" for item in items):
            self.stop_seen.set()
        return items


async def test_a_message_queued_here_just_as_the_lease_goes_back_is_worked() -> None:
    async def queue(store: LateReturn) -> None:
        if not (await store.list_inbox(session.id, pending=False)):
            assert isinstance(await session.send("second", when_busy="queue"), holdfast.Queued)

    respond = ScriptedModel(lambda request: cell(f"FINAL({request.prompt!r})"))
    store = LateReturn(queue)
    async with await holdfast.open(store, model=respond) as runtime:
        session = await runtime.start()
        first = await session.send("first")
        assert isinstance(first, holdfast.Final)
        assert first.value == "first"
        await runtime.settled()
        state = await session.state()
        assert (state.counters["turn"], state.status) == (2, "idle")
        assert await store.list_inbox(session.id) == []


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen by its driver"])
async def test_a_stop_asked_for_just_as_the_lease_goes_back_is_settled(seen: bool) -> None:
    async def stop(store: LateReturn) -> None:
        assert await session.stop() is None
        if seen:
            await store.stop_seen.wait()
            # The driver is told; its turn is over all the same.
            for _ in range(20):
                await asyncio.sleep(0)

    store = LateReturn(stop)
    model = ScriptedModel(lambda request: cell("FINAL(1)"))
    async with await holdfast.open(store, model=model) as runtime:
        session = await runtime.start()
        result = await session.send("go")
        assert isinstance(result, holdfast.Final)
        assert result.value == 1
        await runtime.settled()
        assert (await session.state()).status == "stopped"
        assert (await verify(store, session.id)).ok


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_messages_sent_by_two_runtimes_at_once_are_each_worked_exactly_once(
    tmp_path: Path, kind: str
) -> None:
    """Nobody has to come by later: whoever lets go last takes up what was queued."""
    database = MemoryDatabase()
    stores: list[Any] = [
        MemorySessionStore(database)
        if kind == "memory"
        else await workload.open_place(f"sqlite:{tmp_path / 'store'}")
        for _ in range(2)
    ]
    asked: list[str] = []

    def respond(request: ModelRequest) -> str:
        asked.append(request.prompt)
        return "FINAL comes later" if len(asked) % 5 == 0 else cell("FINAL(1)")

    async with (
        await holdfast.open(stores[0], model=ScriptedModel(respond)) as left,
        await holdfast.open(stores[1], model=ScriptedModel(respond)) as right,
    ):
        session = await left.start()
        messages = [f"message {number}" for number in range(16)]
        for at in range(0, len(messages), 4):
            await asyncio.gather(
                *(
                    (left if number % 2 else right).send(
                        session.id, messages[number], when_busy="queue"
                    )
                    for number in range(at, at + 4)
                )
            )
        for _ in range(3):
            await asyncio.gather(left.settled(), right.settled())
        assert await stores[0].list_inbox(session.id) == []
        turns = await left.turns(session.id)
        assert [turn.status for turn in turns] == ["final"] * len(messages)
        texts = [m.message.text for m in await left.messages(session.id, limit=1000)]
        assert sorted(text for text in texts if text in messages) == sorted(messages)
        report = await verify(stores[0], session.id)
        assert report.ok
    for store in stores:
        await store.close()


async def test_a_runtime_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    database = MemoryDatabase(clock=lambda: now)
    now = 0.0
    slow, quick = MemorySessionStore(database), MemorySessionStore(database)
    asked, go = asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return cell("FINAL('slow')")

    async with (
        await holdfast.open(slow, model=ScriptedModel(respond)) as left,
        await holdfast.open(
            quick, model=ScriptedModel(lambda request: cell("FINAL('quick')"))
        ) as right,
    ):
        session = await left.start()
        sending = asyncio.ensure_future(session.send("x"))
        await asked.wait()
        with pytest.raises(LeaseHeld):
            await right.send(session.id, "y")
        now = 1000.0  # the holder was suspended for longer than its lease
        result = await right.resume(session.id)
        assert isinstance(result, holdfast.Final)
        assert result.value == "quick"
        stood = await quick.load_state(session.id)
        go.set()
        with pytest.raises(holdfast.HoldfastError, match="lease"):
            await sending
        assert await quick.load_state(session.id) == stood
