"""Whatever an export file holds, its import stores what verifies, or refuses with a typed error."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fuzzing import corpus, mutated, until_time_is_up
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError
from holdfast.stores.export_reader import zstd
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive

INPUTS = corpus("exports")
TOKENS = [
    *(b"\n", b"{}", b"[]", b"null", b'"', b"{", b"}", b"1e999", b"-1", b"NaN", b"\xff"),
    *(b'{"session":"s-1"}\n', b'{"session":"../x"}\n', b'"seq":1', b'"seq":"1"', b'"v":2'),
    *(b'"$ref"', b'"$v"', b'"$erased"', b'"data"', b'"payload"', b'"event"', b'"end"'),
    *(b'"sha256:' + b"0" * 64, b"[" * 3000),
]


def sealed(lines: bytes) -> bytes:
    """Return lines with the closing digest that belongs to them."""
    body = b"".join(line for line in lines.splitlines(True) if not line.startswith(b'{"end"'))
    if not body.endswith(b"\n"):
        body += b"\n"
    return body + b'{"end":"sha256:%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def check(data: bytes) -> None:
    """Import a file, given as it is unpacked, and see that the store holds all of it or nothing."""

    async def work(path: Path) -> None:
        store = MemorySessionStore()
        try:
            outcomes = await import_sessions(store, path)
        except HoldfastError as error:
            # Where one session of several fails on the way, the error names those before it.
            stored = error.details.get("stored", [])
        else:
            stored = [outcome.session for outcome in outcomes]
        there = [info.id for info in (await store.list_sessions()).sessions]
        assert sorted(there) == sorted(stored)
        for session in stored:
            assert (await verify(store, session)).ok
        await store.close()

    with TemporaryDirectory() as folder:
        path = Path(folder) / "export"
        path.write_bytes(zstd.compress(data))
        asyncio.run(work(path))


@pytest.mark.parametrize("name", INPUTS)
def test_every_file_of_the_corpus_is_stored_or_refused(name):
    check(INPUTS[name])
    check(sealed(INPUTS[name]))


def honest() -> bytes:
    """Return the lines of an export of two sessions."""

    async def work(path: Path) -> None:
        store = MemorySessionStore()
        for name in ("s-1", "s-2"):
            driver = await drive(store, name)
            await driver.turn("hello " * 200)
            await driver.turn("and again")
        await export_sessions(store, ["s-1", "s-2"], path)
        await store.close()

    with TemporaryDirectory() as folder:
        path = Path(folder) / "export"
        asyncio.run(work(path))
        return bytes(zstd.decompress(path.read_bytes()))


def test_an_honest_export_passes_the_same_check():
    data = honest()
    assert sealed(data) == data
    assert json.loads(data.splitlines()[0])["format"] == "holdfast.export"
    check(data)


@pytest.mark.soak
def test_mutated_exports_are_stored_or_refused():
    inputs = st.sampled_from([honest(), *INPUTS.values()])

    @given(mutated(inputs, TOKENS), st.booleans())
    def mutation(data: bytes, seal: bool) -> None:
        check(sealed(data) if seal else data)

    until_time_is_up(mutation)
