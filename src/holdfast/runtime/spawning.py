"""Spawning: from what a call asks for to the first record of each child, and its grant.

Calls from code and native tool calls come here alike. A child is driven with what its parent has
and never with more: settings within its limits, tools and gates by meet, spend within a grant that
the batch of the call sets aside. Nothing is created here: whoever looks after the open call makes
the child from what the batch recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import values
from holdfast.core.capability import Capability, profile
from holdfast.core.errors import SessionNotFound
from holdfast.core.facts import BudgetReserved, CallRequested, CallSuspended, Fact, SessionStarted
from holdfast.core.forms import data_of
from holdfast.core.payloads import Slot, from_record, manifest, slot
from holdfast.core.state import State, call_reservation
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget as budgets
from holdfast.runtime import inputs
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.budget import Grant
from holdfast.runtime.children import child_id
from holdfast.runtime.engine import Engine
from holdfast.runtime.forks import Derived, derive
from holdfast.runtime.journal import Journal
from holdfast.runtime.settings import Settings, resolve
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.tools import Tool
from holdfast.stores.port import SessionStore


@dataclass(frozen=True, slots=True)
class Wish:
    """What a call asks for: tasks with their inputs, and what their sessions are to be."""

    tasks: Sequence[str]
    inputs: Sequence[dict[str, Any]]
    output: Any = None
    model: str | None = None
    agent: str | None = None
    harness: str | None = None
    capability: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    source: str | None = None  # the session that the child goes on from
    head: str | None = None  # of it; None is its current one


@dataclass(frozen=True, slots=True)
class ChildDraft:
    """The intent of one item, with what its child is driven with and goes on from."""

    intent: CallRequested
    blueprint: Blueprint
    agent: Agent[Any]
    derived: Derived | None = None
    budget: dict[str, Any] | None = None  # what its author wants it to spend at most

    def facts(
        self, state: State, grant: Grant, driven_ms: int | None = None
    ) -> tuple[list[Fact], list[Slot]]:
        """Return what records the call, its grant and its wait, and what they refer to.

        `driven_ms` is how long the cell that makes the call was driven until now.
        """
        start, parts = self._start(state, grant)
        call_id = self.intent.call_id
        reserved = BudgetReserved(
            reservation=call_reservation(call_id),
            child=self.intent.child,
            **grant,  # type: ignore[arg-type]
        )
        intent = replace(self.intent, start=start, grant=grant)
        wait = CallSuspended(call_id=call_id, kind="child", driven_ms=driven_ms)
        return [intent, reserved, wait], parts

    def _start(self, state: State, grant: Grant) -> tuple[Slot, list[Slot]]:
        """Return the child's first record, as its parent's call has it, and what it refers to."""
        settings = budgets.within(self.blueprint.settings, grant)
        item, parts = replace(self.blueprint, settings=settings).slots()
        started = SessionStarted(
            tenant=state.tenant,
            kind="child",
            agent=self.agent.name,
            agent_version=self.agent.version,
            settings=item,
            cache_id=self.intent.child,
            parent={"session": state.session, "call": self.intent.call_id},
            depth=state.depth + 1,
            grant=grant,
        )
        if self.derived is not None:
            started = self.derived.onto(started)
            parts = [*parts, self.derived.transcript, *self.derived.payloads]
        return manifest(data_of(started), "settings"), [item, *parts]


@dataclass(frozen=True, slots=True)
class Spawning:
    """What drafts the children of one session."""

    engine: Engine
    journal: Journal
    shortage: Shortage

    @property
    def blueprint(self) -> Blueprint:
        """Return what the session is driven with now."""
        return self.shortage.blueprint

    def check(self, function: str, wish: Wish) -> None:
        """Raise what the author of a call did wrong, in words that name the limit."""
        settings, state = self.blueprint.settings, self.journal.state
        if len(wish.tasks) > settings.max_fanout:
            raise ValueError(
                f"{function} got {len(wish.tasks)} tasks; at most {settings.max_fanout} go in one "
                "call (max_fanout): split them into smaller lists"
            )
        if state.depth >= settings.max_depth:
            raise ValueError(
                f"{function} would start a session at depth {state.depth + 1}; sessions go "
                f"{settings.max_depth} deep (max_depth): do the work here, or use lm"
            )
        for given in wish.inputs:
            inputs.check_names(given)
        budgets.wishes(wish.budget or {})

    async def drafts(self, intents: Sequence[CallRequested], wish: Wish) -> list[ChildDraft]:
        """Return the draft of each item of a call, whose intents have their ids and places."""
        store = self.journal.store
        derived, source = None, None
        if wish.source is not None:
            await self.check_reach(wish.source)
            derived = await derive(store, wish.source, wish.head)
            source = await blueprints.load(store, wish.source)
            above = await store.load_state(wish.source)
            wish = replace(wish, agent=wish.agent or above.agent)
        agent = self.engine.agent(wish.agent or self.journal.state.agent)
        plan = await self._plan(wish, agent, source)
        found = []
        for item, intent in enumerate(intents):
            child = child_id(self.journal.session, intent.call_id)
            asked = {"task": wish.tasks[item], "inputs": wish.inputs[item], "output": wish.output}
            if wish.budget:
                asked["budget"] = wish.budget
            intent = replace(intent, arguments=slot(asked, "arguments"), child=child)
            seed = int.from_bytes(values.encode(child)[1][-6:], "big")
            found.append(ChildDraft(intent, replace(plan, seed=seed), agent, derived, wish.budget))
        return found

    def grant(self, state: State, width: int, wish: dict[str, Any] | None) -> Grant:
        """Return what each of so many children may spend; Exceeded where too little is left."""
        return budgets.grant(self.blueprint.settings, state, width, wish)

    async def check_reach(self, source: str) -> None:
        """Refuse a session that is neither of the tree nor among what the caller handed in."""
        journal = self.journal
        theirs = await _root(journal.store, source)
        if theirs == await _root(journal.store, journal.session):
            return
        turn = journal.state.turn
        assert turn is not None
        at = turn.started_seq
        page = await journal.store.read_events(journal.session, after=at - 1, before=at + 1)
        given = page[0].data.get("inputs", {}) if page else {}
        for record in given.values():
            if source in _named(await journal.value(from_record(record))):
                return
        raise SessionNotFound(
            f"session {source!r} is not here; attach to a session of this tree, or to one that "
            "was handed in as an input"
        )

    async def _plan(self, wish: Wish, agent: Agent[Any], source: Blueprint | None) -> Blueprint:
        """Return what children are driven with: what their parent has, but never more than that."""
        mine = self.blueprint
        settings = mine.settings
        if source is not None:
            settings = narrowed(settings, source.settings)
        elif wish.agent is not None:
            given = settings.to_record() | {"instructions": "", "profile": settings.profile}
            given |= agent.given()
            settings = narrowed(settings, resolve(given, environment={}).settings)
        if wish.model is not None:
            self.engine.model(wish.model)
            settings = replace(settings, model=wish.model)
        capability = self._capability(wish, agent, settings)
        if source is not None:
            capability = capability.meet(source.capability)
        card = ""
        if wish.harness is not None:
            settings = replace(settings, harness=wish.harness)
        if settings.harness == "code":
            card = (await self.engine.kernels.choose(settings.kernel, capability)).card
        return blueprints.draft(
            settings,
            agent,
            kernel_card=card,
            capability=capability,
            seed=0,
            store=self.journal.store,
            depth=self.journal.state.depth + 1,
        )

    def _capability(self, wish: Wish, agent: Agent[Any], settings: Settings) -> Capability:
        mine = self.blueprint.capability
        if wish.agent is not None:
            tools = blueprints.tool_paths(agent)
            mine = mine.meet(profile(settings.profile, settings.work_area, tools))  # type: ignore[arg-type]
        if wish.capability:
            mine = mine.clamp(Capability.from_record(mine.to_record() | wish.capability))
        return mine


def wish_of(tool: Tool, arguments: Mapping[str, Any]) -> Wish:
    """Return what a call of an agent that was given as a tool asks for."""
    assert tool.delegate is not None
    task, given = arguments["task"], arguments.get("inputs")
    if not isinstance(task, str):
        raise TypeError(f"{tool.name}() takes its task as a string")
    if not isinstance(given, dict | None):
        raise TypeError(f"{tool.name}() takes inputs as a dict of variables")
    return Wish(
        tasks=[task],
        inputs=[dict(given or {})],
        output=tool.delegate.output,
        agent=tool.delegate.agent.name,
        budget=dict(tool.delegate.budget or {}) or None,
    )


def narrowed(mine: Settings, wish: Settings) -> Settings:
    """Return settings that a child gets: those it wishes for, within the limits of its parent."""
    limits: dict[str, Any] = {
        name: min(filter(None, (getattr(mine, name), getattr(wish, name))), default=0)
        for name in ("max_steps", "turn_seconds", "max_fanout", "max_depth", "max_tokens")
    }
    return replace(wish, work_area=mine.work_area, **limits)


async def _root(store: SessionStore, session_id: str) -> str:
    """Return the session at the top of the tree that a session is in."""
    while True:
        parent = (await store.load_state(session_id)).parent
        if parent is None:
            return session_id
        session_id = parent["session"]


def _named(value: Any) -> set[str]:
    """Return the sessions that an input names: by id, or as envelopes do."""
    if isinstance(value, list | tuple):
        return {name for one in value for name in _named(one)}
    if isinstance(value, dict):
        value = value.get("session")
    return {value} if isinstance(value, str) else set()
