"""A machine that has nothing left for a worker: refused before the model is asked and paid."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from holdfast.core.errors import WorkerRefused

from .conftest import Lab, cell, replies


@contextlib.contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Leave this process so many descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, before[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - left :]:
            os.close(descriptor)
        del taken[len(taken) - left :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_too_few_descriptors_are_refused_before_a_step_is_made(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(2)")))
    session = await runtime.start()
    with few_descriptors(6), pytest.raises(WorkerRefused, match="open files"):
        await session.send("go")
    assert lab.requests == []
    assert "step.started" not in await lab.types(session.id)
    assert (await session.send("go")).value == 2
