"""`McpServer`: an MCP server as a tool source, with an effect class for each of its tools.

What a server says about its own tools counts only where the user trusts it; a tool without a known
effect counts as `once`, which is said once. A server that dies in mid-call leaves an outcome by the
effect class: a `once` call is unknown, any other is made again with the server started anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.adapters.mcp.connection import Connection, ConnectionLost, Place, place_of
from holdfast.adapters.mcp.questions import QuestionNotKept, call_tool
from holdfast.adapters.signatures import python_name, signature
from holdfast.errors import HoldfastError, InvalidInput

logger = logging.getLogger("holdfast.adapters.mcp")

Effect = Literal["pure", "idempotent", "once"]

ATTEMPTS = 3
CONTEXT = "holdfast_context"
SHOWN_NAMES = 8


class McpToolFailed(HoldfastError):
    """A tool of an MCP server says that it failed."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as its server offers it and as an agent gets it."""

    name: str
    server_name: str
    effect: Effect
    why: str
    spec: types.Tool


class McpServer:
    """A server, started or reached when its tools are first asked for.

    `McpServer("files", "npx", ["server-files", "/data"])` starts a process, `McpServer("tickets",
    url="https://…/mcp")` talks to one that runs. Its tools are `toolset()`. Use it as a context
    manager of either kind, or close it at the end. A process gets only PATH, HOME and the like from
    the environment, and `env`.

    `effects` says what repeating a tool does, by the names that the server gives them; `trusted`
    lets the hints of the server count for the others. `only` names the tools that are taken.
    """

    def __init__(
        self,
        name: str,
        command: str | None = None,
        args: Sequence[str] = (),
        *,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        trusted: bool = False,
        effects: Mapping[str, Effect] | None = None,
        approval: Sequence[str] | bool = False,
        only: Sequence[str] | None = None,
        timeout_seconds: float = 60.0,
        legacy: bool = False,
    ) -> None:
        stdio, url = place_of(
            name,
            command,
            tuple(args),
            url,
            None if env is None else dict(env),
            None if cwd is None else str(cwd),
        )
        self.name = name
        self._trusted = trusted
        self._effects = dict(effects or {})
        self._approval = approval
        self._only = None if only is None else tuple(only)
        self._refused: list[str] = []
        self._offered: tuple[OfferedTool, ...] | None = None
        self._instructions = ""
        self._connection = Connection(
            Place(
                name=name,
                stdio=stdio,
                url=url,
                headers=None if headers is None else dict(headers),
                legacy=legacy,
                timeout_seconds=timeout_seconds,
                on_question=self._refuse,
            )
        )

    def __enter__(self) -> McpServer:
        self.offered()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> McpServer:
        self._take(await self._connection.run(_listed))
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the server's process, or the session with it."""
        self._connection.close()

    def offered(self) -> tuple[OfferedTool, ...]:
        """Return the tools with their effect classes, and where each of those comes from."""
        if self._offered is None:
            self._take(self._connection.wait(_listed))
        assert self._offered is not None
        return self._offered

    def toolset(self) -> holdfast.Toolset:
        """Return the tools for an agent; code imports them under the name of the server."""
        offered = self.offered()
        prompt = self._instructions if self._trusted else ""
        return holdfast.Toolset(self.name, 1, [self._tool(item) for item in offered], prompt)

    def _take(self, listed: tuple[list[types.Tool], str | None]) -> None:
        """Keep what the server offers; say once which tools count as `once` by default."""
        if self._offered is not None:
            return
        specs, self._instructions = listed[0], listed[1] or ""
        known = {spec.name for spec in specs}
        asked = {*self._effects, *(self._only or ())}
        if not isinstance(self._approval, bool):
            asked |= set(self._approval)
        if asked - known:
            raise InvalidInput(
                f"MCP server {self.name!r} has no tool {', '.join(sorted(asked - known))}; it has "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        if self._only is not None:
            specs = [spec for spec in specs if spec.name in self._only]
        found: dict[str, OfferedTool] = {}
        for spec in specs:
            name = python_name(spec.name)
            if name in found:
                raise InvalidInput(
                    f"MCP server {self.name!r}: the tools {found[name].server_name!r} and "
                    f"{spec.name!r} would both be {name!r}; name one of them in only="
                )
            found[name] = OfferedTool(name, spec.name, *self._effect(spec), spec)
        self._offered = tuple(found.values())
        undeclared = [item.server_name for item in found.values() if item.why == "not declared"]
        if undeclared:
            shown = ", ".join(undeclared[:SHOWN_NAMES])
            if len(undeclared) > SHOWN_NAMES:
                shown += f" and {len(undeclared) - SHOWN_NAMES} more"
            logger.warning(
                "MCP server %r: %s count as effect 'once': never repeated after a crash. Say what "
                "they are with effects={…}%s",
                self.name,
                shown,
                "" if self._trusted else ", or let the server's own hints count with trusted=True",
            )

    def _effect(self, spec: types.Tool) -> tuple[Effect, str]:
        declared = self._effects.get(spec.name)
        if declared is not None:
            return declared, "declared"
        hints = spec.annotations
        if self._trusted and hints is not None:
            if hints.read_only_hint:
                return "pure", "the server says it only reads"
            if hints.idempotent_hint:
                return "idempotent", "the server says repeating it adds nothing"
            if hints.destructive_hint is not None:
                return "once", "the server says it changes things"
        return "once", "not declared"

    def _tool(self, item: OfferedTool) -> holdfast.Tool:
        required = set(item.spec.input_schema.get("required", ()))

        async def call(**arguments: Any) -> Any:
            context = arguments.pop(CONTEXT)
            given = {
                key: value
                for key, value in arguments.items()
                if value is not None or key in required
            }
            return await self._call(item, given, context)

        approval = self._approval
        gated = approval if isinstance(approval, bool) else item.server_name in approval
        return holdfast.Tool(
            item.name,
            call,
            signature=signature(item.spec.input_schema),
            doc=item.spec.description or item.spec.title or "",
            effect=item.effect,
            approval=gated,
            parameters=item.spec.input_schema,
            returns=_result_schema(item.spec.output_schema),
            context=CONTEXT,
        )

    async def _call(
        self, item: OfferedTool, arguments: dict[str, Any], context: holdfast.CallContext
    ) -> Any:
        attempts = 1 if item.effect == "once" else ATTEMPTS
        refused = len(self._refused)

        async def work(client: Client) -> types.CallToolResult:
            return await call_tool(client, item.server_name, arguments, context.answers)

        for attempt in range(1, attempts + 1):
            try:
                result = await self._connection.run(work)
                break
            except ConnectionLost as error:
                if attempt == attempts:
                    raise holdfast.OutcomeLost(str(error)) from error
            except MCPError as error:
                raise McpToolFailed(f"{item.server_name}: {error.error.message}") from error
        if len(self._refused) > refused:
            raise QuestionNotKept(
                f"{item.server_name} asked {self._refused[-1]!r} over a connection that cannot "
                f"wait for a person, and was not answered; it said: {_text(result)}"
            )
        if result.is_error:
            raise McpToolFailed(_text(result) or f"{item.server_name} failed")
        return _value(item.spec, result)

    async def _refuse(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer a question of an older protocol, whose call would have to stay alive."""
        self._refused.append(params.message)
        return types.ElicitResult(action="cancel")


async def _listed(client: Client) -> tuple[list[types.Tool], str | None]:
    found: list[types.Tool] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found, client.instructions


def _is_wrapped(schema: Mapping[str, Any] | None) -> bool:
    """Tell whether the SDK put a plain result into an object, because results must be objects."""
    return schema is not None and list(schema.get("properties") or ()) == ["result"]


def _result_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if schema is None or not _is_wrapped(schema):
        return schema
    inner: Mapping[str, Any] = schema["properties"]["result"]
    return None if "$ref" in json.dumps(inner) else inner


def _value(spec: types.Tool, result: types.CallToolResult) -> Any:
    data = result.structured_content
    if data is not None:
        if _is_wrapped(spec.output_schema) and isinstance(data, dict):
            return data.get("result")
        return data
    if all(isinstance(part, types.TextContent) for part in result.content):
        return _text(result)
    return [
        part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content
    ]


def _text(result: types.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, types.TextContent))
