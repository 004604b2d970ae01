"""Repeats: what a message that was sent before under the same key came to, read from the log.

Whoever sends with a key may send again when the answer was lost on the way: the work is done once,
and the second call is answered with what the log says of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core import facts
from holdfast.core.errors import InboxConsumed
from holdfast.runtime.governor import Excess
from holdfast.runtime.results import BudgetExceeded, Failed, Final, Stopped, TimedOut, TurnResult
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate

KINDS: dict[str, type[TurnResult]] = {
    kind.STATUS: kind for kind in (Final, Failed, TimedOut, BudgetExceeded, Stopped)
}
READ = [
    kind.TYPE
    for kind in (
        facts.InputAdmitted,
        facts.TurnStarted,
        facts.BudgetExceeded,
        facts.TurnPut,
        facts.HeadPublished,
    )
]


@dataclass(slots=True)
class _Found:
    """What the log says of the message with a key, fact by fact."""

    key: str
    taken: bool = False
    turn: int | None = None
    end: facts.TurnPut | None = None
    limit: facts.BudgetExceeded | None = None
    head: str | None = None

    def see(self, fact: facts.Fact) -> None:
        match fact:
            case facts.InputAdmitted(key=key) if key == self.key:
                self.taken = True
            case facts.TurnStarted(turn=turn) if self.taken and not (self.turn or self.limit):
                self.turn = turn
            case facts.BudgetExceeded() if self.taken and not (self.limit or self.end):
                self.limit = fact
            case facts.TurnPut(turn=turn) if turn == self.turn and fact.status in KINDS:
                self.end = fact
            case facts.HeadPublished() if self.end is None or fact.turn == self.turn:
                self.head = fact.id


async def result_of(store: SessionStore, session_id: str, key: str) -> TurnResult:
    """Return the result of a message that was taken up; InboxConsumed while it has none."""
    found = _Found(key)
    after = 0
    while page := await store.read_events(session_id, after=after, types=READ):
        for event in page:
            found.see(event.fact())
        after = page[-1].seq
    extra: dict[str, Any] = {"session": session_id, "head": found.head}
    end, limit = found.end, found.limit
    if limit is not None:
        excess = Excess(limit.limit, limit.used, limit.allowed)
        extra |= {"limit": limit.limit, "used": limit.used, "allowed": limit.allowed}
        extra["error"] = excess.message
        if found.turn is None:
            return BudgetExceeded(**extra)
    if end is None:
        raise InboxConsumed(
            f"the message with key {key!r} was taken up already, as turn {found.turn} of "
            f"{session_id!r}, which has not ended: wait for it, or resume the session"
        )
    if end.final is not None:
        extra["value"] = (await hydrate(store, session_id, end.final)).value()
    elif end.error is not None and end.status in ("failed", "timed_out"):
        error: Any = (await hydrate(store, session_id, end.error)).value()
        extra["error"] = error["message"]
        if end.status == "failed":
            extra["code"] = error["code"]
    return KINDS[end.status](
        turn=end.turn,
        steps=end.steps,
        usage=end.usage or {},
        cost_usd=end.cost_usd,
        held_usd=end.held_usd,
        unknown_calls=end.unknown_calls,
        **extra,
    )
