"""Whatever the log file of a session holds, readers give true events, or a typed error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fuzzing import corpus, mutated, until_time_is_up
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event
from holdfast.stores.files.lines import seal
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import all_events, drive

INPUTS = corpus("logs")
TOKENS = [
    *(b"\n", b"\0", b"\0" * 600, b"{}\n", b"[]\n", b"null", b'"', b"{", b"1e999", b"NaN", b"\xff"),
    *(b'"after":', b'"seq":1', b'"seq":-1', b'"v":99', b'"epoch":"x"', b'"events":[]', b"[" * 2000),
    seal({"after": 0, "epoch": 1, "events": []}),
    seal({"after": 2**52, "epoch": 1, "events": [{"seq": 1}]}),
]


async def _honest(root: Path) -> tuple[bytes, list[Event]]:
    store = await FilesSessionStore.open(root)
    driver = await drive(store, "s-1")
    for number in range(3):
        await driver.turn(f"message {number} " * 40)
    events = await all_events(store, "s-1")
    await store.close()
    return log_of(root).read_bytes(), events


def log_of(root: Path) -> Path:
    return root / "runs" / "s-1" / "events.jsonl"


def honest() -> tuple[bytes, list[Event]]:
    """Return the log of a session, and the events that it holds."""
    with TemporaryDirectory() as folder:
        return asyncio.run(_honest(Path(folder)))


def check(data: bytes, events: list[Event]) -> None:
    """See that what a damaged log shows is what was stored, or that verify finds it out."""

    async def work(root: Path) -> None:
        store = await FilesSessionStore.open(root)
        try:
            for reverse in (False, True):
                try:
                    shown = await store.read_events("s-1", limit=1000, reverse=reverse)
                except HoldfastError:
                    continue
                shown = shown[::-1] if reverse else shown
                if shown != events[: len(shown)]:
                    assert not (await verify(store, "s-1")).ok
            for verb in (store.load_state, store.session_info, store.acquire):
                try:
                    await verb("s-1")
                except HoldfastError:
                    continue
            await store.list_sessions()
        finally:
            await store.close()

    with TemporaryDirectory() as folder:
        root = Path(folder)
        log_of(root).parent.mkdir(parents=True)
        log_of(root).write_bytes(data)
        asyncio.run(work(root))


@pytest.mark.parametrize("name", INPUTS)
def test_every_log_of_the_corpus_is_read_or_refused(name):
    check(INPUTS[name], [])


def test_an_honest_log_passes_the_same_check():
    data, events = honest()
    check(data, events)
    check(data[:-10], events)


@pytest.mark.soak
def test_mutated_logs_are_read_or_refused():
    data, events = honest()
    inputs = st.sampled_from([data, *INPUTS.values()])

    @given(mutated(inputs, TOKENS))
    def mutation(changed: bytes) -> None:
        check(changed, events)

    until_time_is_up(mutation)
