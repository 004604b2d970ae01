"""Child calls from code: `rlm`, `map_rlm`, `attach_rlm`, each answered by sessions of their own.

The call is recorded with the child's whole first record and its grant before the child exists, and
it waits from its start: the cell is paused in place while its children are quick, given up where
they are not, and run again with their answers. Items of one call are one wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import values
from holdfast.core.capability import Capability, profile
from holdfast.core.errors import HoldfastError, SessionNotFound
from holdfast.core.facts import (
    BudgetReserved,
    CallRequested,
    CallResolved,
    CallSuspended,
    Fact,
    SessionStarted,
)
from holdfast.core.forms import data_of
from holdfast.core.payloads import Slot, from_record, manifest, slot
from holdfast.core.state import State, call_reservation
from holdfast.kernels.port import CallKey, Encoded, HostAnswer, HostCall, HostFunction, RecordedCall
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget, inputs
from holdfast.runtime import tools as tool_module
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.calls import Ledger, Recorded, files_of, nanoseconds
from holdfast.runtime.children import Children, child_id
from holdfast.runtime.engine import Engine
from holdfast.runtime.forks import Derived, derive
from holdfast.runtime.settings import Settings, resolve
from holdfast.runtime.shortage import Shortage
from holdfast.stores.port import SessionStore

_OPTIONS = (
    "inputs=None, output=None, model=None, agent=None, harness=None, capability=None, budget=None"
)
FUNCTIONS = (
    HostFunction("rlm", signature=f"(task: str, *, {_OPTIONS}) -> dict"),
    HostFunction("map_rlm", signature=f"(tasks: list[str], *, {_OPTIONS}) -> list"),
    HostFunction("attach_rlm", signature=f"(source: str | dict, task: str, *, {_OPTIONS}) -> dict"),
)
BUDGET = HostFunction("budget", pure=True, signature="() -> dict")
NAMES = frozenset(function.name for function in (*FUNCTIONS, BUDGET))


@dataclass(frozen=True, slots=True)
class Wish:
    """What a call asks for: tasks with their inputs, and what their sessions are to be."""

    tasks: list[str]
    inputs: list[dict[str, Any]]
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


@dataclass(slots=True)
class ChildHandler:
    """The child calls of one evaluation."""

    ledger: Ledger
    engine: Engine
    shortage: Shortage
    children: Children
    _items: dict[CallKey, dict[int, Recorded]] = field(init=False)

    def __post_init__(self) -> None:
        self._items = self.ledger.children

    @property
    def blueprint(self) -> Blueprint:
        """Return what the session is driven with now."""
        return self.shortage.blueprint

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return the calls that the log can answer in full, by the position of the last answer."""
        found: list[tuple[int, RecordedCall]] = []
        contents = await self.ledger.kept_contents() if self._items else {}
        for key, items in self._items.items():
            answer = None
            if all(item.resolved is not None for item in items.values()):
                answer = await self._answer(key.function, items)
            files = files_of(items[0].request.files, contents)
            last = max(item.seq for item in items.values()) if answer else 2**53
            found.append((last, RecordedCall(*key, pure=False, answer=answer, files=files)))
        return found

    async def call(self, call: HostCall) -> HostAnswer:
        """Answer one `rlm` or `map_rlm` of the cell, once all its children have ended."""
        if call.function == BUDGET.name:
            told = budget.told(self.blueprint.settings, self.ledger.journal.state)
            return await self.ledger.pure(
                call, "ok", Encoded(*values.encode(told)), None, keep=True
            )
        if call.key not in self._items:
            try:
                wish = self._wish(call)
                await self.ledger.keep_files(call)
                drafts = [await self._draft(call, wish, at) for at in range(len(wish.tasks))]
            except (TypeError, ValueError) as error:
                return await self._refused(call, type(error).__name__, error)
            except HoldfastError as error:  # nothing is recorded yet
                return await self._refused(call, type(error).__name__, error)
            if not drafts:
                nothing = Encoded(*values.encode([]))
                return await self.ledger.pure(call, "ok", nothing, None, keep=True)
            while call.key not in self._items:
                known = self.blueprint
                try:
                    await self._request(call, wish, drafts)
                except budget.Exceeded as error:
                    if not await self.shortage.relieved(error.excess, known):
                        return await self._refused(call, "BudgetExceeded", error)
        items = self._items[call.key]
        self.children.take_up()
        journal = self.ledger.journal
        waits = {
            index: journal.outcome(item.request.call_id)
            for index, item in items.items()
            if item.request.call_id in journal.state.calls
        }
        if waits:
            call.suspend()
            await asyncio.wait(waits.values())
        for index, outcome in waits.items():
            event = outcome.result()
            fact = event.fact()
            assert isinstance(fact, CallResolved)
            item = items[index]
            item.resolved, item.seq, item.at = fact, event.seq, event.at
        return await self._answer(call.function, items)

    async def _refused(self, call: HostCall, name: str, error: Exception) -> HostAnswer:
        """Answer a call that is not carried out, so that a re-run of the cell is told the same."""
        return await self.ledger.pure(call, "error", None, f"{name}: {error}", keep=True)

    def _wish(self, call: HostCall) -> Wish:
        """Return what a call asks for; raise what the author of the cell did wrong."""
        settings, state = self.blueprint.settings, self.ledger.journal.state
        wish = _arguments(call)
        if len(wish.tasks) > settings.max_fanout:
            raise ValueError(
                f"map_rlm got {len(wish.tasks)} tasks; at most {settings.max_fanout} go in one "
                "call (max_fanout): split them into smaller lists"
            )
        if state.depth >= settings.max_depth:
            raise ValueError(
                f"{call.function} would start a session at depth {state.depth + 1}; sessions go "
                f"{settings.max_depth} deep (max_depth): do the work here, or use lm"
            )
        for given in wish.inputs:
            inputs.check_names(given)
        budget.wishes(wish.budget or {})
        return wish

    async def _request(self, call: HostCall, wish: Wish, drafts: Sequence[ChildDraft]) -> None:
        """Record the call: each item with its child's first record and its grant."""
        ledger = self.ledger
        payloads: list[Slot] = []  # what the first records refer to, known once there is a grant
        written: list[CallRequested] = []

        def build(state: State) -> list[Fact]:
            grant = budget.grant(self.blueprint.settings, state, len(drafts), wish.budget)
            facts: list[Fact] = ledger.unsaved()
            written.clear()
            payloads.clear()
            for draft in drafts:
                start, parts = _start(draft, state, grant)
                payloads.extend(parts)
                intent = replace(draft.intent, start=start, grant=grant)
                written.append(intent)
                facts += [
                    intent,
                    BudgetReserved(
                        reservation=call_reservation(intent.call_id),
                        child=intent.child,
                        **grant,  # type: ignore[arg-type]
                    ),
                    CallSuspended(call_id=intent.call_id, kind="child"),
                ]
            return facts

        source = wish.source if wish.source != ledger.journal.session else None
        await ledger.journal.append(build, payloads=payloads, adopt_from=source)
        self._items[call.key] = {item.index: Recorded(item) for item in written}

    async def _draft(self, call: HostCall, wish: Wish, index: int) -> ChildDraft:
        ledger, journal = self.ledger, self.ledger.journal
        base = ledger.requested(call, executor="server", effect="idempotent", kind="child")
        call_id = item_id(base.call_id, index, call.function)
        child = child_id(journal.session, call_id)
        asked = {"task": wish.tasks[index], "inputs": wish.inputs[index], "output": wish.output}
        if wish.budget:
            asked["budget"] = wish.budget
        intent = replace(
            base,
            call_id=call_id,
            arguments=slot(asked, "arguments"),
            files=base.files if index == 0 else [],
            contents=ledger.contents() if index == 0 else {},
            index=index,
            width=len(wish.tasks),
            child=child,
        )
        derived, source = None, None
        if wish.source is not None:
            await self._check_reach(wish.source)
            derived = await derive(journal.store, wish.source, wish.head)
            source = await blueprints.load(journal.store, wish.source)
            above = await journal.store.load_state(wish.source)
            wish = replace(wish, agent=wish.agent or above.agent)
        agent = self.engine.agent(wish.agent or journal.state.agent)
        return ChildDraft(intent, await self._plan(wish, agent, child, source), agent, derived)

    async def _check_reach(self, source: str) -> None:
        """Refuse a session that is neither of the tree nor among what the caller handed in."""
        journal = self.ledger.journal
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

    async def _plan(
        self, wish: Wish, agent: Agent[Any], child: str, source: Blueprint | None
    ) -> Blueprint:
        """Return what a child is driven with: what its parent has, but never more than that."""
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
            seed=int.from_bytes(values.encode(child)[1][-6:], "big"),
            store=self.ledger.journal.store,
            depth=self.ledger.journal.state.depth + 1,
        )

    def _capability(self, wish: Wish, agent: Agent[Any], settings: Settings) -> Capability:
        mine = self.blueprint.capability
        if wish.agent is not None:
            tools = tuple(
                tool_module.path(item, one) for item in agent.toolsets for one in item.tools
            )
            mine = mine.meet(profile(settings.profile, settings.work_area, tools))  # type: ignore[arg-type]
        if wish.capability:
            mine = mine.clamp(Capability.from_record(mine.to_record() | wish.capability))
        return mine

    async def _answer(self, function: str, items: Mapping[int, Recorded]) -> HostAnswer:
        journal = self.ledger.journal
        at = max((item.at for item in items.values()), default=journal.state.updated_at)
        if function != "map_rlm":
            done = items[0].resolved
            assert done is not None
            if done.outcome == "ok" and done.result is not None:
                stored = await journal.hydrate(done.result)
                return HostAnswer.ok(Encoded(stored.encoding, stored.data or b""), nanoseconds(at))
            error = str(await journal.value(done.error)) if done.error else ""
            name, _, message = (error or f"CallError: the child was {done.outcome}").partition(": ")
            return HostAnswer.failed(name, message, nanoseconds(at))
        found = [await self._slot(index, items[index]) for index in sorted(items)]
        return HostAnswer.ok(Encoded(*values.encode(found)), nanoseconds(at))

    async def _slot(self, index: int, item: Recorded) -> Any:
        done = item.resolved
        assert done is not None
        known: Any = await self.ledger.journal.value(done.result) if done.result else {}
        if done.outcome == "ok":
            return known
        why = known.get("error") or f"the child was {done.outcome}"
        return {"failed": True, "index": index, **known, "error": why}


