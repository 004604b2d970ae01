"""The client for code that is not async: the same methods, each of which waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from holdfast.client.answers import Event, Result, Session, Wait
from holdfast.client.async_client import AsyncClient

_T = TypeVar("_T")


class Client:
    """Talks to one server with one token."""

    def __init__(self, url: str, token: str, *, timeout: float = 30.0) -> None:
        self._runner = asyncio.Runner()
        self._inner = AsyncClient(url, token, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._runner.run(self._inner.close())
        self._runner.close()

    def create(
        self,
        message: str | None = None,
        *,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        inputs: Mapping[str, Any] | None = None,
        wait: float = 0,
        key: str | None = None,
    ) -> tuple[Session, Result | None]:
        """Create a session, and send it a first message; the same key makes the same session."""
        return self._runner.run(
            self._inner.create(
                message, agent=agent, labels=labels, inputs=inputs, wait=wait, key=key
            )
        )

    def session(self, session: str) -> Session:
        """Return how a session stands."""
        return self._runner.run(self._inner.session(session))

    def sessions(self, **where: str) -> Iterator[Session]:
        """Yield sessions, newest first."""
        return self._each(self._inner.sessions(**where))

    def send(
        self,
        session: str,
        message: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: str = "queue",
        wait: float = 0,
        key: str | None = None,
    ) -> Result:
        """Send a message; with `wait` its result is returned if it is there in time."""
        return self._runner.run(
            self._inner.send(
                session, message, inputs=inputs, when_busy=when_busy, wait=wait, key=key
            )
        )

    def result(self, session: str, key: str) -> Result:
        """Return what came of the message with a key."""
        return self._runner.run(self._inner.result(session, key))

    def resume(self, session: str, *, wait: float = 0, force: bool = False) -> Result:
        """Go on with a session."""
        return self._runner.run(self._inner.resume(session, wait=wait, force=force))

    def stop(self, session: str) -> Result:
        """End a session."""
        return self._runner.run(self._inner.stop(session))

    def fork(
        self,
        session: str,
        *,
        head: str | None = None,
        step: int | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Session:
        """Create a session that goes on from a head of another, or from before a step of it."""
        return self._runner.run(
            self._inner.fork(session, head=head, step=step, model=model, key=key)
        )

    def compact(self, session: str, *strategies: str, key: str | None = None) -> Any:
        """Shorten what the model is sent; return what was done, or None."""
        return self._runner.run(self._inner.compact(session, *strategies, key=key))

    def pending(self, **where: str) -> Iterator[Wait]:
        """Yield calls that wait for someone, longest wait first."""
        return self._each(self._inner.pending(**where))

    def answer(self, session: str, call: str, value: Any) -> None:
        """Answer a question."""
        self._runner.run(self._inner.answer(session, call, value))

    def approve(
        self, session: str, call: str, *, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a call as it stands now, or with edited arguments."""
        self._runner.run(self._inner.approve(session, call, arguments=arguments))

    def deny(self, session: str, call: str, reason: str) -> None:
        """Deny a call."""
        self._runner.run(self._inner.deny(session, call, reason))

    def events(self, session: str, *, after: int = 0) -> Iterator[Event]:
        """Yield the stored events after a position."""
        return self._each(self._inner.events(session, after=after))

    def follow(self, session: str, *, after: int = 0) -> Iterator[Event]:
        """Yield stored events after a position and then live ones, until closed."""
        return self._each(self._inner.follow(session, after=after))

    def payload(self, session: str, payload: str) -> bytes:
        """Return the bytes of a stored value."""
        return self._runner.run(self._inner.payload(session, payload))

    def verify(self, session: str) -> bool:
        """Tell whether the log of a session proves itself."""
        return self._runner.run(self._inner.verify(session))

    def _each(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        """Yield what an async iterator yields."""

        async def following() -> tuple[bool, _T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            there, item = self._runner.run(following())
            if not there:
                return
            yield item  # type: ignore[misc]
