"""Launching: what a run is started with, and the settings that its budget leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.capability import profile
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.settings import Settings
from holdfast.workflows.model import Workflow

AGENT = "workflow"
"""The name under which runs stand in listings."""


def resolve_vars(flow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a run: those given, else their defaults."""
    return {name: given.get(name, one.default) for name, one in flow.vars.items()}


def run_settings(base: Settings, flow: Workflow, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a run: its limits are its budget, or what it was given instead."""
    wanted = {**flow.budget, **given}
    return replace(
        base,
        max_usd=str(wanted.get("usd", "")),
        max_calls=0,
        max_tokens=int(wanted.get("tokens", 0)),
        max_seconds=int(wanted.get("seconds", 0)),
    )


def session_started(
    flow: Workflow, settings: Settings, **about: Any
) -> tuple[SessionStarted, list[Slot]]:
    """Return the first event of a run's log, and what it refers to.

    The limits stand in it as those of any session, so that children ask for more in one way.
    """
    item, parts = Blueprint(settings=settings, capability=profile("locked_down"), prompt="").slots()
    labels = {"workflow": flow.name, **about.pop("labels", {})}
    return SessionStarted(kind="run", agent=AGENT, labels=labels, settings=item, **about), parts
