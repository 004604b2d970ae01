"""Turns, steps, cells and leaf calls as readers see them: flat, each at its place in the log.

A view is made from the facts of one entity and holds them too. Values stand as slots, so that a
page of views costs no payload; `Reads.value` reads one.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from holdfast.core import facts
from holdfast.core.payloads import Slot

OPEN = "open"
"""The status of what has begun and is not settled."""


def amount(usd: str | None) -> Decimal | None:
    """Return money as a number; None where it is unknown."""
    return None if usd is None else Decimal(usd)


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn: how it began and how it stands."""

    seq: int
    at: str
    turn: int
    status: str
    inputs: dict[str, Slot]
    steps: int | None
    final: Slot | None
    error: Slot | None
    usage: facts.Usage | None
    cost_usd: Decimal | None
    held_usd: Decimal | None
    unknown_calls: int
    elapsed_ms: int | None
    started: facts.TurnStarted
    put: facts.TurnPut | None


def turn_view(seq: int, at: str, started: facts.TurnStarted, put: facts.TurnPut | None) -> TurnView:
    """Return the view of a turn."""
    return TurnView(
        seq=seq,
        at=at,
        turn=started.turn,
        status=OPEN if put is None else put.status,
        inputs=started.inputs,
        steps=None if put is None else put.steps,
        final=None if put is None else put.final,
        error=None if put is None else put.error,
        usage=None if put is None else put.usage,
        cost_usd=None if put is None else amount(put.cost_usd),
        held_usd=None if put is None else amount(put.held_usd),
        unknown_calls=0 if put is None else put.unknown_calls,
        elapsed_ms=None if put is None else put.elapsed_ms,
        started=started,
        put=put,
    )


@dataclass(frozen=True, slots=True)
class StepView:
    """A step: how it began and how it ended."""

    seq: int
    at: str
    step: int
    turn: int
    status: str
    model: str | None
    usage: facts.Usage | None
    cost_usd: Decimal | None
    latency_ms: int | None
    finish_reason: str | None
    error: Slot | None
    started: facts.StepStarted
    put: facts.StepPut | None


def step_view(seq: int, at: str, started: facts.StepStarted, put: facts.StepPut | None) -> StepView:
    """Return the view of a step."""
    return StepView(
        seq=seq,
        at=at,
        step=started.step,
        turn=started.turn,
        status=OPEN if put is None else put.status,
        model=started.model if put is None or put.model is None else put.model,
        usage=None if put is None else put.usage,
        cost_usd=None if put is None else amount(put.cost_usd),
        latency_ms=None if put is None else put.latency_ms,
        finish_reason=None if put is None else put.finish_reason,
        error=None if put is None else put.error,
        started=started,
        put=put,
    )


@dataclass(frozen=True, slots=True)
class EvalView:
    """One code cell that was evaluated."""

    seq: int
    at: str
    eval: int
    turn: int
    step: int
    status: str
    code: Slot
    value: Slot | None
    output: Slot | None
    error: Slot | None
    calls: int
    engine: str | None
    elapsed_ms: int | None
    fact: facts.EvalAdded


def eval_view(seq: int, at: str, fact: facts.EvalAdded) -> EvalView:
    """Return the view of a cell."""
    return EvalView(
        seq=seq,
        at=at,
        eval=fact.eval,
        turn=fact.turn,
        step=fact.step,
        status=fact.status,
        code=fact.code,
        value=fact.value,
        output=fact.output,
        error=fact.error,
        calls=fact.calls,
        engine=fact.engine,
        elapsed_ms=fact.elapsed_ms,
        fact=fact,
    )


@dataclass(frozen=True, slots=True)
class LeafView:
    """One model call made from code."""

    seq: int
    at: str
    leaf: int
    turn: int
    step: int
    eval: int
    function: str
    item: int
    width: int
    status: str
    request: Slot
    reply: Slot | None
    error: Slot | None
    model: str | None
    usage: facts.Usage | None
    cost_usd: Decimal | None
    latency_ms: int | None
    fact: facts.LeafCalled


def leaf_view(seq: int, at: str, fact: facts.LeafCalled) -> LeafView:
    """Return the view of a leaf call."""
    return LeafView(
        seq=seq,
        at=at,
        leaf=fact.leaf,
        turn=fact.turn,
        step=fact.step,
        eval=fact.eval,
        function=fact.function,
        item=fact.item,
        width=fact.width,
        status=fact.status,
        request=fact.request,
        reply=fact.reply,
        error=fact.error,
        model=fact.model,
        usage=fact.usage,
        cost_usd=amount(fact.cost_usd),
        latency_ms=fact.latency_ms,
        fact=fact,
    )