def item_id(call_id: str, index: int, function: str) -> str:
    """Return the id of one item of a call."""
    return f"{call_id}-i{index}" if function == "map_rlm" else call_id


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


def _start(draft: ChildDraft, state: State, grant: budget.Grant) -> tuple[Slot, list[Slot]]:
    """Return a child's first record, as its parent's call has it, and what it refers to."""
    intent, agent = draft.intent, draft.agent
    settings = budget.within(draft.blueprint.settings, grant)
    item, parts = replace(draft.blueprint, settings=settings).slots()
    started = SessionStarted(
        tenant=state.tenant,
        kind="child",
        agent=agent.name,
        agent_version=agent.version,
        settings=item,
        cache_id=intent.child,
        parent={"session": state.session, "call": intent.call_id},
        depth=state.depth + 1,
        grant=grant,
    )
    if draft.derived is not None:
        started = draft.derived.onto(started)
        parts = [*parts, draft.derived.transcript, *draft.derived.payloads]
    start = manifest(data_of(started), "settings")
    return start, [item, *parts]


def _arguments(call: HostCall) -> Wish:
    """Return the arguments of a call; raise TypeError as Python would."""

    def rlm(
        task: Any,
        *,
        inputs: Any = None,
        output: Any = None,
        model: Any = None,
        agent: Any = None,
        harness: Any = None,
        capability: Any = None,
        budget: Any = None,
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        return [task], [inputs], (output, model, agent, harness, capability, budget)

    def map_rlm(
        tasks: Any,
        *,
        inputs: Any = None,
        output: Any = None,
        model: Any = None,
        agent: Any = None,
        harness: Any = None,
        capability: Any = None,
        budget: Any = None,
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        return tasks, inputs, (output, model, agent, harness, capability, budget)

    def attach_rlm(source: Any, task: Any, **options: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        return rlm(task, **options)

    rlm.__qualname__, map_rlm.__qualname__ = "rlm", "map_rlm"
    attach_rlm.__qualname__ = "attach_rlm"
    function = call.function
    known: dict[str, Any] = {"rlm": rlm, "map_rlm": map_rlm, "attach_rlm": attach_rlm}
    tasks, given, rest = known[function](*call.args, **call.kwargs)
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, str) for task in tasks):
        what = "a list of strings" if function == "map_rlm" else "a string"
        raise TypeError(f"{function}() takes its task as {what}")
    wish = Wish(list(tasks), _inputs(function, given, len(tasks)), *_options(function, rest))
    if function != "attach_rlm":
        return wish
    source: Any = call.kwargs["source"] if "source" in call.kwargs else call.args[0]
    head = None
    if isinstance(source, dict):
        source, head = source.get("session"), source.get("head")
    if not isinstance(source, str) or not isinstance(head, str | None):
        raise TypeError("attach_rlm() takes source as a session id, or as what rlm returned")
    return replace(wish, source=source, head=head)


def _inputs(function: str, given: Any, width: int) -> list[dict[str, Any]]:
    """Return the inputs of each task: one set for all, or one each."""
    sets: Sequence[Any] = given if isinstance(given, list | tuple) else [given] * width
    if len(sets) != width:
        raise ValueError(f"{function}() got {len(sets)} sets of inputs for {width} tasks")
    if not all(one is None or isinstance(one, dict) for one in sets):
        raise TypeError(f"{function}() takes inputs as a dict of variables, or a list of them")
    return [dict(one or {}) for one in sets]


def _options(function: str, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    output, model, agent, harness, capability, grant = rest
    if harness not in (None, "code", "tools"):
        raise TypeError(f"{function}() takes harness as 'code' or 'tools'")
    for name, value, kind in (
        ("model", model, str),
        ("agent", agent, str),
        ("capability", capability, dict),
        ("budget", grant, dict),
    ):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{function}() takes {name} as a {kind.__name__}")
    if output is not None and not (output in ("text", "json") or isinstance(output, dict)):
        raise TypeError(f"{function}() takes output as 'text', 'json' or a schema")
    return output, model, agent, harness, capability, grant
