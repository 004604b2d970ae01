"""Stored values as readers get them: decoded, erased or undecodable; and their form in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.core import values
from holdfast.core.errors import Corruption, PayloadNotFound
from holdfast.core.payloads import Erased, Slot, check_slot
from holdfast.stores.port import SessionStore


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A value whose bytes are as stored but do not decode; a worker may have forged it."""

    id: str
    size: int
    reason: str


async def hydrate(store: SessionStore, session_id: str, item: Slot) -> Slot:
    """Return a slot with its bytes, read from the store where it is not inline."""
    if item.data is not None:
        return item
    data = await store.get_payload(session_id, item.id)
    return Slot(item.id, item.encoding, item.kind, item.size, data)


async def read_value(store: SessionStore, session_id: str, item: Slot) -> Any:
    """Return the value of a slot; PayloadNotFound where it was erased."""
    check_slot(item)
    return (await hydrate(store, session_id, item)).value()


async def value_or_erased(store: SessionStore, session_id: str, item: Slot | None) -> Any:
    """Return the value of a slot, None where there is none; or its `Erased` or `Undecodable`.

    One bad value does not keep a reader from all others.
    """
    if item is None:
        return None
    if item.erased is not None:
        return item.erased
    try:
        whole = await hydrate(store, session_id, item)
    except PayloadNotFound as error:
        # Erased since the page that holds the slot was read.
        if "erased_at" not in error.details:
            raise
        return Erased(error.details["erased_at"], error.details["rule"])
    try:
        return whole.value()
    except Corruption as error:
        return Undecodable(item.id, item.size, str(error))


def value_form(value: Any) -> Any:
    """Return a value as JSON can say it; one that was erased or does not decode says so."""
    if isinstance(value, Erased):
        return {"$erased": {"at": value.at, "rule": value.rule}}
    if isinstance(value, Undecodable):
        return {"$undecodable": {"id": value.id, "size": value.size, "reason": value.reason}}
    return json.loads(values.encode_json(value))
