"""The documents that `--json` prints; `docs/reference/json.md` describes each of them.

Fields are always there, null where there is nothing to say. Values stand in the stored form of
`holdfast.core.values`, in which what JSON cannot say is a one-key object such as `{"$tuple": []}`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.core import values
from holdfast.core.events import Event, event_to_line
from holdfast.core.ids import friendly_name
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionInfo

if TYPE_CHECKING:  # a listing needs neither, and starts the quicker for it
    from holdfast.runtime.reads import Reads
    from holdfast.runtime.results import TurnResult

Document = dict[str, Any]


def value_form(value: Any) -> Any:
    """Return a value as JSON can say it."""
    return json.loads(values.encode_json(value))


def form_text(form: Any) -> str:
    """Return a value in JSON's form for people: text as it is, everything else as JSON."""
    if isinstance(form, str):
        return form
    text = json.dumps(form, ensure_ascii=False)
    return text if len(text) <= 100 else json.dumps(form, ensure_ascii=False, indent=2)


def result_document(result: TurnResult, *, status: str | None = None) -> Document:
    """Return the document of what a turn came to; `status` is for one that has no result."""
    status = status or result.status
    error = getattr(result, "error", "")
    return {
        "session": result.session,
        "name": friendly_name(result.session),
        "status": status,
        "turn": result.turn,
        "value": value_form(getattr(result, "value", None)),
        "head": result.head,
        "steps": result.steps,
        "usage": dict(result.usage),
        "cost_usd": result.cost_usd,
        "error": {"code": getattr(result, "code", status), "message": error} if error else None,
        "calls": list(getattr(result, "calls", ())),
        "key": getattr(result, "key", None),
    }


def session_document(info: SessionInfo) -> Document:
    """Return one session's row of a listing."""
    return {
        "id": info.id,
        "name": info.name,
        "tenant": info.tenant,
        "kind": info.kind,
        "agent": info.agent,
        "status": info.status,
        "seq": info.seq,
        "started_at": info.started_at,
        "updated_at": info.updated_at,
        "turns": info.turns,
        "last_turn": info.last_turn,
        "head": info.head,
        "cost_usd": None if info.unknown_usd else info.usd,
        "known_usd": info.usd,
        "tokens": info.tokens,
        "parent": info.parent,
        "origin": info.origin,
        "labels": info.labels,
        "imported": info.imported,
        "inbox": info.inbox,
    }


def event_document(event: Event) -> Document:
    """Return one event as stored, with the session it belongs to."""
    record: Document = json.loads(event_to_line(event))
    return {"session": event.session} | record


async def slot_form(reads: Reads, session: str, item: Slot | None) -> Any:
    """Return the value of a slot as JSON can say it; one that was erased says so."""
    if item is None:
        return None
    if item.erased is not None:
        return {"$erased": {"at": item.erased.at, "rule": item.erased.rule}}
    return value_form(await reads.value(session, item))


def cost_text(usd: str | None, unknown: bool = False) -> str:
    """Return a cost for people; what is unknown is said as unknown."""
    if usd is None:
        return "cost unknown"
    return f"${usd}{' and unknown' if unknown else ''}"
