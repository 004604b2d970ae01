"""What a workflow may name beside itself: agents, tools, models, functions, secrets, workflows.

A check without this knowledge leaves such names alone; with it, a name that is missing is a problem
before anything is paid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.workflows.schemas import Schema


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool, a function or a workflow takes and gives; None is unknown."""

    takes: Schema | None = None
    gives: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names that a run will find; None where nobody knows yet."""

    agents: Collection[str] | None = None
    models: Collection[str] | None = None
    secrets: Collection[str] | None = None
    tools: Mapping[str, Signature] | None = None
    functions: Mapping[str, Signature] | None = None
    workflows: Mapping[str, Signature] | None = None


NOTHING_KNOWN = Known()
