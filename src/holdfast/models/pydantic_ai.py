"""Real providers, through pydantic-ai's direct API.

pydantic-ai knows the wire formats; the rest is ours. Retries are ours, so that each attempt is on
record (the SDKs' own are switched off); the deadline is ours, and passing it cancels the transport;
messages, errors and usage leave here in our forms only. Keys come from the environment or from the
caller, stay inside the provider's client, and are cut out of any error text.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from importlib.metadata import version
from typing import Any, cast

from pydantic_ai import direct
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from holdfast.models.errors import BadRequest, ConnectionDropped, ContentRefused, ProviderError
from holdfast.models.port import Delta, ModelReply, ModelRequest, OnDelta, Usage, show
from holdfast.models.pydantic_ai_deltas import Deltas
from holdfast.models.pydantic_ai_errors import our_error
from holdfast.models.pydantic_ai_messages import from_provider, to_provider, well_formed
from holdfast.models.retry import RetryPolicy, elapsed_ms, with_retries

_PRICE_TABLE = f"genai-prices {version('genai-prices')}"
_OURS = frozenset({"timeout", "request_timeout", "first_event_timeout", "max_retries"})
_SETTINGS = frozenset(ModelSettings.__annotations__) - _OURS - {"extra_headers", "max_tokens"}
_CACHE_KEY_LIMIT = 64


class PydanticAiModel:
    """A `Model` over one of pydantic-ai's."""

    def __init__(
        self,
        model: ProviderModel,
        *,
        name: str,
        retry: RetryPolicy | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._model = model
        self._name = name
        self._writer = name.partition("@http")[0]  # the same model at another address is the same
        self._retry = retry
        self._secrets = secrets

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen."""
        return self._name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the price of a call of this size, nothing of it cached."""
        usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        model = self._model
        return _cost_usd(
            ModelResponse(
                parts=[], usage=usage, model_name=model.model_name, provider_name=model.system
            )
        )

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the provider's reply, streamed to `on_delta` on the way if that is given."""
        messages = to_provider(request.messages, self._writer)
        settings = self._settings(request)
        parameters = self._parameters(request)
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.deadline_seconds

        async def attempt() -> ModelResponse:
            # Of this the client takes at most 5 seconds to connect, which is then known to be why.
            settings["timeout"] = max(0.1, deadline - clock())
            try:
                return await self._ask(messages, settings, parameters, on_delta)
            except ProviderError:
                raise
            except Exception as error:
                raise our_error(error, self._name, self._secrets) from error

        response, attempts = await with_retries(
            attempt,
            deadline_seconds=request.deadline_seconds,
            policy=self._retry or RetryPolicy.from_setting(request.retry),
            max_charged=request.max_charged_attempts,
            on_retry=lambda: show(on_delta, Delta("restart")),
        )
        cost_usd = _cost_usd(response)
        message = from_provider(response, self._writer)
        # One of the formats says nothing else of a reply that stopped to call tools.
        stopped = response.finish_reason == "stop" and message.tool_calls
        return ModelReply(
            message=message,
            model=response.model_name or self._model.model_name,
            usage=_usage(response.usage),
            cost_usd=cost_usd,
            price_table=None if cost_usd is None else _PRICE_TABLE,
            latency_ms=elapsed_ms(attempts),
            attempts=attempts,
            finish_reason="tool_call" if stopped else response.finish_reason,
            response_id=response.provider_response_id,
        )

    async def close(self) -> None:
        """Close the connections to the provider."""
        provider = self._model.provider
        close = getattr(provider.client if provider else None, "close", None)
        closing = close() if close else None
        if inspect.isawaitable(closing):
            await closing

    async def _ask(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        on_delta: OnDelta | None,
    ) -> ModelResponse:
        if on_delta is None:
            response = await direct.model_request(
                self._model,
                messages,
                model_settings=settings,
                model_request_parameters=parameters,
            )
        else:
            async with direct.model_request_stream(
                self._model,
                messages,
                model_settings=settings,
                model_request_parameters=parameters,
            ) as stream:
                deltas = Deltas()
                async for event in stream:
                    if delta := deltas.of(event):
                        show(on_delta, delta)
            response = stream.get()
            if not self._ended(response):
                raise ConnectionDropped(f"the reply of {self._name!r} broke off before its end")
        filtered = response.finish_reason == "content_filter"
        if filtered and not from_provider(response, self._writer).text:
            raise ContentRefused(f"{self._name!r} refused to answer: its content filter stepped in")
        return response

    def _ended(self, response: ModelResponse) -> bool:
        """Say whether a stream came to its end: one that was cut may look whole."""
        if response.finish_reason is None or response.state == "incomplete":
            return False
        # pydantic-ai makes up a reason to stop for servers that never send one; OpenAI always does.
        made_up = "finish_reason" not in (response.provider_details or {})
        refused = response.finish_reason == "content_filter"
        return refused or not (made_up and self._model.system == "openai")

    def _parameters(self, request: ModelRequest) -> ModelRequestParameters:
        tools = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
            )
            for tool in request.tools
        ]
        system = [InstructionPart(well_formed(request.system))] if request.system else []
        if request.output_schema is None:
            return ModelRequestParameters(function_tools=tools, instruction_parts=system)
        # Where the provider cannot be held to a schema, it is told of it.
        native = self._model.profile.get("supports_json_schema_output", False)
        return ModelRequestParameters(
            function_tools=tools,
            instruction_parts=system,
            output_mode="native" if native else "prompted",
            output_object=OutputObjectDefinition(dict(request.output_schema), name="output"),
        )

    def _settings(self, request: ModelRequest) -> ModelSettings:
        system = self._model.system
        for name in request.settings:
            if name not in _SETTINGS and not name.startswith(f"{system}_"):
                raise BadRequest(
                    f"model setting {name!r} is not known for {self._name!r}: use one of "
                    f"{', '.join(sorted(_SETTINGS))}, or one that starts with '{system}_'"
                )
        settings: dict[str, Any] = {}
        if request.cache_id is not None:
            settings["cache"] = True
        if system == "openai":
            # The log must be able to go on without anything kept at the provider.
            settings["openai_store"] = False
            if request.cache_id is not None:
                settings["openai_prompt_cache_key"] = _cache_key(request.cache_id)
        settings |= request.settings
        if request.max_output_tokens is not None:
            settings["max_tokens"] = request.max_output_tokens
        if request.tools and request.tool_choice != "auto":
            settings["tool_choice"] = _tool_choice(request)
        settings["max_retries"] = 0
        return cast(ModelSettings, settings)


def _tool_choice(request: ModelRequest) -> str | list[str]:
    choice = request.tool_choice
    if choice in ("required", "none"):
        return choice
    if choice not in {tool.name for tool in request.tools}:
        raise BadRequest(f"tool_choice is {choice!r}; use auto, required, none or a tool's name")
    return [choice]


def _cache_key(cache_id: str) -> str:
    if len(cache_id) <= _CACHE_KEY_LIMIT:
        return cache_id
    return hashlib.sha256(cache_id.encode()).hexdigest()


def _usage(usage: RequestUsage) -> Usage:
    if usage.unmeasured_requests:
        return Usage()
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.details.get("reasoning_tokens"),
    )


def _cost_usd(response: ModelResponse) -> str | None:
    if not response.model_name or response.usage.unmeasured_requests:
        return None
    try:
        return format(response.cost().total_price, "f")
    except (LookupError, ValueError):
        # An unknown model, or counts that cannot be priced: unknown, not free.
        return None
