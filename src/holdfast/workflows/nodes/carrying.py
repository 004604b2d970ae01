"""Carrying out: tools, programs and functions of a run, in this process.

What goes wrong is an outcome with a code, never an exception of the engine. Programs run in the
run's workspace with an environment of their own, and only those that were allowed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import HoldfastError, InvalidInput, UnsupportedValue
from holdfast.core.facts import CallResolved
from holdfast.core.payloads import slot
from holdfast.runtime.programs import run_program
from holdfast.runtime.tools import CallContext, Tool
from holdfast.workflows.model import Node
from holdfast.workflows.registry import Registry

MAX_OUTPUT = 10_000_000
"""How much a program may print."""

ENVIRONMENT = ("PATH", "LANG", "TMPDIR")
"""What a program gets of this process's environment: nothing that could be a secret."""


class Failure(Exception):
    """Something that a node does has failed, by a cause."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def carry_out(
    node: Node,
    registry: Registry,
    context: CallContext,
    arguments: Mapping[str, Any],
    words: list[str],
    folder: str | None,
) -> CallResolved:
    """Carry out a node's call and return its one outcome."""
    started = time.monotonic()
    outcome: dict[str, Any]
    try:
        seconds = None if node.timeout_ms is None else node.timeout_ms / 1000
        async with asyncio.timeout(seconds):
            value = await _value(node, registry, context, arguments, words, folder)
        outcome = {"outcome": "ok", "result": slot(value, "answer")}
    except TimeoutError:
        error = {"code": "timeout", "message": f"{node.id} took longer than its timeout"}
        outcome = {"outcome": "error", "error": slot(error, "error")}
    except asyncio.CancelledError:
        raise
    except UnsupportedValue as error:
        outcome = _failed("tool_error", f"it returned what cannot be kept: {error}")
    except BaseException as error:  # code of the embedder must not end the event loop
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = _failed(_code(error), _message(error), getattr(error, "until", None))
    elapsed = int((time.monotonic() - started) * 1000)
    return CallResolved(call_id=context.call_id, latency_ms=elapsed, **outcome)


def _failed(code: str, message: str, until: Any = None) -> dict[str, Any]:
    """Return a failed outcome; `until` says when a limit resets, as text in UTC."""
    error = {"code": code, "message": message}
    if isinstance(until, str):
        error["until"] = until
    return {"outcome": "error", "error": slot(error, "error")}


def _code(error: BaseException) -> str:
    code = getattr(error, "code", None)
    if isinstance(error, Failure) or (
        isinstance(code, str) and not isinstance(error, HoldfastError)
    ):
        return str(code)
    if isinstance(error, ConnectionError):
        return "network"
    return "tool_error"


def _message(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


async def _value(
    node: Node,
    registry: Registry,
    context: CallContext,
    arguments: Mapping[str, Any],
    words: list[str],
    folder: str | None,
) -> Any:
    match node.kind:
        case "run":
            return await _program(registry, words, folder)
        case "compute":
            return await _called(registry.functions[str(node.subject)], dict(arguments))
    tool = registry.tools[str(node.subject)]
    return await _tool(tool, context, _resolved(registry, arguments))


def _resolved(registry: Registry, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the secrets that they name."""
    found = {}
    for name, value in arguments.items():
        if isinstance(value, str) and value.strip().startswith("{{") and "secrets." in value:
            key = value.strip().strip("{} ").removeprefix("secrets.")
            value = registry.secrets[key]
        found[name] = value
    return found


async def _tool(tool: Tool, context: CallContext, arguments: dict[str, Any]) -> Any:
    try:
        checked = tool.check(arguments) if tool.check is not None else arguments
        checked = tool.bind((), checked)
    except (InvalidInput, TypeError) as error:
        raise Failure("tool_error", f"arguments of {tool.name!r}: {error}") from error
    if tool.context is not None:
        checked[tool.context] = context
    assert tool.call is not None
    return await _called(tool.call, checked)


async def _called(function: Any, arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    value = await asyncio.to_thread(function, **arguments)
    return await value if inspect.isawaitable(value) else value


async def _program(registry: Registry, words: list[str], folder: str | None) -> dict[str, Any]:
    if words[0] not in registry.programs:
        raise Failure(
            "denied", f"the program {words[0]!r} is not allowed here; name it in programs="
        )
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        ended = await run_program(words, folder=folder, environment=environment, keep=MAX_OUTPUT)
    except (FileNotFoundError, PermissionError) as error:
        raise Failure("tool_error", f"the program {words[0]!r} cannot be run: {error}") from error
    if ended.stdout.size + ended.stderr.size > MAX_OUTPUT:
        raise Failure("tool_error", f"{words[0]} printed more than {MAX_OUTPUT} bytes")
    return {"exit": ended.code, "output": ended.stdout.text, "errors": ended.stderr.text}
