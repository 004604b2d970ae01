"""Threads that a machine refuses: an end with a type, because stores do their work in threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core.errors import StoreFailed


@contextmanager
def needing_thread(where: str, kind: type[StoreFailed] = StoreFailed) -> Iterator[None]:
    """Raise an error of this kind where the machine refuses to start another thread."""
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise kind(
            f"{where!r} needs a thread that this machine does not start; end other programs or "
            "raise the limit (`ulimit -u`), then try again"
        ) from error
