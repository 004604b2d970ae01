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
from holdfast.core.errors import HoldfastError
from holdfast.core.facts import CallRequested, CallResolved, Fact
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.kernels.port import CallKey, Encoded, HostAnswer, HostCall, HostFunction, RecordedCall
from holdfast.runtime import budget
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.calls import Ledger, Recorded, files_of, nanoseconds
from holdfast.runtime.children import Children, whole_value
from holdfast.runtime.engine import Engine
from holdfast.runtime.scope import Guards
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.spawning import ChildDraft, Spawning, Wish, wish_of
from holdfast.runtime.tools import Tool

_OPTIONS = (
    "inputs=None, output=None, model=None, agent=None, harness=None, capability=None, budget=None"
)
FUNCTIONS = (
    HostFunction("rlm", signature=f"(task: str, *, {_OPTIONS}) -> dict"),
    HostFunction("map_rlm", signature=f"(tasks: list[str], *, {_OPTIONS}) -> list"),
    HostFunction("attach_rlm", signature=f"(source: str | dict, task: str, *, {_OPTIONS}) -> dict"),
    HostFunction("open_value", pure=True, signature="(found: dict) -> object"),
)
BUDGET = HostFunction("budget", pure=True, signature="() -> dict")
NAMES = frozenset(function.name for function in (*FUNCTIONS, BUDGET))


@dataclass(slots=True)
class ChildHandler:
    """The child calls of one evaluation."""

    ledger: Ledger
    engine: Engine
    shortage: Shortage
    children: Children
    agents: Mapping[str, Tool] = field(default_factory=dict)
    """Agents that were given as tools, by the name under which code calls them."""
    _items: dict[CallKey, dict[int, Recorded]] = field(init=False)
    _spawning: Spawning = field(init=False)

    def __post_init__(self) -> None:
        self._items = self.ledger.children
        self._spawning = Spawning(self.engine, self.ledger.journal, self.shortage)

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
        """Answer one call of the cell that gives out tasks, once all its children have ended."""
        if call.function == BUDGET.name:
            told = budget.told(self.blueprint.settings, self.ledger.journal.state)
            return await self.ledger.pure(
                call, "ok", Encoded(*values.encode(told)), None, keep=True
            )
        if call.function == "open_value":
            return await self._opened(call)
        if call.key not in self._items:
            try:
                wish = self._wish(call)
                self._spawning.check(call.function, wish)
                await self.ledger.keep_files(call)
                drafts = await self._drafts(call, wish) if wish.tasks else []
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

    async def _opened(self, call: HostCall) -> HostAnswer:
        """Answer with the whole value of a child, which its envelope may only refer to.

        The bytes are stored once, by their content: the parent's log gets one more ref to them.
        """
        try:
            found = _envelope(*call.args, **call.kwargs)
            if found.get("ref") is None:
                value = Encoded(*values.encode(found["value"]))
                return await self.ledger.pure(call, "ok", value, None, keep=True)
            await self._spawning.check_reach(found["session"])
            store = self.ledger.journal.store
            stored = await whole_value(store, found["session"], found["ref"])
        except (TypeError, HoldfastError) as error:
            return await self._refused(call, type(error).__name__, error)
        value = Encoded(stored.encoding, stored.data or b"")
        return await self.ledger.pure(call, "ok", value, None, keep=True)

    async def _refused(self, call: HostCall, name: str, error: Exception) -> HostAnswer:
        """Answer a call that is not carried out, so that a re-run of the cell is told the same."""
        return await self.ledger.pure(call, "error", None, f"{name}: {error}", keep=True)

    def _wish(self, call: HostCall) -> Wish:
        """Return what a call asks for; raise TypeError as Python would."""
        tool = self.agents.get(call.function)
        if tool is None:
            wish = _arguments(call)
        else:
            wish = wish_of(tool, tool.bind(call.args, call.kwargs))
        return _redacted(self.engine.guards, wish)

    async def _drafts(self, call: HostCall, wish: Wish) -> list[ChildDraft]:
        ledger = self.ledger
        base = ledger.requested(call, executor="server", effect="idempotent", kind="child")
        first = replace(base, width=len(wish.tasks), contents=ledger.contents())
        intents = [
            replace(
                first if index == 0 else replace(first, files=[], contents={}),
                call_id=item_id(base.call_id, index, call.function),
                index=index,
            )
            for index in range(len(wish.tasks))
        ]
        return await self._spawning.drafts(intents, wish)

    async def _request(self, call: HostCall, wish: Wish, drafts: Sequence[ChildDraft]) -> None:
        """Record the call: each item with its child's first record and its grant."""
        ledger = self.ledger
        payloads: list[Slot] = []  # what the first records refer to, known once there is a grant
        written: list[CallRequested] = []
        driven = ledger.driven_ms()

        def build(state: State) -> list[Fact]:
            grant = self._spawning.grant(state, len(drafts), wish.budget)
            facts: list[Fact] = ledger.unsaved()
            written.clear()
            payloads.clear()
            for draft in drafts:
                made, parts = draft.facts(state, grant, driven if draft is drafts[0] else None)
                payloads.extend(parts)
                facts += made
                written.extend(fact for fact in made if isinstance(fact, CallRequested))
            return facts

        source = wish.source if wish.source != ledger.journal.session else None
        await ledger.journal.append(build, payloads=payloads, adopt_from=source)
        self._items[call.key] = {item.index: Recorded(item) for item in written}

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


def _redacted(guards: Guards, wish: Wish) -> Wish:
    """Return a wish as it is stored and worked."""
    if not guards.active:
        return wish
    return replace(
        wish,
        tasks=[guards.redacted_text("message", task) for task in wish.tasks],
        inputs=[
            {name: guards.redacted("input", value) for name, value in given.items()}
            for given in wish.inputs
        ],
    )


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


def _envelope(found: Any) -> dict[str, Any]:
    """Return an envelope that code hands in, as `rlm` gave it out."""
    if not isinstance(found, dict) or not ("value" in found or "ref" in found):
        raise TypeError("open_value() takes what rlm returned, or one of what map_rlm returned")
    if found.get("ref") is not None and not (
        isinstance(found["ref"], str) and isinstance(found.get("session"), str)
    ):
        raise TypeError("open_value() takes a ref together with its session, as rlm returned them")
    return found


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
