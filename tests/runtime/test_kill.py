"""A process that is killed at any moment loses nothing that was stored and pays nothing twice.

Children are real processes, killed by SIGKILL at a chosen durable write, in the middle of a call
or while bytes go to the disk; the session is then taken up in another process: here.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.facts import LeafCalled, TurnPut
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionStore
from holdfast.stores.verify import verify
from holdfast.views.values import hydrate

from .children import workload
from .children.workload import FINALS, SESSION, Ledger

CHILD = Path(__file__).parent / "children" / "drive.py"
DURABLE = ("sqlite", "files")
AT_ONCE = 2


@dataclass(frozen=True)
class Scene:
    """A store in a folder of its own, with what its processes left behind."""

    kind: str
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.kind}:{self.folder / 'store'}"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger")

    async def child(self, *how: str) -> int:
        """Run a child to its end and return its exit code."""
        self.folder.mkdir(exist_ok=True, parents=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            self.url,
            str(self.folder),
            *how,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
        return process.returncode

    async def killed(self, *how: str) -> None:
        assert await self.child(*how) == -signal.SIGKILL, f"the child outlived {how}"

    def acknowledged(self) -> list[tuple[int, str]]:
        path = self.folder / "acknowledged"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(seq), digest) for seq, digest in map(str.split, lines)]


async def paid_for(store: SessionStore) -> set[str]:
    """Return the questions whose answers the log holds, as the ledger names them."""
    state = await store.load_state(SESSION)
    questions = {f"step {ordinal}" for ordinal in range(state.counters.get("answered", 0))}
    for event in await store.read_events(SESSION, types=[LeafCalled.TYPE]):
        fact = event.fact()
        assert isinstance(fact, LeafCalled)
        assert fact.request is not None
        asked: Any = (await hydrate(store, SESSION, fact.request)).value()
        questions.add(f"leaf {asked['prompt']}")
    return questions


async def exists(store: SessionStore) -> bool:
    return bool((await store.list_sessions()).sessions)


async def finals(store: SessionStore) -> list[Any]:
    """Return the final values of the turns as the log has them."""
    found = []
    for event in await store.read_events(SESSION, types=[TurnPut.TYPE]):
        fact = event.fact()
        assert isinstance(fact, TurnPut)
        if fact.status == "final":
            assert fact.final is not None
            found.append((await hydrate(store, SESSION, fact.final)).value())
    return found


async def check_nothing_lost(scene: Scene, store: SessionStore) -> None:
    digests = {e.seq: e.digest for e in await store.read_events(SESSION)}
    for seq, digest in scene.acknowledged():
        assert digests.get(seq) == digest, f"event {seq} was acknowledged and is not there"


async def goes_on(scene: Scene) -> None:
    """Take the session up here and check that it comes to its end as if nothing had happened."""
    store = await workload.open_place(scene.url)
    try:
        stored = set[str]()
        if await exists(store):
            await check_nothing_lost(scene, store)
            assert (await verify(store, SESSION)).ok
            stored = await paid_for(store)
        asked = scene.ledger.asked()
        async with await holdfast.open(store, model=workload.model(scene.ledger)) as runtime:
            await workload.work(runtime, scene.folder)
        again = {q for q in stored if scene.ledger.asked()[q] > asked[q]}
        assert not again, f"paid twice: {again}"
        assert await finals(store) == list(FINALS)
        assert (await store.load_state(SESSION)).status == "idle"
        await check_nothing_lost(scene, store)
        report = await verify(store, SESSION)
        assert report.ok, report.problems
    finally:
        await store.close()


async def count_writes() -> int:
    """Return how many durable writes the session takes when nothing happens."""
    folder = Path(__file__).parent
    counted = workload.StoreAround(MemorySessionStore())

    async def around(verb: str, write: Any, arguments: Any, options: Any) -> Any:
        counted.writes += 1
        return await write(*arguments, **options)

    counted.around = around  # type: ignore[method-assign]
    quiet = workload.model(Ledger(Path("/dev/null")))
    async with await holdfast.open(counted, model=quiet) as runtime:  # type: ignore[arg-type]
        results = await workload.work(runtime, folder)
    assert [result.status for result in results] == ["final", "final"]
    assert [result.value for result in results] == list(FINALS)  # type: ignore[attr-defined]
    return counted.writes


async def kill_and_go_on(scenes: list[tuple[Scene, tuple[str, ...]]]) -> None:
    """Kill a child per scene, some at once, and go on with each."""
    gate = asyncio.Semaphore(AT_ONCE)
    problems: list[str] = []

    async def one(scene: Scene, how: tuple[str, ...]) -> None:
        async with gate:
            try:
                await scene.killed(*how)
                await goes_on(scene)
            except Exception as error:
                problems.append(f"{' '.join(how)}: {type(error).__name__}: {error}")

    await asyncio.gather(*(one(scene, how) for scene, how in scenes))
    assert not problems, "\n".join(problems)


def every(kind: str, when: str) -> Any:
    return pytest.param(kind, when, 1, 1, marks=pytest.mark.soak, id=f"{kind}-{when}-every")


@pytest.mark.parametrize(
    ("kind", "when", "first", "stride"),
    [
        ("sqlite", "after", 1, 3),
        ("files", "before", 3, 6),
        every("sqlite", "after"),
        every("sqlite", "before"),
        every("files", "after"),
        every("files", "before"),
    ],
)
async def test_killed_at_a_durable_write_it_comes_to_the_same_end(
    tmp_path: Path, kind: str, when: str, first: int, stride: int
) -> None:
    writes = await count_writes()
    assert writes > 15
    await kill_and_go_on(
        [
            (Scene(kind, tmp_path / str(at)), ("write", str(at), when))
            for at in range(first, writes + 1, stride)
        ]
    )


@pytest.mark.parametrize("kind", DURABLE)
async def test_killed_while_a_model_is_asked_it_asks_again_once(tmp_path: Path, kind: str) -> None:
    scenes = [Scene(kind, tmp_path / name) for name in ("first", "later")]
    await kill_and_go_on([(scenes[0], ("call", "step", "0")), (scenes[1], ("call", "step", "3"))])
    assert scenes[0].ledger.asked()["step 0"] == 2
    assert scenes[1].ledger.asked()["step 3"] == 2
    assert scenes[1].ledger.asked()["step 0"] == 1
    for scene in scenes:
        store = await workload.open_place(scene.url)
        assert (await store.load_state(SESSION)).spend.unknown_usd == 1  # the call that was lost
        await store.close()


@pytest.mark.parametrize("kind", DURABLE)
async def test_killed_in_the_middle_of_a_fan_out_it_asks_only_for_what_is_missing(
    tmp_path: Path, kind: str
) -> None:
    scene = Scene(kind, tmp_path / "fan")
    await kill_and_go_on([(scene, ("call", "leaf"))])
    asked = scene.ledger.asked()
    leaves = sorted(count for question, count in asked.items() if question.startswith("leaf note"))
    assert leaves == [1, 1, 2, 2]
    store = await workload.open_place(scene.url)
    state = await store.load_state(SESSION)
    await store.close()
    assert state.spend.unknown_usd == 2  # those that were asked and not heard
    assert state.reserved == {}


@pytest.mark.parametrize(
    ("kind", "step", "part"),
    [
        ("sqlite", "sync", "blobs"),
        ("sqlite", "rename", "blobs"),
        ("sqlite", "renamed", "blobs"),
        ("files", "sync", "payloads"),
        ("files", "renamed", "payloads"),
        ("files", "torn", "events.jsonl"),
    ],
)
async def test_killed_while_a_checkpoint_goes_to_the_disk(
    tmp_path: Path, kind: str, step: str, part: str
) -> None:
    await kill_and_go_on([(Scene(kind, tmp_path / "disk"), ("disk", step, part))])


@pytest.mark.parametrize(
    ("kind", "writes"), [("sqlite", 7), pytest.param("files", 8, marks=pytest.mark.soak)]
)
async def test_killed_again_and_again_during_recovery_it_gets_there(
    tmp_path: Path, kind: str, writes: int
) -> None:
    """Every life makes a few writes: creation, revival, calls announced, one or two outcomes."""
    scene = Scene(kind, tmp_path / "lives")
    lives = 0
    while await scene.child("write", str(writes), "after"):
        lives += 1
        assert lives < 40
    assert lives >= 4
    await goes_on(scene)


@pytest.mark.parametrize(
    "how",
    [pytest.param(("call", "step", "1"), marks=pytest.mark.soak), ("call", "leaf")],
    ids=["a reply that kills", "a cell that kills"],
)
async def test_what_kills_its_process_every_time_is_stopped_until_it_is_forced(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    scene = Scene("sqlite", tmp_path / "poison")
    for _ in range(3):  # the first life and two revivals
        await scene.killed(*how)
    asked = scene.ledger.asked().total()
    assert await scene.child(*how) == 0, "the third revival in a row must not be tried"
    assert scene.ledger.asked().total() == asked

    store = await workload.open_place(scene.url)
    async with await holdfast.open(store, model=workload.model(scene.ledger)) as runtime:
        refused = await runtime.resume(SESSION)
        assert isinstance(refused, holdfast.Failed)
        assert refused.code == "revival_limit"
        assert "force" in refused.error
        # Lost calls are settled as unknown; nobody takes the turn to have been free.
        assert (await runtime.state(SESSION)).spend.unknown_usd >= 2
        assert refused.unknown_calls >= 1
        forced = await runtime.resume(SESSION, force=True)
        assert isinstance(forced, holdfast.Final)
        assert forced.value == FINALS[0]
        assert (await verify(store, SESSION)).ok
    await store.close()
