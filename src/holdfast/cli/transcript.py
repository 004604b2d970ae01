"""A session's history as people think of it: turns, in them steps, in them code and output.

Built turn by turn from one walk over the log, so a long session is printed as it is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from holdfast.cli.documents import Document, slot_form
from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.core.state import is_lost_leaf
from holdfast.runtime.reads import Reads
from holdfast.runtime.transcript import read_message
from holdfast.stores.port import SessionStore

PAGE_EVENTS = 500


class Transcript:
    """Turns one session's events into one document per turn."""

    def __init__(self, store: SessionStore, reads: Reads, session: str) -> None:
        self._store = store
        self._reads = reads
        self._session = session

    async def turns(self) -> AsyncIterator[Document]:
        """Yield the turns, oldest first; the last one may be open."""
        turn: Document | None = None
        async for event in self._events():
            fact: Any = event.fact() if event.known else None
            if isinstance(fact, facts.TurnStarted):
                if turn is not None:
                    yield turn
                turn = _new_turn(event, fact)
            elif turn is not None and fact is not None:
                await self._add(turn, fact)
        if turn is not None:
            yield turn

    async def _events(self) -> AsyncIterator[Event]:
        after = 0
        while page := await self._store.read_events(self._session, after=after, limit=PAGE_EVENTS):
            for event in page:
                yield event
            after = page[-1].seq

    async def _add(self, turn: Document, fact: Any) -> None:
        match fact:
            case facts.MessageAppended():
                await self._add_message(turn, fact)
            case facts.StepStarted():
                turn["steps"].append(_new_step(fact))
            case facts.StepPut():
                step = _step(turn, fact.step)
                step["status"], step["model"] = fact.status, fact.model or step["model"]
                step["usage"], step["cost_usd"] = fact.usage, fact.cost_usd
                step["latency_ms"] = fact.latency_ms
                step["error"] = await self._form(fact.error)
            case facts.EvalAdded():
                _step(turn, fact.step)["cells"].append(
                    {
                        "eval": fact.eval,
                        "status": fact.status,
                        "code": await self._form(fact.code),
                        "output": await self._form(fact.output),
                        "calls": fact.calls,
                        "elapsed_ms": fact.elapsed_ms,
                    }
                )
            case facts.LeafCalled():
                leaves = _step(turn, fact.step)["leaves"]
                leaves["asked"] += 1
                leaves["failed"] += fact.status != "ok"
            case facts.BudgetSettled() if is_lost_leaf(fact):
                turn["steps"][-1]["leaves"]["lost"] += 1
            case facts.SessionRevived():
                turn["revivals"] += 1
            case facts.TurnPut():
                turn["status"], turn["error"] = fact.status, await self._form(fact.error)
                turn["value"] = await self._form(fact.final)
                turn["usage"], turn["cost_usd"] = fact.usage, fact.cost_usd
                turn["elapsed_ms"] = fact.elapsed_ms
            case facts.HeadPublished():
                turn["head"] = fact.id

    async def _add_message(self, turn: Document, fact: facts.MessageAppended) -> None:
        text = (await read_message(self._store, self._session, fact.role, fact.content)).text
        if fact.role == "user":
            turn["message"] = text
        elif turn["steps"]:
            turn["steps"][-1]["reply" if fact.role == "assistant" else "observation"] = text

    async def _form(self, item: Any) -> Any:
        return await slot_form(self._reads, self._session, item)


def _new_turn(event: Event, fact: facts.TurnStarted) -> Document:
    return {
        "turn": fact.turn,
        "status": "open",
        "seq": event.seq,
        "at": event.at,
        "message": "",
        "inputs": {name: item.size for name, item in fact.inputs.items()},
        "steps": [],
        "revivals": 0,
        "value": None,
        "error": None,
        "head": None,
        "usage": None,
        "cost_usd": None,
        "elapsed_ms": None,
    }


def _new_step(fact: facts.StepStarted) -> Document:
    return {
        "step": fact.step,
        "status": "open",
        "model": fact.model,
        "reply": None,
        "observation": None,
        "cells": [],
        "leaves": {"asked": 0, "failed": 0, "lost": 0},
        "usage": None,
        "cost_usd": None,
        "latency_ms": None,
        "error": None,
    }


def _step(turn: Document, number: int) -> Document:
    """Return the step of this number; the log has its start before anything else of it."""
    found: Document = next(step for step in turn["steps"] if step["step"] == number)
    return found
