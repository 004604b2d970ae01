"""What the API answers, typed: sessions, results, waits, events, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import HoldfastError


class RequestRefused(HoldfastError):
    """The server refused a request; `code` is that of the command line, `status` that of HTTP."""

    def __init__(self, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        problem = problem or {}
        super().__init__(str(problem.get("detail") or f"the server answered with {status}"))
        self._code = str(problem.get("code") or super().code)
        self.status = status
        self.request_id: str | None = problem.get("request_id")

    @property
    def code(self) -> str:
        """Return the code that the server gave."""
        return self._code


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it stands."""

    id: str
    name: str
    status: str
    agent: str
    seq: int
    turns: int
    document: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Session:
        """Return the session of a document."""
        return cls(
            document["id"],
            document["name"],
            document["status"],
            document["agent"],
            document["seq"],
            document["turns"],
            document,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a message, so far: `final` with a value, `suspended`, `pending`, and others."""

    session: str
    status: str
    value: Any
    key: str | None
    calls: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)

    @property
    def is_final(self) -> bool:
        """Tell whether the turn ended with a value."""
        return self.status == "final"

    @classmethod
    def read(cls, document: Mapping[str, Any], key: str | None = None) -> Result:
        """Return the result of a document."""
        return cls(
            document["session"],
            document["status"],
            document.get("value"),
            document.get("key") or key,
            tuple(document.get("calls") or ()),
            document,
        )


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits for someone."""

    session: str
    call: str
    kind: str
    prompt: Any
    assignee: str | None
    deadline: str | None
    document: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Wait:
        """Return the wait of a document."""
        return cls(
            document["session"],
            document["call"],
            document["kind"],
            document["prompt"],
            document.get("assignee"),
            document.get("deadline"),
            document,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event, or with no number a token delta that is never repeated."""

    seq: int | None
    type: str
    data: Mapping[str, Any]
