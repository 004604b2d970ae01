"""Questions of MCP servers: elicitation as questions that wait durably for a person.

From protocol 2026-07-28 on a server answers a call with what it needs to know, and is called again
with the answer; nothing has to stay alive meanwhile. A server that has forgotten its question since
is asked from the start, and given the answers that it has had, as long as it asks the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.errors import HoldfastError

MAX_ROUNDS = 20
PAUSE_SECONDS = 0.2
FORGOTTEN = "invalid_request_state"


class QuestionNotKept(HoldfastError):
    """An MCP server asked over a connection that cannot wait for a person."""


class QuestionUnsupported(HoldfastError):
    """An MCP server wants something of its client that is not a question to a person."""


async def call_tool(
    client: Client, name: str, arguments: dict[str, Any], answers: Sequence[holdfast.GivenAnswer]
) -> types.CallToolResult:
    """Call a tool with the answers so far; raise NeedsAnswer for what it asks beyond them."""
    if answers:
        last = answers[-1]
        try:
            result = await _call(
                client, name, arguments, _responses(last.state, last), last.state["request_state"]
            )
        except MCPError as error:
            if not _is_forgotten(error):
                raise
            return await _from_the_start(client, name, arguments, answers)
        return await _or_asks(client, name, arguments, result)
    return await _or_asks(client, name, arguments, await _call(client, name, arguments))


async def _from_the_start(
    client: Client, name: str, arguments: dict[str, Any], answers: Sequence[holdfast.GivenAnswer]
) -> types.CallToolResult:
    result = await _call(client, name, arguments)
    for answer in answers:
        if not isinstance(result, types.InputRequiredResult):
            return result
        if _asked(result) != answer.state["asked"]:
            break
        result = await _call(
            client, name, arguments, _responses(answer.state, answer), result.request_state
        )
    return await _or_asks(client, name, arguments, result)


async def _or_asks(
    client: Client,
    name: str,
    arguments: dict[str, Any],
    result: types.CallToolResult | types.InputRequiredResult,
) -> types.CallToolResult:
    for _ in range(MAX_ROUNDS):
        if isinstance(result, types.CallToolResult):
            return result
        if result.input_requests:
            raise _question(name, result)
        await asyncio.sleep(PAUSE_SECONDS)  # it only asks to be called again
        result = await _call(client, name, arguments, None, result.request_state)
    raise QuestionUnsupported(f"{name} asked to be called again {MAX_ROUNDS} times; it is left")


async def _call(
    client: Client,
    name: str,
    arguments: dict[str, Any],
    responses: Any = None,
    request_state: str | None = None,
) -> types.CallToolResult | types.InputRequiredResult:
    return await client.session.call_tool(
        name,
        arguments,
        input_responses=responses,
        request_state=request_state,
        allow_input_required=True,
    )


def _is_forgotten(error: MCPError) -> bool:
    data = error.error.data
    return isinstance(data, dict) and data.get("reason") == FORGOTTEN


def _asked(result: types.InputRequiredResult) -> dict[str, Any]:
    """Return what is asked as plain data, by the keys under which the server expects answers."""
    asked: dict[str, Any] = {}
    for key, request in (result.input_requests or {}).items():
        params = getattr(request, "params", None)
        if isinstance(params, types.ElicitRequestFormParams):
            asked[key] = {"message": params.message, "schema": dict(params.requested_schema)}
        elif isinstance(params, types.ElicitRequestURLParams):
            asked[key] = {"message": params.message, "url": params.url}
        else:
            raise QuestionUnsupported(
                f"the server asks its client for {request.method!r}, which is not given to servers"
            )
    return asked


def _question(name: str, result: types.InputRequiredResult) -> holdfast.NeedsAnswer:
    asked = _asked(result)
    state = {"asked": asked, "request_state": result.request_state}
    texts = [
        f"{one['message']} ({one['url']})" if "url" in one else str(one["message"])
        for one in asked.values()
    ]
    schemas = {key: one.get("schema", {"type": "object"}) for key, one in asked.items()}
    schema = (
        next(iter(schemas.values()))
        if len(schemas) == 1
        else {"type": "object", "properties": schemas, "required": list(schemas)}
    )
    return holdfast.NeedsAnswer("\n".join(texts), schema=schema, state=state)


def _responses(state: Any, answer: holdfast.GivenAnswer) -> dict[str, types.ElicitResult]:
    """Return an answer in the form that the server takes, one for each of its requests."""
    asked = state["asked"]
    if answer.declined is not None:
        return {key: types.ElicitResult(action="decline") for key in asked}
    given = {next(iter(asked)): answer.value} if len(asked) == 1 else answer.value
    return {
        key: types.ElicitResult(
            action="accept", content=None if "url" in one else dict(given[key] or {})
        )
        for key, one in asked.items()
    }
