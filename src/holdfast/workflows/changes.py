"""Changes: what differs between two versions of a workflow, and whether a run can take it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import Conflict
from holdfast.core.payloads import slot
from holdfast.core.run_facts import RunChanged
from holdfast.core.state import State
from holdfast.workflows.check import require_sound
from holdfast.workflows.known import Known
from holdfast.workflows.model import Workflow
from holdfast.workflows.problems import InvalidWorkflow
from holdfast.workflows.reading import read_text


@dataclass(frozen=True, slots=True)
class Change:
    """One part of a workflow that is not as it was."""

    where: str  # such as "node judge" or "budget"
    what: str  # added, removed, changed
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f" ({', '.join(self.fields)})" if self.fields else ""
        return f"{self.where} was {self.what}{told}"

    def document(self) -> dict[str, Any]:
        """Return the change as data."""
        return {"where": self.where, "what": self.what, "fields": list(self.fields)}


class WorkflowChanged(Conflict):
    """The workflow of a run is not what it was when the run began; `changes` says what differs."""

    def __init__(self, message: str | None = None, changes: tuple[Change, ...] = ()) -> None:
        super().__init__(message)
        self.changes = changes


def changes_between(old: Workflow, new: Workflow) -> list[Change]:
    """Return what differs; comments, order and descriptions do not."""
    before, after = old.document(), new.document()
    found: list[Change] = []
    for name in sorted({*before, *after} - {"nodes"}):
        if before.get(name) != after.get(name):
            found.append(Change(name, _what(before, after, name)))
    nodes, others = _flat(before["nodes"]), _flat(after["nodes"])
    for name in sorted({*nodes, *others}):
        if nodes.get(name) != others.get(name):
            one, other = nodes.get(name, {}), others.get(name, {})
            fields = tuple(sorted(key for key in {*one, *other} if one.get(key) != other.get(key)))
            what = _what(nodes, others, name)
            found.append(Change(f"node {name}", what, fields if what == "changed" else ()))
    return found


def _what(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    if name not in before:
        return "added"
    return "removed" if name not in after else "changed"


def _flat(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nodes by name, those of bodies beside the others."""
    found: dict[str, Any] = {}
    for name, node in nodes.items():
        found[name] = {key: part for key, part in node.items() if key != "do"}
        found |= _flat(node.get("do", {}))
    return found


def check_compatible(state: State, old: Workflow, new: Workflow) -> None:
    """Refuse a changed workflow in which what is under way in a run has no place any more."""
    run = state.run
    assert run is not None
    gone: list[str] = []
    for branch, cursor in run.cursors.items():
        node = new.nodes.get(cursor.node)
        if node is None:
            gone.append(f"node {cursor.node!r}, where branch {branch!r} stands")
        elif cursor.call in state.calls and node.output != old.nodes[cursor.node].output:
            gone.append(f"the form of {cursor.node!r}, which waits for an answer")
        elif node.scope != old.nodes[cursor.node].scope:
            gone.append(f"node {cursor.node!r}, which was moved")
        gone += [
            f"loop {name!r}, which is in use" for name in cursor.loops if name not in new.loops
        ]
    for fork in run.forks.values():
        if fork.node not in new.nodes:
            gone.append(f"node {fork.node!r}, which fans out")
    gone += [f"variable {name!r}" for name in old.vars if name not in new.vars]
    if gone:
        raise Conflict(
            f"run {state.session!r} cannot go on with the changed workflow: it lacks "
            f"{'; '.join(dict.fromkeys(gone))}. Resume with the stored one, or start another run"
        )


async def change_of(
    state: State,
    place: str | None,
    old: Workflow,
    known: Known,
    *,
    changed: bool,
    by: str | None,
) -> RunChanged | None:
    """Return what records that a run's file has changed; refuse it unless that is meant."""
    text = None if place is None else await asyncio.to_thread(_text_at, Path(place))
    if place is None or text is None:
        return None
    new, problems = read_text(text, place)
    if new is None or problems:
        if not changed:
            return None  # the run has its own copy, and goes on with it
        raise InvalidWorkflow(f"{place} is not a valid workflow", problems)
    found = changes_between(old, new)
    if not found:
        return None
    told = "; ".join(map(str, found))
    if not changed:
        raise WorkflowChanged(
            f"{place} has changed since run {state.session!r} began: {told}. Resume with "
            "stored=True to go on with the workflow as it was, or with changed=True",
            tuple(found),
        )
    require_sound(new, known)
    check_compatible(state, old, new)
    return RunChanged(
        workflow_hash=new.hash(),
        model=slot(new.document(), "settings"),
        source=slot(text, "settings"),
        place=place,
        changes=slot([one.document() for one in found], "settings"),
        by=by,
    )


def _text_at(place: Path) -> str | None:
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # the run has its own copy
