"""Changes: what differs between two versions of a workflow, and whether a run can take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import Conflict
from holdfast.core.state import State
from holdfast.workflows.model import Workflow


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
