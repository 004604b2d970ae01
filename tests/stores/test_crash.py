"""A kill or a power cut at any write point loses nothing acknowledged and leaves no half batch."""

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from workload import check_left, expected, open_plain

from holdfast.testing.faults import after_power_cut

PROGRAM = str(Path(__file__).with_name("workload.py"))
STORES = ["sqlite", "files"]


def run(*arguments):
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module", params=STORES)
def recorded(request, tmp_path_factory):
    """Return one run's storage steps, written down in a process that is gone since."""
    folder = tmp_path_factory.mktemp("recorded")
    done = run(request.param, folder / "store", "journal", folder / "steps")
    assert done.returncode == 0, done.stderr.decode()
    return request.param, folder / "store", pickle.loads((folder / "steps").read_bytes())


async def cut_power(recorded, tmp_path, stride, variants):
    kind, root, steps = recorded
    log, ends = await expected()
    for number in range(0, len(steps) + 1, stride):
        for variant in range(variants):
            image = tmp_path / f"{number}-{variant}"
            told = after_power_cut(steps[:number], root, image, Random(number * 1000 + variant))
            try:
                store = await open_plain(kind, image)
                await check_left(store, [json.loads(text) for text in told], log, ends)
            except BaseException as error:
                error.add_note(f"cut after step {number} of {len(steps)}, variant {variant}")
                raise
            await store.close()


async def test_a_power_cut_at_any_point_leaves_whole_batches_and_all_that_was_told(
    recorded, tmp_path
):
    await cut_power(recorded, tmp_path, stride=max(1, len(recorded[2]) // 50), variants=1)


@pytest.mark.soak
async def test_a_power_cut_in_many_ways_at_every_point(recorded, tmp_path):
    await cut_power(recorded, tmp_path, stride=1, variants=20)


async def kill(recorded, tmp_path, numbers):
    kind = recorded[0]
    log, ends = await expected()
    for number, when in numbers:
        path = tmp_path / f"{number}-{when}"
        done = run(kind, path, "kill", number, when)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode == 0:
            return number
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        store = await open_plain(kind, path)
        try:
            await check_left(store, told, log, ends)
        except BaseException as error:
            error.add_note(f"killed {when} step {number}")
            raise
        await store.close()
    return 0


async def test_a_killed_process_leaves_whole_batches_and_all_that_was_told(recorded, tmp_path):
    steps = len([step for step in recorded[2] if step.kind != "acknowledge"])
    chosen = [(n, ("before", "after")[n % 2]) for n in range(1, steps, max(1, steps // 5))]
    await kill(recorded, tmp_path, chosen)


@pytest.mark.soak
async def test_a_process_killed_at_every_step(recorded, tmp_path):
    every = ((n, when) for n in range(1, 10_000) for when in ("before", "after"))
    assert await kill(recorded, tmp_path, every) > 50
