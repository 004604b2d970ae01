"""Launching: whether a run may start, what it starts with, and what its budget leads to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.capability import profile
from holdfast.core.errors import InvalidInput
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import RunStarted
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.settings import Settings
from holdfast.workflows.check import require_sound
from holdfast.workflows.model import Workflow
from holdfast.workflows.reading import read_document
from holdfast.workflows.registry import Registry

AGENT = "workflow"
"""The name under which runs stand in listings."""


def require_launchable(flow: Workflow, registry: Registry, agents: Iterable[str]) -> None:
    """Refuse a workflow that cannot be run here, or that calls one which cannot."""
    known = registry.known(agents)
    todo, seen = [flow], {flow.name}
    while todo:
        one = todo.pop()
        require_sound(one, known)
        for node in one.nodes.values():
            if node.kind == "workflow" and node.subject not in seen:
                seen.add(str(node.subject))
                todo.append(registry.workflows[str(node.subject)])


def checked_vars(flow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables given; refuse those that are unknown, missing or of a wrong type."""
    unknown = sorted(given.keys() - flow.vars.keys())
    if unknown:
        known = ", ".join(flow.vars) or "none"
        raise InvalidInput(f"{flow.name!r} has no variable {unknown[0]!r}; it has: {known}")
    for name, one in flow.vars.items():
        if name not in given:
            if one.required:
                raise InvalidInput(
                    f"{flow.name!r} needs the variable {name!r} ({one.schema}); give it"
                )
            continue
        problem = next(one.schema.problems(given[name], name), None)
        if problem is not None:
            raise InvalidInput(f"{problem}; give {one.schema}")
    return dict(given)


def resolve_vars(flow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a run: those given, else their defaults."""
    return {name: given.get(name, one.default) for name, one in flow.vars.items()}


def first_fact(launch: Mapping[str, Any]) -> tuple[Workflow, RunStarted]:
    """Return the workflow that a run is launched with, and the fact that it began."""
    flow = read_document(launch["workflow"])
    model = slot(launch["workflow"], "settings")
    started = RunStarted(
        workflow=flow.name,
        workflow_hash=model.id,
        start=flow.start,
        source=None if launch.get("source") is None else slot(launch["source"], "settings"),
        place=launch.get("place"),
        model=model,
        inputs={name: slot(value, "input") for name, value in launch["vars"].items()},
        vars=slot(resolve_vars(flow, launch["vars"]), "input"),
        options=slot(launch.get("options") or {}, "settings"),
        by=launch.get("by"),
    )
    return flow, started


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


def with_budget(base: Settings, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a run with other limits on its money and tokens."""
    usd, tokens = given.get("usd"), given.get("tokens")
    return replace(
        base,
        max_usd=base.max_usd if usd is None else str(usd),
        max_tokens=base.max_tokens if tokens is None else int(tokens),
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
