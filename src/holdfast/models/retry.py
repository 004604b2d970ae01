"""Trying again, inside one deadline, with every attempt on record.

The deadline covers attempts and waits together. An attempt that is still running when it passes is
cancelled, which closes its connection; a wait that would outlast it is not begun, and the error
that asked for the wait is raised at once. A provider's own retry-after beats our backoff. An outage
is waited out as long as the deadline allows, but attempts that may be charged for are not made
beyond what the caller allows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from holdfast.core.errors import InvalidSettings
from holdfast.core.events import now
from holdfast.models.errors import ModelTimeout, ProviderError
from holdfast.models.port import Attempt

logger = logging.getLogger("holdfast.models")

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try, and how long to wait in between where the provider does not say.

    Without `max_attempts` it is tried until the deadline.
    """

    max_attempts: int | None = None
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 30.0

    @classmethod
    def from_setting(cls, text: str) -> RetryPolicy:
        """Return the policy of the setting `retry`: `deadline`, `off` or a number of attempts."""
        if text == "deadline":
            return cls()
        if text == "off":
            return ONCE
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 1000):
            raise InvalidSettings(
                f"retry is {text!r:.80}; use 'deadline', 'off' or a number of attempts"
            )
        return cls(max_attempts=int(text))

    def allows(self, failure: ProviderError, attempts: Sequence[Attempt]) -> bool:
        """Say whether another attempt may follow those that were made."""
        limits = (self.max_attempts, failure.most_attempts)
        return failure.retryable and len(attempts) < min(
            (limit for limit in limits if limit is not None), default=len(attempts) + 1
        )

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
                accepted=error is None or error.accepted,
            )
        )
        return tuple(self._attempts)


async def with_retries(
    call: Callable[[], Awaitable[Reply]],
    *,
    deadline_seconds: float,
    policy: RetryPolicy,
    max_charged: int | None = None,
    on_retry: Callable[[], None] | None = None,
) -> tuple[Reply, tuple[Attempt, ...]]:
    """Return what `call` returned and all attempts, or raise the last error with all attempts.

    No attempt follows where `max_charged` were made that the provider may charge for.
    """
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
            charged = sum(attempt.accepted for attempt in attempts)
            # Where no connection could be made, the next try is not begun to be cut off on the way:
            # then nobody would know whether it was accepted.
            needed = 0.0 if failure.accepted else attempts[-1].duration_ms / 1000
            if (
                not policy.allows(failure, attempts)
                or (max_charged is not None and charged >= max_charged)
                or clock() + wait + needed >= deadline
            ):
                raise
            logger.warning(
                "attempt %d failed with %s; the next in %.1f s", len(attempts), failure.code, wait
            )
        await asyncio.sleep(wait)
        if on_retry:
            on_retry()


def elapsed_ms(attempts: tuple[Attempt, ...]) -> int:
    """Return the time that all attempts and the waits between them took."""
    return sum(attempt.wait_ms + attempt.duration_ms for attempt in attempts)
