"""Answers while the owner of a session is paused, killed or ended by a tool of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import AnswerStale
from holdfast.runtime import answers
from holdfast.stores.port import SessionStore
from holdfast.stores.verify import verify

from .children import owner
from .children.owner import SESSION
from .test_kill import workload

PROGRAM = str(Path(owner.__file__))


class House:
    """A store on disk, and a process that owns its session."""

    def __init__(self, url: str, folder: Path, store: SessionStore, process: Any) -> None:
        self.url, self.folder, self.store, self.process = url, folder, store, process

    async def begun(self) -> None:
        """Wait until the owner has a call that waits, and a tool that runs."""
        async with asyncio.timeout(30):
            while not (self.folder / "begun").exists():  # noqa: ASYNC110 - another process says so
                await asyncio.sleep(0.01)

    async def waiting(self) -> str:
        (wait,) = (await self.store.pending()).waits
        return wait.call_id

    async def value(self) -> Any:
        (put,) = await self.store.read_events(SESSION, types=["turn.put"])
        assert (await verify(self.store, SESSION)).ok
        return put.fact().final.value()  # type: ignore[attr-defined]

    async def resumed(self) -> None:
        (self.folder / "go").touch()
        async with holdfast.open(self.store, agents=[owner.agent(self.folder)]) as runtime:
            await runtime.resume(SESSION)


async def house(folder: Path, *wishes: str, kind: str = "sqlite") -> House:
    url = f"{kind}:{folder / 'store'}"
    store = await workload.open_place(url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, url, str(folder), *wishes)
    )
    return House(url, folder, store, process)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("files", marks=pytest.mark.soak)])
async def test_an_answer_while_the_owner_is_paused_is_kept_and_the_owner_goes_on_with_it(
    tmp_path: Path, kind: str
) -> None:
    home = await house(tmp_path, "hold", "which", kind=kind)
    await home.begun()
    home.process.send_signal(signal.SIGSTOP)
    await answers.answer(home.store, SESSION, await home.waiting(), "left")
    with pytest.raises(AnswerStale):
        await answers.answer(home.store, SESSION, await home.waiting(), "right")
    home.process.send_signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    assert await home.process.wait() == 0
    assert await home.value() == "held left"
    await home.store.close()


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.soak)])
async def test_an_answer_while_the_owner_is_being_killed_is_never_lost(
    tmp_path: Path, rounds: int
) -> None:
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        home = await house(folder, "hold", "which")
        await home.begun()
        call_id = await home.waiting()
        answering = asyncio.ensure_future(answers.answer(home.store, SESSION, call_id, "left"))
        if number % 3:
            await asyncio.sleep(0.001 * number)  # another place of the answer each time
        home.process.kill()
        await home.process.wait()
        await answering
        await home.resumed()
        assert await home.value() == "held left"
        await home.store.close()


async def test_a_tool_that_ends_its_process_is_unknown_and_never_runs_again(tmp_path: Path) -> None:
    home = await house(tmp_path, "leave", "which")
    assert await home.process.wait() == 3
    await answers.answer(home.store, SESSION, await home.waiting(), "left")
    await home.resumed()
    assert "whether it took effect is unknown left" in await home.value()
    assert (tmp_path / "effects").read_text() == "left\n"
    await home.store.close()
