"""The reader of plain data takes streams that a hostile worker wrote, and stays small."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core import payloads, values
from holdfast.core.errors import Corruption
from holdfast.kernels import manifest as manifests
from holdfast.kernels import plain_data as plain_reader


def _global(name: str) -> bytes:
    return b"cbuiltins\n" + name.encode() + b"\n"


def _number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little")


def _memo(index: int) -> bytes:
    return b"j" + (plain_reader.RESERVED + index).to_bytes(4, "little")


def _doubled(empty: bytes, times: int, pair: Any) -> bytes:
    stream = empty + b"\x94" + b"0"
    for index in range(times):
        stream += pair(_memo(index)) + b"\x940"
    return stream + _memo(times)


COLLIDING = b"".join(
    b"\x8a\x0a" + ((2**61 - 1) * i).to_bytes(10, "little") + b"N" for i in range(1, 60_000)
)
BOMBS = {
    "a set of a range": _global("set") + _global("range") + _number(2_000_000) + b"\x85R\x85R",
    "a bytearray by its size": _global("bytearray") + _number(1 << 30) + b"\x85R",
    "a frozenset of text": _global("frozenset") + b"\x8c\x03abc" + b"\x85R",
    "lists in lists": _doubled(b"]", 40, lambda item: b"](" + item + item + b"e"),
    "tuples in tuples": _doubled(b")", 40, lambda item: item + item + b"\x86"),
    "tuples in tuples as a key": b"}" + _doubled(b")", 40, lambda i: i + i + b"\x86") + b"Ns",
    "a deep tuple": b")" + b"\x85" * 200_000,
    "a deep tuple as a key": b"}" + b")" + b"\x85" * 200_000 + b"Ns",
    "a deep tuple in a call": _global("set") + b")" + b"\x85" * 200_000 + b"\x85R",
    "a list in itself": b"]\x94" + _memo(0) + b"a",
    "one text many times": b"\x8d"
    + (1 << 20).to_bytes(8, "little")
    + b"a" * (1 << 20)
    + b"\x940]("
    + _memo(0) * 2_000
    + b"e",
    "keys that collide": b"}(" + COLLIDING + b"u",
}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace memory, which makes everything slow: so with a lower bound."""
    monkeypatch.setattr(plain_reader, "MAX_VALUES", 200_000)
    tracemalloc.start()
    yield
    tracemalloc.stop()


def _pickled(value: Any) -> bytes:
    """Pickle without going back to the memo, whose first places are taken."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()


async def _read(stream: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    variable = {
        "name": "x",
        "type": "list",
        "chunks": [payloads.to_record(payloads.slot_of_bytes("bytes", stream, "chunk"))],
    }
    manifest = {
        "engine": manifests.ENGINE,
        "format": manifests.FORMAT,
        "slots": [],
        "variables": [variable],
    }

    async def fetch(identifier: str) -> bytes:
        return stream

    return await plain_reader.plain_variables(manifest, fetch)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", BOMBS)
async def test_a_small_stream_does_not_become_a_big_value(name: str) -> None:
    try:
        plain, others = await _read(BOMBS[name] + b".")
    except Corruption:
        plain, others = {}, {"x": "refused"}
    assert plain == {}
    assert set(others) == {"x"}
    assert tracemalloc.get_traced_memory()[1] < 200 << 20


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, None, True, "é", b"b", bytearray(b"c"), 1 + 2j, range(2, 9, 3)],
        {1, 2, "a"},
        frozenset({(1, 2), ("a", ())}),
        {i: str(i) for i in range(5_000)},
        {("k", i): [i] for i in range(500)},
        list(range(200_000)),
    ],
)
async def test_plain_values_are_read_as_they_were_written(value: Any) -> None:
    plain, _ = await _read(_pickled(value))
    assert values.decode(plain["x"].encoding, plain["x"].data) == value
