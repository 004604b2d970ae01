"""From a model's name, as a setting or a flag gives it, to the model.

`script:FILE` is a script; `PROVIDER:MODEL` is one of pydantic-ai's providers; either of the latter
may end in `@URL` to say where it is served, and `openai-compatible:MODEL@URL` is any server that
speaks OpenAI's chat format. The name is stored in the log, so it must not hold a key: keys come
from the environment or from the caller. Provider code is imported only here, when it is needed.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidSettings, needing
from holdfast.models.port import Model
from holdfast.models.retry import RetryPolicy
from holdfast.models.scripted import ScriptedModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model as ProviderModel
    from pydantic_ai.providers import Provider

KEY_VARIABLE = "HOLDFAST_MODEL_API_KEY"
_NAME = re.compile(
    r"(?P<provider>[^:@/]+(?:/[^:@/]+)?):(?P<model>.+?)(?:@(?P<url>(?i:https?)://.+))?"
)
_EXTRAS = {
    "openai": "openai",
    "ollama": "openai",
    "azure": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "bedrock": "bedrock",
}
_KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_KEY|TOKEN)\b")
_OLLAMA_URL = "http://localhost:11434/v1"


def model_from_name(
    name: str, *, api_key: str | None = None, retry: RetryPolicy | None = None
) -> Model:
    """Return the model of this name, ready to be asked; nothing is sent yet."""
    if name.startswith("script:"):
        return ScriptedModel.from_file(name.removeprefix("script:"))
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidSettings(
            f"model {name!r} is not a model name: use 'script:FILE', 'PROVIDER:MODEL' "
            "(as in 'anthropic:claude-sonnet-5-5') or 'openai-compatible:MODEL@URL'"
        )
    provider, model, url = match.group("provider", "model", "url")
    _check_url(url, name)
    extra = _EXTRAS.get(re.split("[-/]", provider)[0], "models")
    with needing(extra, f"model {name!r}"):
        # importlib, because this module must load without the extra.
        adapter = importlib.import_module("holdfast.models.pydantic_ai")
        inner = _provider_model(provider, model, url, api_key)
    model_: Model = adapter.PydanticAiModel(
        inner, name=name, retry=retry, secrets=_secrets(inner, api_key)
    )
    return model_


def _provider_model(
    provider: str, model: str, url: str | None, api_key: str | None
) -> ProviderModel:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider, infer_provider_class

    if provider == "openai-compatible":
        return _openai_compatible(model, url, api_key)
    if provider == "ollama" and url is None and "OLLAMA_BASE_URL" not in os.environ:
        url = _OLLAMA_URL
    arguments = {
        key: value for key, value in (("base_url", url), ("api_key", api_key)) if value is not None
    }

    def make_provider(kind: str) -> Provider[Any]:
        return infer_provider_class(kind)(**arguments) if arguments else infer_provider(kind)

    try:
        return infer_model(f"{provider}:{model}", make_provider)
    except (UserError, ValueError) as error:
        raise InvalidSettings(
            f"model '{provider}:{model}' cannot be used: {_next_step(error)}"
        ) from error
    except TypeError as error:
        raise InvalidSettings(
            f"provider {provider!r} does not take {' and '.join(arguments)} ({error}); "
            "set it up through its own environment variables"
        ) from error


def _next_step(error: Exception) -> str:
    """Return what to do about a provider that cannot be set up; its own advice is for others."""
    text = str(error)
    if key := _KEY.search(text):
        return f"set {key.group()} to its key"
    if text.startswith("Unknown provider"):
        return f"{text}; use {', '.join(sorted(_EXTRAS))}, openai-compatible or script:FILE"
    return text


def _openai_compatible(model: str, url: str | None, api_key: str | None) -> ProviderModel:
    if url is None:
        raise InvalidSettings(
            f"model 'openai-compatible:{model}' needs the server's address: "
            f"'openai-compatible:{model}@http://localhost:8000/v1'"
        )
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    key = api_key or os.environ.get(KEY_VARIABLE)
    provider = OpenAICompatibleProvider("openai-compatible", base_url=url, api_key=key)
    return OpenAIChatModel(model, provider=provider)


def _check_url(url: str | None, name: str) -> None:
    parts = urlsplit(url or "")
    if parts.username or parts.password or parts.query:
        raise InvalidSettings(
            f"model {name.split('@')[0]!r}: its address holds credentials or a query, which would "
            "be stored in the log; give the key through the environment"
        )


def _secrets(model: ProviderModel, api_key: str | None) -> tuple[str, ...]:
    client = model.provider.client if model.provider else None
    found = (api_key, getattr(client, "api_key", None), getattr(client, "auth_token", None))
    return tuple(secret for secret in found if isinstance(secret, str) and len(secret) >= 8)
