"""What a route gets of its request: the principal, the runtime of its tenant, and its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from holdfast.core.ids import check_key
from holdfast.runtime.runtime import Runtime
from holdfast.server.access import Principal
from holdfast.server.as_of import States
from holdfast.server.guard import Limits
from holdfast.server.hub import Hub
from holdfast.server.metrics import Metrics
from holdfast.server.problems import Denied

SessionId = Annotated[str, Path(max_length=200, description="The id of a session.")]
After = Annotated[int, Query(ge=0, le=2**53, description="Only what follows this event.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]


@dataclass(frozen=True, slots=True)
class Serving:
    """What the application holds for its routes."""

    hub: Hub
    limits: Limits
    metrics: Metrics
    states: States


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and with what."""

    principal: Principal
    runtime: Runtime
    serving: Serving
    key: str | None

    @property
    def hub(self) -> Hub:
        """Return the runtimes of the server."""
        return self.serving.hub

    def new_id(self, purpose: str) -> str | None:
        """Return the id of what this request creates; None where it has no key."""
        return (
            None if self.key is None else self.hub.new_id(self.principal.tenant, purpose, self.key)
        )

    def repeat(self, *about: str) -> tuple[str, ...] | None:
        """Return the name of this change for whoever repeats it."""
        if self.key is None:
            return None
        return (self.principal.tenant, self.principal.name, self.key, *about)


def caller(
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="Makes repeating the request harmless.")
    ] = None,
) -> Caller:
    """Return who asks."""
    serving: Serving = request.app.state.serving
    principal: Principal = request.state.principal
    if idempotency_key is not None:
        check_key(idempotency_key, "idempotency key")
    return Caller(principal, serving.hub.of(principal), serving, idempotency_key)


class _Needs:
    """A dependency that refuses whoever lacks a right."""

    def __init__(self, right: str) -> None:
        self._right = right

    def __call__(self, found: Annotated[Caller, Depends(caller)]) -> Caller:
        if not found.principal.may(self._right):
            raise Denied(403, "right_missing", f"this needs the right {self._right!r}")
        return found


Reader = Annotated[Caller, Depends(_Needs("read"))]
Actor = Annotated[Caller, Depends(_Needs("act"))]
Answerer = Annotated[Caller, Depends(_Needs("answer"))]
Admin = Annotated[Caller, Depends(_Needs("admin"))]
