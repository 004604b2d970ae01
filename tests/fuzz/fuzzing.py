"""What the fuzz tests share: mutated bytes, a budget of time, and a corpus of what was found.

A file in `corpus/` is one input that once broke something, or that comes near to what did. Every
run of the tests tries all of them; `make soak` mutates them for `FUZZ_SECONDS` seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))


def corpus(name: str) -> dict[str, bytes]:
    """Return the inputs of a part of the corpus, by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def until_time_is_up(test: Callable[[], None]) -> None:
    """Run a hypothesis test again and again, each time with other examples."""
    quiet = settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run = quiet(test)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        run()


@st.composite
def mutated(draw: st.DrawFn, inputs: st.SearchStrategy[bytes], tokens: list[bytes]) -> bytes:
    """Draw an input with a few parts cut out, doubled, replaced by tokens or altered."""
    data = bytearray(draw(inputs))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.integers(0, 3)):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = data[start:end] * draw(st.integers(1, 50))
            case 2:
                data[start:end] = draw(st.sampled_from(tokens))
            case _:
                data[start:end] = draw(st.binary(max_size=8))
    return bytes(data)
