"""pydantic-ai's errors, sorted into ours."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai import exceptions as theirs

from holdfast.models import errors as ours

_LIMIT = 500
# The order matters: the first class that fits decides, so the narrower ones stand first.
_KINDS: tuple[tuple[type[Exception], type[ours.ProviderError]], ...] = (
    (theirs.ModelRateLimitError, ours.RateLimited),
    (theirs.ModelQuotaExceededError, ours.QuotaExceeded),
    (theirs.ModelUnavailableError, ours.Overloaded),
    (theirs.ModelServerError, ours.ServerError),
    (theirs.ModelTimeoutError, ours.ModelTimeout),
    (theirs.ModelRequestTimeout, ours.ModelTimeout),
    (theirs.ModelConnectionError, ours.ConnectionDropped),
    (theirs.ModelContextWindowExceededError, ours.ContextTooLong),
    (theirs.ModelAuthenticationError, ours.AuthenticationFailed),
    (theirs.ModelRequestRejectedError, ours.BadRequest),
    (theirs.ContentFilterError, ours.ContentRefused),
    (theirs.UserError, ours.BadRequest),
    # Where the caller turned warnings into errors: asking again would warn again.
    (Warning, ours.BadRequest),
)


def our_error(error: Exception, model: str, secrets: Sequence[str] = ()) -> ours.ProviderError:
    """Return our error for one of theirs; what is not theirs is a reply nobody understood."""
    kind = next((our for their, our in _KINDS if isinstance(error, their)), None)
    if kind is None:
        kind = ours.BadRequest if _rejected(error) else ours.MalformedReply
    if getattr(error, "phase", None) in ("pool", "connect"):
        kind = ours.Unreachable
    return kind(
        f"{model!r}: {_redacted(_explained(error), secrets)}",
        retry_after=getattr(error, "retry_after", None),
        accepted=_accepted(error),
        status=getattr(error, "status_code", None),
    )


def _accepted(error: Exception) -> bool | None:
    """Say whether the provider took the request on; None leaves it to the kind of error."""
    if getattr(error, "in_stream", False):
        return True  # it had begun to answer
    return False if _rejected(error) else None


def _rejected(error: Exception) -> bool:
    return isinstance(error, theirs.ModelHTTPError) and 400 <= error.status_code < 500


def _explained(error: Exception) -> str:
    """Return the provider's own sentence where its error body has one."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    status = getattr(error, "status_code", None)
    text = message if isinstance(message, str) else f"{error}" or type(error).__name__
    return f"{text} (status {status})" if status and text is message else text


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text if len(text) <= _LIMIT else text[:_LIMIT] + " …"
