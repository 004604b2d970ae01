"""Shortage: a child that runs short asks its parent for more, through the parent's inbox.

The question is a call in the child's log with a deadline, posted in the batch that records it.
Whoever admits it at the parent answers from what is free there, without a model or a cell: the
child's reservation grows in the parent's log and the answer is posted in the same batch. At the
child the answer raises its limits as one `session.configured`, so both survive a kill. What the
author of the call set as a budget is never raised, and what is denied once stays denied in its
turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from holdfast.core.events import now
from holdfast.core.facts import (
    BudgetReserved,
    CallRequested,
    CallResolved,
    CallSuspended,
    Fact,
    InputAdmitted,
    SessionConfigured,
)
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import State, call_reservation
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.children import OWN_KEYS, Posts, requested
from holdfast.runtime.handlers.question import deadline_after
from holdfast.runtime.journal import Journal
from holdfast.stores.port import InboxDraft, InboxItem

ASK_SECONDS = 30
"""How long a child waits for more; nobody has to think about it, so whoever is there is quick."""
PREFIX = "budget-"
_NAMES = {limit: name for name, limit in budget.LIMITS.items()}


def open_question(state: State) -> bool:
    """Tell whether a session waits for what its parent says of its budget."""
    return any(call.kind == "budget" for call in state.calls.values())


@dataclass(slots=True)
class Shortage:
    """What a session does about a limit that is used up: it asks its parent, if it has one."""

    journal: Journal
    blueprint: Blueprint
    tell: Callable[[str], None]
    """Lets the parent look into its inbox, where it is driven by this process."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _denied: set[str] = field(default_factory=set)

    async def ask(self, excess: budget.Excess) -> bool:
        """Ask for more of a limit; False where nobody can be asked, or has said no.

        The session is suspended then until its parent has answered.
        """
        state = self.journal.state
        parent, name = state.parent, _NAMES.get(excess.limit)
        # Only the turn that the parent's call is owed is paid for by the parent.
        if parent is None or name is None or excess.unknown or state.counters.get("turn", 0) > 1:
            return False
        if name not in state.grant or await self._was_denied(name):
            return False
        posts: Posts = []

        def build(state: State) -> list[Fact]:
            call_id = f"{PREFIX}{name}-{state.next('call')}"
            wants = {name: state.grant[name]}
            content = {"session": state.session, "call": call_id, "wants": wants}
            key = f"{OWN_KEYS}budget:{state.session}:{call_id}"
            posts[:] = [
                (
                    parent["session"],
                    InboxDraft(
                        key=key,
                        kind="budget",
                        call_id=parent["call"],
                        content=slot(content, "input"),
                    ),
                )
            ]
            deadline = deadline_after(now(), ASK_SECONDS)
            intent = CallRequested(
                call_id=call_id,
                name="budget",
                executor="server",
                effect="idempotent",
                kind="budget",
                arguments=slot(wants, "arguments"),
                turn=None if state.turn is None else state.turn.turn,
                deadline=deadline,
            )
            return [intent, CallSuspended(call_id=call_id, kind="budget", deadline=deadline)]

        await self.journal.append(build, posts=posts)
        self.tell(parent["session"])
        return True

    async def relieved(self, excess: budget.Excess, known: Blueprint) -> bool:
        """Ask for more from within a cell, and wait; tell whether there is more than was known."""
        async with self._asking:  # of many calls that run short at once, one asks
            if self.blueprint is not known:
                return True
            name = _NAMES.get(excess.limit, "")
            if name in self._denied or not await self.ask(excess):
                return False
            for call in list(self.journal.state.calls.values()):
                if call.kind == "budget":
                    await self._answered(call.call_id)
            before = self.blueprint
            self.blueprint = await blueprints.load(
                self.journal.store, self.journal.session, self.journal.state.configured
            )
            if self.blueprint.settings != before.settings:
                return True
            self.blueprint = before
            self._denied.add(name)
            return False

    async def _answered(self, call_id: str) -> None:
        """Wait for an answer in place, no longer than its deadline."""
        outcome = self.journal.outcome(call_id)
        await asyncio.wait({outcome}, timeout=ASK_SECONDS)
        expired = CallResolved(call_id=call_id, outcome="expired", wait=1)
        if not outcome.done() and call_id in self.journal.state.calls:
            await self.journal.append(lambda state: [expired] if call_id in state.calls else [])

    async def _was_denied(self, name: str) -> bool:
        """Tell whether the open turn was told that there is no more of this."""
        turn = self.journal.state.turn
        after = 0 if turn is None else turn.started_seq - 1
        store, session = self.journal.store, self.journal.session
        while page := await store.read_events(session, after=after, types=[CallResolved.TYPE]):
            for event in page:
                about = str(event.data["call_id"]).startswith(f"{PREFIX}{name}-")
                if about and event.data["outcome"] != "ok":
                    return True
            after = page[-1].seq
        return False


