"""Trying again, inside one deadline, with every attempt on record.

The deadline covers attempts and waits together. An attempt that is still running when it passes is
cancelled, which closes its connection; a wait that would outlast it is not begun, and the error
that asked for the wait is raised at once. A provider's own retry-after beats our backoff.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from holdfast.core.events import now
from holdfast.models.errors import ModelTimeout, ProviderError
from holdfast.models.port import Attempt

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try, and how long to wait in between where the provider does not say."""

    max_attempts: int = 4
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 30.0

    def wait_seconds(self, failures: int, error: ProviderError) -> float:
        """Return the wait after so many failures: exponential, with jitter to spread callers."""
        if error.retry_after is not None:
            return max(0.0, error.retry_after)
        # Capped exponent: the power itself must not overflow for a policy with many attempts.
        backoff = self.first_wait_seconds * 2.0 ** min(failures - 1, 30)
        return min(backoff, self.max_wait_seconds) * random.uniform(0.5, 1.0)


ONCE = RetryPolicy(max_attempts=1)


class _Trial:
    """An attempt that is being made: remembers its start until its end is known."""

    def __init__(self, attempts: list[Attempt], clock: Callable[[], float], wait: float) -> None:
        self._attempts, self._clock, self._wait = attempts, clock, wait
        self._started, self._started_at = clock(), now()

    def ended(
        self, outcome: Literal["ok", "error", "timeout"], error: ProviderError | None = None
    ) -> tuple[Attempt, ...]:
        self._attempts.append(
            Attempt(
                started_at=self._started_at,
                wait_ms=round(self._wait * 1000),
                duration_ms=round((self._clock() - self._started) * 1000),
                outcome=outcome,
                error=error.code if error else None,
                message=str(error) if error else None,
            )
        )
        return tuple(self._attempts)


async def with_retries(
    call: Callable[[], Awaitable[Reply]],
    *,
    deadline_seconds: float,
    policy: RetryPolicy,
    on_retry: Callable[[], None] | None = None,
) -> tuple[Reply, tuple[Attempt, ...]]:
    """Return what `call` returned and all attempts, or raise the last error with all attempts."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + deadline_seconds
    attempts: list[Attempt] = []
    wait = 0.0
    while True:
        trial = _Trial(attempts, clock, wait)
        try:
            async with asyncio.timeout_at(deadline) as scope:
                reply = await call()
            return reply, trial.ended("ok")
        except TimeoutError as cause:
            if not scope.expired():
                raise
            timeout = ModelTimeout(f"no reply within the deadline of {deadline_seconds:g} s")
            timeout.attempts = trial.ended("timeout", timeout)
            raise timeout from cause
        except ProviderError as failure:
            failure.attempts = trial.ended("error", failure)
            wait = policy.wait_seconds(len(attempts), failure)
            if (
                not failure.retryable
                or len(attempts) >= policy.max_attempts
                or clock() + wait >= deadline
            ):
                raise
        await asyncio.sleep(wait)
        if on_retry:
            on_retry()


def elapsed_ms(attempts: tuple[Attempt, ...]) -> int:
    """Return the time that all attempts and the waits between them took."""
    return sum(attempt.wait_ms + attempt.duration_ms for attempt in attempts)
