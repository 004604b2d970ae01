"""Problem documents: every error of the API in one form, with the codes of the command line.

What a caller may not know looks like what does not exist: a session of another tenant gives the
answer of one that was never there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from holdfast.core import errors
from holdfast.core.errors import HoldfastError

STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (errors.SessionDeleted, 410),
    (errors.InvalidInput, 400),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.Refused, 422),
    (errors.StoreFailed, 503),
    (errors.ModelError, 502),
)
TITLES = {
    400: "The request cannot be used",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    405: "Not a method of this address",
    409: "Someone else moved",
    410: "Deleted",
    413: "Too large",
    416: "Not a range of this value",
    422: "Refused",
    429: "Too many requests",
    500: "An error of the server",
    502: "The model provider failed",
    503: "The storage failed",
}


class Denied(Exception):
    """A request that the server itself refuses: access control, or one of its limits."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class JsonDocument(Response):
    """A JSON body in ASCII, so that no text in it can be invalid."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the document as bytes."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class ProblemDocument(JsonDocument):
    """The body of an error (RFC 9457)."""

    media_type = "application/problem+json"


def status_of(error: HoldfastError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def problem(
    status: int,
    code: str,
    message: str,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemDocument:
    """Return the response of an error."""
    document = {
        "type": f"urn:holdfast:error:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": message,
        "request_id": request_id,
    }
    return ProblemDocument(document, status_code=status, headers=dict(headers or {}))