async def posted_again(journal: Journal) -> Posts:
    """Return the questions about the budget that are open: their posts may have been lost."""
    state, found = journal.state, Posts()
    for call in state.calls.values():
        if call.kind == "budget" and state.parent is not None:
            request = await requested(journal.store, journal.session, call)
            wants = await journal.value(request.arguments)
            content = {"session": state.session, "call": call.call_id, "wants": wants}
            draft = InboxDraft(
                key=f"{OWN_KEYS}budget:{state.session}:{call.call_id}",
                kind="budget",
                call_id=state.parent["call"],
                content=slot(content, "input"),
            )
            found.append((state.parent["session"], draft))
    return found


async def answer(journal: Journal, item: InboxItem, told: InputAdmitted) -> None:
    """Answer a child that asks for more, from what is free here."""
    content: Any = None if item.content is None else await journal.value(item.content)
    plan = await blueprints.load(journal.store, journal.session, journal.state.configured)
    set_by_author = await _set_by_author(journal, item.call_id or "")
    posts: Posts = []

    def build(state: State) -> list[Fact]:
        key = call_reservation(item.call_id or "")
        aside = state.reserved.get(key)
        if not isinstance(content, dict) or aside is None or aside.child != content["session"]:
            posts[:] = []  # it has ended, or was never ours
            return [told]
        free = budget.free(plan.settings, state)
        more = _more(content["wants"], free, set_by_author)
        said: dict[str, Any] = {"value": more}
        if not more:
            said = {"error": f"nothing more is free of {', '.join(content['wants'])}"}
        posts[:] = [
            (
                content["session"],
                InboxDraft(
                    key=f"{OWN_KEYS}answer:{content['call']}",
                    kind="answer",
                    call_id=content["call"],
                    wait=1,
                    content=slot(said, "answer"),
                    by=state.session,
                ),
            )
        ]
        if not more:
            return [told]
        grown = BudgetReserved(
            reservation=key,
            child=aside.child,
            usd=aside.usd,
            tokens=aside.tokens,
            calls=aside.calls,
            seconds=aside.seconds,
        )
        sums: dict[str, Any] = {
            name: budget.summed(name, getattr(aside, name) or 0, amount)
            for name, amount in more.items()
        }
        return [told, replace(grown, **sums)]

    await journal.append(build, posts=posts, consumes=[item.key])


def _more(
    wants: dict[str, Any], free: dict[str, Decimal], set_by_author: frozenset[str]
) -> budget.Grant:
    """Return what a child gets of what it wants: no more than is free, and never half a unit."""
    found: budget.Grant = {}
    for name, amount in wants.items():
        if name not in free or name in set_by_author:
            continue
        share = min(Decimal(str(amount)), budget.share(name, free[name], 1))
        if share > 0:
            found[name] = budget.written(name, share)
    return found


async def _set_by_author(journal: Journal, call_id: str) -> frozenset[str]:
    """Return the limits that the code which made a call set for its children."""
    call = journal.state.calls.get(call_id)
    if call is None:
        return frozenset()
    asked: Any = await journal.value(
        (await requested(journal.store, journal.session, call)).arguments
    )
    return frozenset(asked.get("budget") or ())


async def raised(journal: Journal, more: budget.Grant) -> tuple[list[Fact], list[Slot]]:
    """Return what raises the limits of a session by what its parent granted."""
    plan = await blueprints.load(journal.store, journal.session, journal.state.configured)
    settings = plan.settings
    limits = {
        budget.LIMITS[name]: budget.summed(name, getattr(settings, budget.LIMITS[name]), amount)
        for name, amount in more.items()
    }
    changes = {limit: [getattr(settings, limit), new] for limit, new in limits.items()}
    grown: dict[str, Any] = dict(limits)
    item, payloads = replace(plan, settings=replace(settings, **grown)).slots()
    parent = journal.state.parent or {}
    fact = SessionConfigured(
        settings=item, changes=slot(changes, "settings"), by=parent.get("session")
    )
    return [fact], payloads
