"""What can go wrong between us and a model provider, by what can be done about it.

Every provider's failures are sorted into these few kinds before anyone else sees them. `retryable`
says whether the same request may succeed when it is made again, `accepted` whether the provider may
have taken it on, and so may charge for it. Every error carries the attempts that were made, so that
a failed call leaves as full a record as a good one. `kind` is the short name by which a script asks
for an error.

ModelError
└── ProviderError               carries the attempts; retryable where marked *
    ├── ModelTimeout* · MalformedReply* · ContentRefused
    ├── ServerError*
    │   └── Overloaded*         not accepted, as all that follow
    ├── ConnectionDropped*
    │   └── Unreachable*
    ├── RateLimited* · QuotaExceeded · BadRequest · AuthenticationFailed · ContextTooLong
    └── ScriptExhausted
InvalidInput
└── InvalidScript
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.core.errors import InvalidInput, ModelError
from holdfast.models.port import Attempt


class ProviderError(ModelError):
    """The provider failed in a way it did not explain."""

    kind: ClassVar[str] = "failed"
    retryable: ClassVar[bool] = False
    most_attempts: ClassVar[int | None] = None  # None: as many as the deadline allows
    accepted: bool = True

    def __init__(
        self,
        message: str | None = None,
        *,
        attempts: tuple[Attempt, ...] = (),
        retry_after: float | None = None,
        accepted: bool | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.attempts = attempts
        self.retry_after = retry_after
        if accepted is not None:
            self.accepted = accepted


class ModelTimeout(ProviderError):
    """No reply came in time; the call was cancelled."""

    kind = "timeout"
    retryable = True


class RateLimited(ProviderError):
    """The provider asks to slow down."""

    kind = "rate_limited"
    retryable = True
    accepted = False


class QuotaExceeded(ProviderError):
    """The account has no quota or credit left; waiting will not help."""

    kind = "quota"
    accepted = False


class ServerError(ProviderError):
    """The provider is broken."""

    kind = "server"
    retryable = True


class Overloaded(ServerError):
    """The provider is unavailable or overloaded and did not take the request on."""

    kind = "overloaded"
    accepted = False


class ConnectionDropped(ProviderError):
    """The connection to the provider broke off."""

    kind = "connection"
    retryable = True


class Unreachable(ConnectionDropped):
    """No connection to the provider could be made; nothing was sent."""

    kind = "unreachable"
    accepted = False


class MalformedReply(ProviderError):
    """The provider sent something that is not a reply."""

    kind = "malformed"
    retryable = True
    most_attempts = 4  # each is paid for, and the next is seldom better


class BadRequest(ProviderError):
    """The provider rejected the request itself."""

    kind = "bad_request"
    accepted = False


class AuthenticationFailed(ProviderError):
    """The provider rejected the credentials."""

    kind = "auth"
    accepted = False


class ContentRefused(ProviderError):
    """The provider refused the content of the request or of its own reply."""

    kind = "refused"


class ContextTooLong(ProviderError):
    """The request is larger than the model's context window."""

    kind = "context_too_long"
    accepted = False


class ScriptExhausted(ProviderError):
    """The script has no line for this request."""

    kind = "exhausted"
    accepted = False


class InvalidScript(InvalidInput):
    """A script file cannot be used."""


KINDS: dict[str, type[ProviderError]] = {
    error.kind: error
    for error in (
        ProviderError,
        ModelTimeout,
        RateLimited,
        QuotaExceeded,
        ServerError,
        Overloaded,
        ConnectionDropped,
        Unreachable,
        MalformedReply,
        BadRequest,
        AuthenticationFailed,
        ContentRefused,
        ContextTooLong,
    )
}
