"""Histories: legal things a session may do next, for tests that drive a store.

`moves` lists what the log would accept at a state, from the start of a turn to its final head, so a
test that picks among them at random walks through real histories instead of meaningless rows.
Everything follows from the state and one text: the same choices give the same log.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core import facts, run_facts, status
from holdfast.core.facts import Fact
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.payloads import Slot, manifest, slot, to_record
from holdfast.core.state import State
from holdfast.runtime.settle import abandoned
from holdfast.testing.run_histories import run_facts_next

USAGE: facts.Usage = {"input_tokens": 12, "output_tokens": None}


@dataclass(frozen=True, slots=True)
class Move:
    """One batch that is legal next, and its name."""

    name: str
    facts: tuple[Fact, ...] = ()
    head: HeadDraft | None = None
    edges: tuple[EdgeDraft, ...] = ()
    payloads: tuple[Slot, ...] = ()


def moves(state: State, text: str) -> list[Move]:
    """Return the batches that a session may append next; `text` goes into their values."""
    if state.status in (status.STOPPED, status.FAILED):
        return [_relate(state)] if state.head else []
    if state.kind == "run":
        return [Move(name, new) for name, new in run_facts_next(state, text)]
    out = [_note(state, text), _checkpoint(text), _call(state, text), _reserve(state)]
    out.append(Move("publish an artifact", (_artifact(state, text),)))
    out.extend(_open_calls(state, text))
    if state.head is not None:
        out.append(_relate(state))
    if state.turn is None:
        if state.status == status.IDLE:
            out.insert(0, start_turn(state, text))
        if state.status == status.STOP_REQUESTED:
            out.append(Move("stop", (*_settled(state), facts.SessionStopped())))
        else:
            out.append(_compact(state, text))
    else:
        out[:0] = _in_turn(state, state.turn.turn, text)
    return out


def start_turn(state: State, text: str) -> Move:
    """Return the batch that opens a turn with its user message."""
    turn = state.next("turn")
    return Move(
        "start a turn",
        (
            facts.TurnStarted(turn=turn, inputs={"question": slot({"text": text}, "input")}),
            facts.MessageAppended(
                message=state.next("message"), role="user", content=slot(text, "message"), turn=turn
            ),
        ),
    )


def finish_turn(state: State, text: str) -> Move:
    """Return the batch that ends the open turn with a final value, its checkpoint and a head."""
    turn = state.turn.turn if state.turn else 0
    final, (names, part) = slot([text, 1.0], "final"), namespace(text)
    return Move(
        "finish the turn",
        (
            facts.VarsCheckpointed(vars=names, turn=turn),
            *_settled(state),
            facts.TurnPut(turn=turn, status="final", steps=1, final=final),
        ),
        head=HeadDraft(kind="turn_final", turn=turn, vars=names, final=final),
        payloads=(part,),
    )


def namespace(text: str) -> tuple[Slot, Slot]:
    """Return a namespace, which is a manifest that refers to its part, and that part."""
    part = slot(text * 3, "chunk")
    return manifest({"names": {"x": to_record(part)}}, "vars"), part


def _settled(state: State) -> list[Fact]:
    """Return the outcomes of what is open in the turn, without which it cannot end."""
    return abandoned(state, slot("the turn is over", "error"))


def _in_turn(state: State, turn: int, text: str) -> list[Move]:
    assert state.turn is not None
    failed = slot({"error": text}, "error")
    out = [
        finish_turn(state, text),
        Move(
            "fail the turn",
            (*_settled(state), facts.TurnPut(turn=turn, status="failed", error=failed)),
        ),
        Move("revive", (facts.SessionRevived(turn=turn, owner="o-test"),)),
    ]
    step, message = state.turn.step, state.next("message")
    if state.turn.phase == "asking":
        reply = facts.MessageAppended(
            message=message, role="assistant", content=slot(text, "reply"), turn=turn, step=step
        )
        put = facts.StepPut(step=step, turn=turn, status="replied", usage=USAGE, cost_usd="0.01")
        return [Move("store the reply", (put, reply)), *out]
    if state.turn.phase == "replied":
        return [_evaluate(state, turn, step, text), _leaf(state, turn, step, text), *out]
    if state.status == status.RUNNING:
        number = state.next("step")
        ask = facts.StepStarted(step=number, turn=turn, ordinal=number, reserved_usd="0.05")
        return [Move("ask the model", (ask,)), *out]
    return out


def _evaluate(state: State, turn: int, step: int, text: str) -> Move:
    number = state.next("eval")
    names, part = namespace(text)
    return Move(
        "evaluate a cell",
        (
            facts.EvalAdded(
                eval=number,
                turn=turn,
                step=step,
                index=0,
                code=slot(f"x = {text!r}", "code"),
                status="ok",
                value=slot((text, {"$ref": "sha256:" + "0" * 64}), "eval_result"),
            ),
            facts.VarsCheckpointed(vars=names, turn=turn, eval=number),
            facts.MessageAppended(
                message=state.next("message"),
                role="observation",
                content=slot("saw " + text, "message"),
                turn=turn,
                step=step,
            ),
        ),
        payloads=(part,),
    )


def _leaf(state: State, turn: int, step: int, text: str) -> Move:
    leaf = facts.LeafCalled(
        leaf=state.next("leaf"),
        turn=turn,
        step=step,
        eval=state.next("eval"),
        function="lm",
        digest="d" * 8,
        occurrence=1,
        status="ok",
        request=slot(text, "request"),
        reply=slot(text.upper(), "reply"),
    )
    return Move("call a leaf", (leaf,))


def _call(state: State, text: str) -> Move:
    request = facts.CallRequested(
        call_id=f"call-{state.next('call')}",
        name="search",
        executor="server",
        effect="once",
        arguments=slot({"query": text}, "arguments"),
        turn=state.turn.turn if state.turn else None,
    )
    return Move("request a call", (request,))


def _open_calls(state: State, text: str) -> list[Move]:
    out = []
    for call_id, call in list(state.calls.items())[:1]:
        result = slot({"found": text}, "answer")
        out.append(
            Move(
                "resolve a call",
                (facts.CallResolved(call_id=call_id, outcome="ok", result=result),),
            )
        )
        if call.stage in ("requested", "suspended") and call.wait < 2:
            late = "2020-01-01T00:00:00Z" if call.wait % 2 else None
            wait = facts.CallSuspended(
                call_id=call_id,
                wait=call.wait + 1,
                prompt=slot(text, "message"),
                deadline=late,
                assignee="ann" if call.wait else None,
            )
            out.append(Move("suspend a call", (wait,)))
    return out


def _note(state: State, text: str) -> Move:
    note = facts.MessageAppended(
        message=state.next("message"), role="user", content=slot(text, "message")
    )
    return Move("note a message", (note,))


def _checkpoint(text: str) -> Move:
    names, part = namespace(text)
    return Move("checkpoint", (facts.VarsCheckpointed(vars=names),), payloads=(part,))


def _reserve(state: State) -> Move:
    key = f"r-{state.seq}"
    return Move(
        "reserve and settle",
        (
            facts.BudgetReserved(reservation=key, usd="0.10", tokens=100),
            facts.BudgetSettled(reservation=key, usd="0.02", tokens=20),
        ),
    )


def _artifact(state: State, text: str) -> Fact:
    return run_facts.ArtifactWritten(
        node="draft", version=state.next_version("draft"), data=slot({"body": text}, "artifact")
    )


def _compact(state: State, text: str) -> Move:
    briefing = facts.SessionCompacted(
        message=state.next("message"), content=slot("so far: " + text, "message")
    )
    draft = HeadDraft(kind="compaction", compact_from=state.seq + 1)
    return Move("compact", (briefing,), head=draft)


def _relate(state: State) -> Move:
    edge = EdgeDraft(
        type="invocation",
        from_session="parent-1",
        to_session=state.session,
        to_head=state.head,
        call_id="call-1",
    )
    return Move("relate", edges=(edge,))
