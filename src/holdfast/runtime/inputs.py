"""Inputs: values that a caller hands to a turn, bound as variables in the namespace.

They are stored as payloads and shown to the model as cards (name, type, size, a short preview),
never pasted into the prompt: a text of fifty megabytes costs the model one line.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.payloads import Slot, slot
from holdfast.runtime import input_files
from holdfast.runtime.tools import RESERVED_NAMES

PREVIEW_CHARACTERS = 160


def check_names(names: Iterable[Any]) -> None:
    """Raise InvalidInput for a name that code could not use."""
    for name in names:
        usable = isinstance(name, str) and name.isidentifier() and name.isascii()
        if not usable or keyword.iskeyword(name) or name.startswith("_") or name in RESERVED_NAMES:
            raise InvalidInput(
                f"input name {name!r} cannot be a variable: use an ASCII identifier that is no "
                "keyword, not reserved and does not start with '_'"
            )


def input_slots(inputs: Mapping[str, Any]) -> dict[str, Slot]:
    """Return the slots of inputs, all of them under names that code can use."""
    check_names(inputs)
    return {name: slot(value, "input") for name, value in inputs.items()}


def cards(inputs: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return what the model is told about inputs; empty without any."""
    told = {name: _described(value) for name, value in inputs.items()}
    told |= {name: input_files.card(record) for name, record in (files or {}).items()}
    if not told:
        return ""
    # In the order of the record, which keeps no other: a replay must tell the same.
    lines = [f"- {name}: {told[name]}" for name in sorted(told)]
    return "Variables that are defined now:\n" + "\n".join(lines)


def _described(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, str | bytes):
        unit = "characters" if isinstance(value, str) else "bytes"
        begin = repr(value[:PREVIEW_CHARACTERS])
        more = " …" if len(value) > PREVIEW_CHARACTERS else ""
        return f"{kind}, {len(value):,} {unit}, begins {begin}{more}"
    if isinstance(value, dict):
        keys = ", ".join(_repr(key)[:40] for key in list(value)[:8])
        return f"{kind}, {len(value):,} entries, keys {keys}{' …' if len(value) > 8 else ''}"
    if isinstance(value, list | tuple | set | frozenset):
        inner = next(iter(value), None)
        of = f" of {type(inner).__name__}" if value else ""
        return f"{kind}, {len(value):,} items{of}"
    return f"{kind}, {_repr(value)[:PREVIEW_CHARACTERS]}"


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:
        # Python writes no integer of more than a few thousand digits; a key may hold one, too.
        bits = f" of {value.bit_length():,} bits" if isinstance(value, int) else ""
        return f"(a {type(value).__name__}{bits})"
