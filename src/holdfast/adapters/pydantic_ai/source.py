"""`toolset_from`: the tools of a pydantic-ai toolset, for an agent of Holdfast."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

import holdfast
from holdfast.adapters.signatures import python_name, signature

logger = logging.getLogger("holdfast.adapters.pydantic_ai")

Effect = Literal["pure", "idempotent", "once"]
EFFECT = "effect"
"""The key in a tool's metadata that says what repeating it does."""
CONTEXT = "holdfast_context"


async def toolset_from(
    toolset: AbstractToolset[Any],
    name: str,
    *,
    deps: Any = None,
    effects: Mapping[str, Effect] | None = None,
) -> holdfast.Toolset:
    """Return the tools of a toolset; enter one that needs it before, and keep it open.

    What repeating a tool does is what `effects` or its metadata (`{"effect": "pure"}`) say, else
    `once`. Tools that require approval wait for one, external ones for their answer.
    """
    run = RunContext(deps=deps, model=TestModel(), usage=RunUsage())
    found = await toolset.get_tools(run)
    undeclared: list[str] = []
    tools = []
    for key, item in found.items():
        effect, declared = effect_of(item.tool_def.name, item.tool_def.metadata, effects)
        if not declared:
            undeclared.append(key)
        tools.append(_tool(toolset, key, item, run, effect))
    if undeclared:
        logger.warning(
            "toolset %r: %s count as effect 'once': never repeated after a crash. Say what they "
            "are with effects={…} or metadata={'effect': …}",
            name,
            ", ".join(undeclared),
        )
    return holdfast.Toolset(name, 1, tools)


def effect_of(
    name: str, metadata: Mapping[str, Any] | None, effects: Mapping[str, Effect] | None
) -> tuple[Effect, bool]:
    """Return what repeating a tool does, and whether anyone said so."""
    said: Effect | None = (effects or {}).get(name) or (metadata or {}).get(EFFECT)
    return ("once", False) if said is None else (said, True)


def _tool(
    toolset: AbstractToolset[Any],
    name: str,
    item: ToolsetTool[Any],
    run: RunContext[Any],
    effect: Effect,
) -> holdfast.Tool:
    about = item.tool_def
    required = set(about.parameters_json_schema.get("required", ()))

    async def call(**arguments: Any) -> Any:
        context = arguments.pop(CONTEXT)
        given = {
            key: value for key, value in arguments.items() if value is not None or key in required
        }
        here = replace(run, tool_call_id=context.call_id, tool_name=name, tool_call_approved=True)
        checked = item.args_validator.validate_python(given, context=None)
        return to_jsonable_python(await toolset.call_tool(name, checked, here, item))

    external = about.kind == "external"
    return holdfast.Tool(
        python_name(name),
        None if external else call,
        signature=signature(about.parameters_json_schema),
        doc=about.description or "",
        effect=effect,
        executor="client" if external else "server",
        approval=about.kind == "unapproved",
        parameters=about.parameters_json_schema,
        context=None if external else CONTEXT,
    )
