"""The namespace of a session at its last checkpoint, as its manifest describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.stores.port import SessionStore
from holdfast.views.values import read_value


@dataclass(frozen=True, slots=True)
class VariableView:
    """One variable; one that is not `kept` comes back from a checkpoint as a marker only."""

    name: str
    type: str
    size: int
    preview: str
    kept: bool


@dataclass(frozen=True, slots=True)
class VariablesView:
    """The variables of a session, by name, and the engine that wrote the checkpoint."""

    session: str
    engine: str | None
    variables: tuple[VariableView, ...]


async def read_variables(store: SessionStore, session_id: str) -> VariablesView:
    """Return the namespace at the last checkpoint; nothing is run or loaded."""
    state = await store.load_state(session_id)
    manifest: dict[str, Any] = {}
    if state.vars is not None:
        manifest = await read_value(store, session_id, state.vars)
    return VariablesView(session_id, manifest.get("engine"), tuple(variables_of(manifest)))


def variables_of(manifest: Mapping[str, Any]) -> list[VariableView]:
    """Return the variables that a manifest describes, by name."""
    # Both engines describe their variables in these words; the rest of a manifest is their own.
    variables = [
        VariableView(
            name=item["name"],
            type=item["type"],
            size=item["size"],
            preview=item["preview"],
            kept=not item.get("whole", False),
        )
        for item in manifest.get("variables", [])
    ]
    return sorted(variables, key=lambda item: str(item.name))
