"""Views of the log as JSON documents: slots as stored, money as text, messages as records."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

from holdfast.core import messages
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot, to_record
from holdfast.views.documents import Document

FACTS = frozenset({"started", "put", "fact", "requested", "resolved"})
"""Fields of a view that hold the facts it was made of; their contents stand in the others."""


def view_document(view: Any) -> Document:
    """Return the document of a view."""
    names = [item.name for item in fields(view) if item.name not in FACTS]
    return {name: _form(getattr(view, name)) for name in names}


def _form(value: Any) -> Any:
    if isinstance(value, Slot):
        return to_record(value)
    if isinstance(value, Message):
        return messages.to_record(value)[0]
    if isinstance(value, Decimal):
        return format(value, "f")
    if is_dataclass(value) and not isinstance(value, type):
        return view_document(value)
    if isinstance(value, dict):
        return {str(name): _form(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_form(one) for one in value]
    return value
