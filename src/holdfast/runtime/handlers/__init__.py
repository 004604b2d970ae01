"""Handlers: what carries out one kind of call from code; one protocol, one ledger."""

from __future__ import annotations

from typing import Protocol

from holdfast.kernels.port import HostAnswer, HostCall, RecordedCall


class Handler(Protocol):
    """Carries out the calls of one evaluation that are of its kind."""

    async def call(self, call: HostCall) -> HostAnswer:
        """Carry out one call, or settle one whose outcome a crash took with it."""
        ...

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return what the log has of this evaluation's calls, by position of the outcome."""
        ...
