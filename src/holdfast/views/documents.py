"""Views as JSON: the documents of `--json`, which `docs/reference/json.md` describes.

Fields are always there, null where there is nothing to say. Values stand in the stored form of
`holdfast.core.values`, in which what JSON cannot say is a one-key object such as `{"$tuple": []}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from holdfast.core.events import Event, event_to_line
from holdfast.core.facts import Usage
from holdfast.core.ids import friendly_name
from holdfast.core.payloads import Slot, to_record
from holdfast.stores.port import (
    GcReport,
    ImportOutcome,
    PendingWait,
    SessionInfo,
    VerifyReport,
)
from holdfast.views.context import ContextView
from holdfast.views.costs import CostView
from holdfast.views.divergence import Divergence, Side
from holdfast.views.families import Family, Relation, TreeNode
from holdfast.views.lineage import EdgeView, HeadView
from holdfast.views.transcript import (
    CallTranscript,
    CellTranscript,
    StepTranscript,
    TurnTranscript,
)
from holdfast.views.values import value_form
from holdfast.views.variables import VariablesView

Document = dict[str, Any]


class Result(Protocol):
    """What a result of a turn says; `holdfast.runtime.results` has them."""

    @property
    def session(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def turn(self) -> int | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def cost_usd(self) -> Decimal | None: ...
    @property
    def held_usd(self) -> Decimal | None: ...
    @property
    def unknown_calls(self) -> int: ...
    @property
    def head(self) -> str | None: ...


def result_document(result: Result, *, status: str | None = None) -> Document:
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
        "cost_usd": _amount(result.cost_usd),
        "held_usd": _amount(result.held_usd),
        "unknown_calls": result.unknown_calls,
        "error": {"code": getattr(result, "code", status), "message": error} if error else None,
        "calls": list(getattr(result, "calls", ())),
        "key": getattr(result, "key", None),
    }


def _amount(usd: Decimal | None) -> str | None:
    """Return money as documents have it: text, so that no reader rounds it."""
    return None if usd is None else format(usd, "f")


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


def show_document(info: SessionInfo, items: Iterable[TurnTranscript | Event]) -> Document:
    """Return a session with its turns, and the events before them that nobody here knows."""
    shown: Document = {"session": session_document(info), "turns": [], "raw": []}
    for item in items:
        if isinstance(item, Event):
            shown["raw"].append(event_document(item))
        else:
            shown["turns"].append(turn_document(item))
    return shown


def turn_document(turn: TurnTranscript) -> Document:
    """Return a turn with all that happened in it."""
    return {
        "turn": turn.turn,
        "status": turn.status,
        "seq": turn.seq,
        "at": turn.at,
        "message": turn.message,
        "inputs": turn.inputs,
        "steps": [_step(step) for step in turn.steps],
        "revivals": turn.revivals,
        "value": value_form(turn.value),
        "error": value_form(turn.error),
        "head": turn.head,
        "usage": turn.usage,
        "cost_usd": _amount(turn.cost_usd),
        "held_usd": _amount(turn.held_usd),
        "unknown_calls": turn.unknown_calls,
        "elapsed_ms": turn.elapsed_ms,
        "raw": [event_document(event) for event in turn.raw],
    }


def _step(step: StepTranscript) -> Document:
    leaves = step.leaves
    return {
        "step": step.step,
        "status": step.status,
        "model": step.model,
        "reply": step.reply,
        "observation": step.observation,
        "cells": [_cell(cell) for cell in step.cells],
        "calls": [_call(call) for call in step.calls],
        "leaves": {"asked": leaves.asked, "failed": leaves.failed, "lost": leaves.lost},
        "usage": step.usage,
        "cost_usd": _amount(step.cost_usd),
        "latency_ms": step.latency_ms,
        "error": value_form(step.error),
    }


def _call(call: CallTranscript) -> Document:
    return {
        "call_id": call.call_id,
        "name": call.name,
        "kind": call.kind,
        "effect": call.effect,
        "status": call.status,
        "arguments": value_form(call.arguments),
        "result": value_form(call.result),
        "error": value_form(call.error),
        "waits_for": call.waits_for,
        "prompt": value_form(call.prompt),
        "deadline": call.deadline,
        "child": call.child,
    }


def _cell(cell: CellTranscript) -> Document:
    return {
        "eval": cell.eval,
        "status": cell.status,
        "code": value_form(cell.code),
        "output": value_form(cell.output),
        "calls": cell.calls,
        "elapsed_ms": cell.elapsed_ms,
    }


def head_document(head: HeadView, *, current: bool) -> Document:
    """Return a head; `current` says whether the session goes on from it."""
    return {
        "id": head.id,
        "version": head.version,
        "session": head.session,
        "seq": head.seq,
        "at": head.at,
        "kind": head.kind,
        "turn": head.turn,
        "basis": head.basis,
        "range": list(head.range),
        "digest": head.digest,
        "vars": _slot(head.vars),
        "final": _slot(head.final),
        "compact_from": head.compact_from,
        "current": current,
    }


def _slot(item: Slot | None) -> Document | None:
    return None if item is None else to_record(item)


def edge_document(edge: EdgeView) -> Document:
    """Return a lineage edge."""
    return {
        "id": edge.id,
        "version": edge.version,
        "type": edge.type,
        "from_session": edge.from_session,
        "from_head": edge.from_head,
        "to_session": edge.to_session,
        "to_head": edge.to_head,
        "call_id": edge.call_id,
        "seq": edge.seq,
        "at": edge.at,
    }


def cost_document(cost: CostView) -> Document:
    """Return a cost, with what is known, set aside and unknown kept apart."""
    return {
        "known_usd": f"{cost.known_usd:f}",
        "tokens": cost.tokens,
        "reserved_usd": f"{cost.reserved_usd:f}",
        "reserved_tokens": cost.reserved_tokens,
        "unknown": cost.unknown,
    }


def tree_document(family: Family) -> Document:
    """Return a family with every edge and relation that its logs have."""
    return {
        "session": family.wanted,
        "nodes": [_node(node) for node in family.nodes],
        "edges": [edge_document(edge) for edge in family.edges],
        "relations": [_relation(relation) for relation in family.relations],
    }


def _node(node: TreeNode) -> Document:
    info = node.info
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind,
        "status": info.status,
        "turns": info.turns,
        "head": info.head,
        "parent": info.parent,
        "call": node.call,
        "origin": info.origin,
        "origin_head": node.origin_head,
        "depth": node.depth,
        "cost": cost_document(node.cost),
        "subtree": cost_document(node.subtree),
    }


def _relation(relation: Relation) -> Document:
    return {
        "type": relation.type,
        "from_session": relation.from_session,
        "from_head": relation.from_head,
        "to_session": relation.to_session,
        "to_head": relation.to_head,
        "call_id": relation.call_id,
    }


def diff_document(found: Divergence) -> Document:
    """Return where two sessions part."""
    return {
        "relation": found.relation,
        "ancestor": found.ancestor,
        "diverges": found.diverges,
        "common": found.common,
        "common_turns": found.turns,
        "one": _side(found.one),
        "other": _side(found.other),
    }


def _side(side: Side | None) -> Document | None:
    if side is None:
        return None
    moment = side.moment
    return {
        "session": side.session,
        "log": None if moment is None else moment.session,
        "seq": None if moment is None else moment.seq,
        "turn": None if moment is None else moment.turn,
        "kind": None if moment is None else moment.kind,
        "values": {name: value_form(value) for name, value in side.values.items()},
    }


def variables_document(view: VariablesView) -> Document:
    """Return the namespace at a checkpoint."""
    return {
        "session": view.session,
        "engine": view.engine,
        "variables": [
            {
                "name": item.name,
                "type": item.type,
                "size": item.size,
                "preview": item.preview,
                "kept": item.kept,
            }
            for item in view.variables
        ],
    }


def context_document(view: ContextView) -> Document:
    """Return what the model would be sent now, and what it would not."""
    return {
        "session": view.session,
        "tokens": view.tokens,
        "window": view.window,
        "boundary": view.boundary,
        "parts": [
            {
                "seq": item.seq,
                "role": item.role,
                "part": item.part,
                "turn": item.turn,
                "included": item.included,
                "why": item.why,
                "tokens": item.tokens,
                "text": item.text,
            }
            for item in view.parts
        ],
    }


def verify_document(reports: Sequence[VerifyReport]) -> Document:
    """Return what verify found in sessions."""
    return {
        "ok": all(report.ok for report in reports),
        "sessions": [_proof(report) for report in reports],
    }


def _proof(report: VerifyReport) -> Document:
    return {
        "session": report.session,
        "ok": report.ok,
        "events": report.events,
        "payloads": report.payloads,
        "erased": report.erased,
        "expired": report.expired,
        "head": report.head,
        "digest": report.digest,
        "problems": [
            {
                "kind": problem.kind,
                "message": problem.message,
                "seq": problem.seq,
                "payload": problem.payload,
            }
            for problem in report.problems
        ],
    }


def gc_document(report: GcReport) -> Document:
    """Return what gc removed."""
    return {
        "payloads": report.payloads,
        "bytes": report.bytes,
        "kept": report.kept,
        "dry_run": report.dry_run,
        "ids": list(report.ids),
    }


def import_document(outcomes: Sequence[ImportOutcome]) -> Document:
    """Return what an import did with each session."""
    return {
        "sessions": [
            {"session": item.session, "outcome": item.outcome, "events": item.events}
            for item in outcomes
        ]
    }


def pending_document(wait: PendingWait, prompt: Any) -> Document:
    """Return the document of a call that waits, as lists over all sessions have it."""
    return {
        "session": wait.session,
        "call": wait.call_id,
        "wait": wait.wait,
        "kind": wait.kind,
        "tool": wait.name,
        "agent": wait.agent,
        "tenant": wait.tenant,
        "since": wait.since,
        "deadline": wait.deadline,
        "assignee": wait.assignee,
        "prompt": value_form(prompt),
    }
