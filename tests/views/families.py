"""Families of sessions whose logs are written by hand."""

from __future__ import annotations

from holdfast.core import facts
from holdfast.core.heads import EdgeDraft
from holdfast.core.payloads import slot
from holdfast.testing.driver import Driver, drive
from holdfast.testing.histories import finish_turn, start_turn

TOKENS = {"input_tokens": 10, "output_tokens": 5}


async def ask(driver: Driver, text: str, *, reply: str = "reply", usd: str | None = "0.1") -> str:
    """Play a turn with one model call and return its head."""
    await driver.play(start_turn(driver.state, text))
    turn, step = driver.state.turn.turn, driver.state.next("step")
    await driver.append(facts.StepStarted(step=step, turn=turn, ordinal=step, model="m"))
    await driver.append(
        facts.StepPut(step=step, turn=turn, status="replied", usage=TOKENS, cost_usd=usd),
        facts.MessageAppended(
            message=driver.state.next("message"),
            role="assistant",
            content=slot(reply, "message"),
            turn=turn,
            step=step,
        ),
    )
    return (await driver.play(finish_turn(driver.state, text))).head.id


async def call(driver: Driver, child: str, call_id: str) -> None:
    """Request a call that a child is to answer."""
    await driver.append(
        facts.CallRequested(
            call_id=call_id,
            name="rlm",
            executor="server",
            effect="idempotent",
            arguments=slot({"task": child}, "arguments"),
            child=child,
        )
    )


async def child_of(parent: Driver, session: str, call_id: str) -> Driver:
    """Start a child for a call of its parent."""
    started = facts.SessionStarted(
        kind="child", parent={"session": parent.state.session, "call": call_id}
    )
    return await drive(parent.store, session, started)


async def fork_of(source: Driver, session: str, head: str | None = None) -> Driver:
    """Start a fork at a head of its source."""
    origin = {
        "session": source.state.session,
        "head": head or source.state.head,
        "digest": source.state.digest,
    }
    return await drive(source.store, session, facts.SessionStarted(kind="fork", origin=origin))


def invocation(parent: Driver, child: Driver, call_id: str) -> EdgeDraft:
    """Return the edge from a parent's head to its child's."""
    return EdgeDraft(
        type="invocation",
        from_session=parent.state.session,
        from_head=parent.state.head,
        to_session=child.state.session,
        to_head=child.state.head,
        call_id=call_id,
    )
