"""Leaf calls: one bounded model call from code, without a session of its own.

Each item becomes one `leaf.called` event with request and reply by reference. After a kill, items
that the log has are answered from it and not paid again; only what is missing is asked. What a call
may cost is set aside in the log before it is made, so that one that a kill took with it still
counts. A leaf's ordinal is its place in the order of issue, so that a resumed session asks with the
same number.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import values
from holdfast.core.errors import HoldfastError, ModelError
from holdfast.core.facts import Fact, LeafCalled
from holdfast.core.messages import user
from holdfast.core.payloads import slot
from holdfast.core.state import State, leaf_reservation
from holdfast.kernels.port import CallKey, Encoded, HostAnswer, HostCall, HostFunction, RecordedCall
from holdfast.models.asking import ask, attempts_of
from holdfast.models.port import Model, ModelReply, ModelRequest
from holdfast.models.spend import NOTHING, Ceiling, spent
from holdfast.runtime import budget
from holdfast.runtime.calls import Ledger, files_of, nanoseconds, read_before
from holdfast.runtime.journal import Journal
from holdfast.runtime.leaf_gate import LeafGate
from holdfast.runtime.settings import Settings
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.transcript import estimate_tokens

ERROR_NAME = "CallError"

FUNCTIONS = (
    HostFunction("lm", signature="(prompt: str, system: str | None = None) -> str"),
    HostFunction("map_lm", signature="(prompts: list[str], system: str | None = None) -> list"),
)
NAMES = frozenset(function.name for function in FUNCTIONS)


Told = tuple[int, str, LeafCalled]
"""One leaf call as the log has it: position, time and fact."""


@dataclass(slots=True)
class LeafHandler:
    """The leaf calls of one evaluation."""

    ledger: Ledger
    model: Model
    shortage: Shortage
    gate: LeafGate
    first_user_text: str
    _own_gate: asyncio.Semaphore = field(init=False)  # the session's own limit
    _base: int = 0
    _taken: set[int] = field(default_factory=set)
    _bases: dict[CallKey, int] = field(default_factory=dict)
    _items: dict[CallKey, dict[int, Told]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._own_gate = asyncio.Semaphore(self.settings.leaf_concurrency)
        known = self.ledger.leaves
        answered = [(event, fact) for event, fact in known if fact.status != "unknown"]
        self._base = self.journal.state.counters.get("leaf_answered", 0) - len(answered)
        for _, fact in known:
            key = CallKey(fact.function, fact.digest, fact.occurrence)
            self._bases[key] = fact.ordinal - fact.item
            self._taken.update(range(self._bases[key], self._bases[key] + fact.width))
        for event, fact in answered:
            key = CallKey(fact.function, fact.digest, fact.occurrence)
            self._items.setdefault(key, {})[fact.item] = (event.seq, event.at, fact)

    @property
    def settings(self) -> Settings:
        """Return the settings in force: a parent may grant more while the cell runs."""
        return self.shortage.blueprint.settings

    @property
    def journal(self) -> Journal:
        """Return the log of the session."""
        return self.ledger.journal

    def _ordinals_of(self, call: HostCall, width: int) -> int:
        """Return the first of a call's ordinals: those it had before, or the first ones free."""
        base = self._bases.get(call.key)
        if base is None:
            base = self._base
            while not self._taken.isdisjoint(range(base, base + width)):
                base += 1
            self._bases[call.key] = base
            self._taken.update(range(base, base + width))
        return base

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return the calls that the log can answer in full, by the position of the last answer."""
        found: list[tuple[int, RecordedCall]] = []
        for key, items in self._items.items():
            width = max(fact.width for _, _, fact in items.values())
            last = max(seq for seq, _, _ in items.values())
            answer = None
            if len(items) == width:
                answer = await self._answer(key.function, items)
            files = files_of(items[0][2].files) if 0 in items else ()
            found.append((last, RecordedCall(*key, pure=False, answer=answer, files=files)))
        return found

    async def call(self, call: HostCall) -> HostAnswer:
        """Answer one `lm` or `map_lm` of the cell."""
        refused = refusal(call, self.settings, nanoseconds(self.journal.state.updated_at))
        if refused is not None:
            return refused
        prompts, system = _arguments(call)
        guards = self.ledger.guards
        prompts = [guards.redacted_text("message", prompt) for prompt in prompts]
        system = None if system is None else guards.redacted_text("message", system)
        known = dict(self._items.get(call.key, {}))
        base = self._ordinals_of(call, len(prompts))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    index: group.create_task(
                        self._ask(call, prompt, system, index, base + index, len(prompts))
                    )
                    for index, prompt in enumerate(prompts)
                    if index not in known
                }
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        known |= {index: task.result() for index, task in tasks.items()}
        return await self._answer(call.function, known)

    async def _ask(
        self, call: HostCall, prompt: str, system: str | None, item: int, ordinal: int, width: int
    ) -> Told:
        request = ModelRequest(
            messages=(user(prompt),),
            system=system or "",
            purpose="leaf",
            session_id=self.journal.session,
            ordinal=ordinal,
            first_user_text=self.first_user_text,
            cache_id=self.journal.state.cache_id,
            settings=self.settings.options(),
            max_output_tokens=self.settings.max_output_tokens or None,
            deadline_seconds=self.settings.leaf_timeout_seconds,
            retry=self.settings.retry,
        )
        state = self.journal.state
        affordable = budget.charged_attempts(self.settings, state, self._ceiling(request))
        request = replace(request, max_charged_attempts=affordable)
        reply: ModelReply | None = None
        error: ModelError | None = None
        async with self._own_gate, self.gate:
            try:
                await self._reserve(request)
            except budget.Exceeded as reached:
                return await self._record(call, request, item, width, excess=reached.excess)
            try:
                reply = await ask(self.model, request)
            except asyncio.CancelledError:
                # Broken off in flight: what it cost is unknown, and it will be asked again.
                with suppress(HoldfastError):
                    await self._record(call, request, item, width)
                raise
            except ModelError as problem:
                error = problem
            return await self._record(call, request, item, width, reply=reply, error=error)

    async def _reserve(self, request: ModelRequest) -> None:
        """Set a call's ceiling aside in the log, once what is in flight leaves room for it.

        It is let go with the event of the call, so that the spend limit sees every call, in flight
        or ended; only the last one can go beyond it.
        """
        ceiling = self._ceiling(request)
        tokens = ceiling.input_tokens + ceiling.output_tokens
        key = leaf_reservation(request.ordinal)

        def build(state: State) -> list[Fact]:
            aside = budget.reserve(self.settings, state, key, ceiling.usd, tokens)
            return [*self.ledger.unsaved(), aside]

        while True:
            moved, known = self.journal.moved, self.shortage.blueprint
            try:
                await self.journal.append(build)
                return
            except budget.NoRoom:
                await moved.wait()
            except budget.Exceeded as reached:
                if not await self.shortage.relieved(reached.excess, known):
                    raise

    def _ceiling(self, request: ModelRequest) -> Ceiling:
        """Return the most that one attempt at a call can cost."""
        sent = estimate_tokens(request.prompt) + estimate_tokens(request.system)
        return budget.ceiling(self.model, self.settings, sent)

    async def _record(
        self,
        call: HostCall,
        request: ModelRequest,
        item: int,
        width: int,
        *,
        reply: ModelReply | None = None,
        error: ModelError | None = None,
        excess: budget.Excess | None = None,
    ) -> Told:
        prompt, system = request.prompt, request.system
        asked = {"prompt": prompt, "system": system} if system else {"prompt": prompt}
        attempts = reply.attempts if reply else attempts_of(error) if error else ()
        failure = None
        counted = spent(attempts, self._ceiling(request), reply)
        cost_usd, usage, unknown = counted.of_failure
        before: list[Fact] = []
        if reply is not None:
            cost_usd, usage, unknown = counted.usd, counted.usage, False
            before = budget.retried(leaf_reservation(request.ordinal), counted)
        elif excess is not None:
            failure = {"code": "budget_exceeded", "message": excess.message}
            cost_usd, usage, unknown = "0", NOTHING, False
        elif error is not None:
            failure = {"code": error.code, "message": str(error)}
        done = await self.journal.append(
            lambda state: [
                *before,
                LeafCalled(
                    leaf=state.next("leaf"),
                    turn=self.ledger.turn,
                    step=self.ledger.step,
                    eval=self.ledger.eval,
                    function=call.function,
                    digest=call.digest,
                    occurrence=call.ordinal,
                    item=item,
                    width=width,
                    ordinal=request.ordinal,
                    files=read_before(call) if item == 0 else [],
                    status="ok" if reply else "error" if failure else "unknown",
                    request=slot(asked, "request"),
                    reply=slot(reply.message.text, "reply") if reply else None,
                    error=slot(failure, "error") if failure else None,
                    model=reply.model if reply else self.model.name,
                    usage=usage,
                    cost_usd=cost_usd,
                    price_table=reply.price_table if reply else None,
                    latency_ms=reply.latency_ms if reply else None,
                    attempts=slot([a.to_record() for a in attempts], "reply") if attempts else None,
                    unknown=unknown,
                ),
            ]
        )
        event = done.events[len(before)]
        fact = event.fact()
        assert isinstance(fact, LeafCalled)
        self.ledger.leaves.append((event, fact))
        return event.seq, event.at, fact

    async def _answer(self, function: str, items: dict[int, Told]) -> HostAnswer:
        now = self.journal.state.updated_at
        last = nanoseconds(max((at for _, at, _ in items.values()), default=now))
        results = [await self._result(index, items[index][2]) for index in sorted(items)]
        if function == "lm" and isinstance(results[0], dict):
            return HostAnswer.failed(ERROR_NAME, results[0]["error"], last)
        value: Any = results[0] if function == "lm" else results
        return HostAnswer.ok(Encoded(*values.encode(value)), last)

    async def _result(self, index: int, fact: LeafCalled) -> Any:
        if fact.reply is not None:
            return await self.journal.value(fact.reply)
        failure: Any = await self.journal.value(fact.error) if fact.error else {}
        message = f"{failure.get('code', 'error')}: {failure.get('message', '')}"
        return {"failed": True, "index": index, "error": message}


def refusal(call: HostCall, settings: Settings, at: int) -> HostAnswer | None:
    """Return the answer to a call that is not made at all; None where nothing is wrong with it.

    It follows from the call alone, so that it is not recorded and told again whenever it is made.
    """
    try:
        prompts, _ = _arguments(call)
    except TypeError as error:
        return HostAnswer.failed("TypeError", str(error), at)
    if len(prompts) <= settings.max_fanout:
        return None
    return HostAnswer.failed(
        "ValueError",
        f"map_lm got {len(prompts)} prompts; at most {settings.max_fanout} go in one "
        "call: split them into smaller lists",
        at,
    )


def _arguments(call: HostCall) -> tuple[list[str], str | None]:
    """Return prompts and system text of a call; raise TypeError as Python would."""

    def lm(prompt: Any, system: Any = None) -> tuple[Any, Any]:
        return [prompt], system

    def map_lm(prompts: Any, system: Any = None) -> tuple[Any, Any]:
        return prompts, system

    # What Python says about wrong arguments is for the author of the cell.
    lm.__qualname__, map_lm.__qualname__ = "lm", "map_lm"
    prompts, system = (lm if call.function == "lm" else map_lm)(*call.args, **call.kwargs)
    if not isinstance(prompts, list | tuple) or not all(isinstance(p, str) for p in prompts):
        what = "a string" if call.function == "lm" else "a list of strings"
        raise TypeError(f"{call.function}() takes {what}")
    if system is not None and not isinstance(system, str):
        raise TypeError(f"{call.function}() takes system as a string")
    return list(prompts), system
