"""Whatever a worker writes to its pipe, it becomes frames, or a typed error, within bounds."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from fuzzing import corpus, mutated, until_time_is_up
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import KernelProtocolError
from holdfast.kernels.frame_reader import FrameReader, LargeChunk

INPUTS = corpus("frames")
LIMIT = 8 << 20
TOKENS = [
    *(b"\0\0\0\0\0", b"\1\0\0\0\0", b"\1\0\0\0\x47", b"\2", b"\xff" * 5, b"\0\x7f\xff\xff\xff"),
    *(b"\1\x3e\x80\0\0", b"{}", b"[]", b"null", b'"', b"NaN", b"1e999", b"[" * 2000),
    *(b'"kind":"call"', b'"kind":"done"', b'"id":-1', b'"threads":0', b"sha256:" + b"0" * 64),
]


def message(value: object) -> bytes:
    """Return the frame of a message."""
    body = msgspec.json.encode(value)
    return b"\0" + len(body).to_bytes(4, "big") + body


def chunk(data: bytes) -> bytes:
    """Return the frame of a chunk under its true id."""
    body = b"sha256:" + hashlib.sha256(data).hexdigest().encode() + data
    return b"\1" + len(body).to_bytes(4, "big") + body


CALL = {"kind": "call", "id": 1, "function": "lm", "files": [], "threads": 1}
CALLED = message(CALL | {"arguments": {"args": [], "kwargs": {}}})
HONEST = CALLED + chunk(b"some bytes" * 50) + message({"kind": "bound"}) + chunk(b"")


def read(parts: list[bytes]) -> list[object] | None:
    """Return the frames that come of some bytes in parts, None where they are refused."""
    reader = FrameReader()
    reader.limit(LIMIT)
    found: list[object] = []
    try:
        for part in parts:
            for frame in reader.feed(part):
                found.append(frame.read() if isinstance(frame, LargeChunk) else frame)
    except KernelProtocolError:
        return None
    finally:
        reader.close()
    return found


def check(data: bytes, pieces: int) -> None:
    """See that bytes say the same whole and in pieces."""
    whole = read([data])
    cut = read([data[at : at + pieces] for at in range(0, len(data), pieces)])
    assert whole == cut


@pytest.mark.parametrize("name", INPUTS)
def test_every_stream_of_the_corpus_is_read_or_refused(name):
    for pieces in (1, 7, 4096):
        check(INPUTS[name], pieces)


def test_an_honest_stream_passes_the_same_check():
    found = read([HONEST])
    assert found is not None
    assert len(found) == 4
    for pieces in (1, 3, 100):
        check(HONEST, pieces)


def test_a_large_chunk_passes_the_same_check():
    data = chunk(bytes(5 << 20))
    found = read([data])
    assert found is not None
    assert len(found) == 1
    check(data, 1 << 16)
    assert read([data[:-1] + b"x"]) is None


@pytest.mark.soak
def test_mutated_streams_are_read_or_refused():
    inputs = st.sampled_from([HONEST, *INPUTS.values()])

    @given(mutated(inputs, TOKENS), st.integers(1, 300))
    def mutation(data: bytes, pieces: int) -> None:
        check(data, pieces)

    until_time_is_up(mutation)
