"""What can go wrong between us and a model provider, by what can be done about it.

Every provider's failures are sorted into these few kinds before anyone else sees them. `retryable`
says whether the same request may succeed when it is made again, and every error carries the
attempts that were made, so that a failed call leaves as full a record as a good one. `kind` is the
short name by which a script asks for an error.

ModelError
└── ProviderError               carries the attempts; retryable where marked *
    ├── ModelTimeout* · RateLimited* · ServerError* · ConnectionDropped* · MalformedReply*
    ├── QuotaExceeded · BadRequest · AuthenticationFailed · ContentRefused · ContextTooLong
    └── ScriptExhausted
InvalidInput
└── InvalidScript
Refused
└── ExtraMissing
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.core.errors import InvalidInput, ModelError, Refused
from holdfast.models.port import Attempt


class ProviderError(ModelError):
    """The provider failed in a way it did not explain."""

    kind: ClassVar[str] = "failed"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str | None = None,
        *,
        attempts: tuple[Attempt, ...] = (),
        retry_after: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.attempts = attempts
        self.retry_after = retry_after


class ModelTimeout(ProviderError):
    """No reply came in time; the call was cancelled."""

    kind = "timeout"
    retryable = True


class RateLimited(ProviderError):
    """The provider asks to slow down."""

    kind = "rate_limited"
    retryable = True


class QuotaExceeded(ProviderError):
    """The account has no quota or credit left; waiting will not help."""

    kind = "quota"


class ServerError(ProviderError):
    """The provider is overloaded or broken."""

    kind = "server"
    retryable = True


class ConnectionDropped(ProviderError):
    """The connection to the provider failed or broke off."""

    kind = "connection"
    retryable = True


class MalformedReply(ProviderError):
    """The provider sent something that is not a reply."""

    kind = "malformed"
    retryable = True


class BadRequest(ProviderError):
    """The provider rejected the request itself."""

    kind = "bad_request"


class AuthenticationFailed(ProviderError):
    """The provider rejected the credentials."""

    kind = "auth"


class ContentRefused(ProviderError):
    """The provider refused the content of the request or of its own reply."""

    kind = "refused"


class ContextTooLong(ProviderError):
    """The request is larger than the model's context window."""

    kind = "context_too_long"


class ScriptExhausted(ProviderError):
    """The script has no line for this request."""

    kind = "exhausted"


class InvalidScript(InvalidInput):
    """A script file cannot be used."""


class ExtraMissing(Refused):
    """The model needs an extra that is not installed."""


KINDS: dict[str, type[ProviderError]] = {
    error.kind: error
    for error in (
        ProviderError,
        ModelTimeout,
        RateLimited,
        QuotaExceeded,
        ServerError,
        ConnectionDropped,
        MalformedReply,
        BadRequest,
        AuthenticationFailed,
        ContentRefused,
        ContextTooLong,
    )
}
