"""A process that drives the session and is killed at a place given on its command line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import workload

import holdfast
from holdfast.blobs.disk import Disk
from holdfast.models.port import ModelRequest


class KillingDisk(Disk):
    """A disk on which a step on a file whose path holds a text is the last thing that happens."""

    def __init__(self, step: str, part: str) -> None:
        self._step = step
        self._part = part

    def sync(self, path: Path) -> None:
        self._before("sync", path)
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._before("rename", target)
        super().rename(source, target)
        self._before("renamed", target)

    def append(self, path: Path, data: bytes) -> None:
        if self._step == "torn" and self._part in str(path):
            super().append(path, data[: len(data) // 2])
            workload.die()
        super().append(path, data)

    def _before(self, step: str, path: Path) -> None:
        if step == self._step and self._part in str(path):
            workload.die()


async def main(url: str, folder: Path, how: str, *more: str) -> None:
    disk = KillingDisk(more[0], more[1]) if how == "disk" else None
    store: Any = await workload.open_place(url, disk)
    at, when = (int(more[0]), more[1]) if how == "write" else (0, "")
    store = workload.KillingStore(store, at, when, folder / "acknowledged")
    waiting = 0

    async def before_answer(request: ModelRequest) -> None:
        """Die in the middle of a call; of a fan-out some are answered, some asked, some not yet."""
        nonlocal waiting
        if how != "call" or request.purpose != more[0]:
            return
        if request.purpose == "leaf" and request.ordinal in (1, 2):
            waiting += 1
            if waiting < 2:
                await asyncio.Event().wait()
            async with store.subscribe(workload.SESSION) as items:
                async for _ in items:
                    if (await store.load_state(workload.SESSION)).counters.get("leaf", 0) >= 2:
                        workload.die()
        if request.purpose == "step" and request.ordinal == int(more[1]):
            workload.die()

    provider = workload.model(workload.Ledger(folder / "ledger"), before_answer)
    async with await holdfast.open(store, model=provider) as runtime:
        for result in await workload.work(runtime, folder):
            print(result.status, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
