"""Leaf calls: one bounded model call from code, without a session of its own.

Each item becomes one `leaf.called` event with request and reply by reference. After a kill, items
that the log has are answered from it and not paid again; only what is missing is asked. What a call
may cost is set aside in the log before it is made, so that one that a kill took with it still
counts. A leaf's ordinal is its place in the order of issue, so that a resumed session asks with the
same number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.core import values
from holdfast.core.errors import HoldfastError, ModelError
from holdfast.core.facts import BudgetReserved, LeafCalled
from holdfast.core.messages import user
from holdfast.core.payloads import slot
from holdfast.core.state import leaf_reservation
from holdfast.kernels.port import (
    Encoded,
    FileRead,
    HostAnswer,
    HostCall,
    HostFunction,
    RecordedCall,
)
from holdfast.models.asking import ask, attempts_of, ceiling_of
from holdfast.models.port import Model, ModelReply, ModelRequest
from holdfast.runtime import governor
from holdfast.runtime.gate import LeafGate
from holdfast.runtime.journal import Journal
from holdfast.runtime.settings import Settings
from holdfast.runtime.transcript import estimate_tokens

ERROR_NAME = "CallError"

FUNCTIONS = (
    HostFunction("lm", signature="(prompt: str, system: str | None = None) -> str"),
    HostFunction("map_lm", signature="(prompts: list[str], system: str | None = None) -> list"),
)
NAMES = frozenset(function.name for function in FUNCTIONS)


def nanoseconds(at: str) -> int:
    """Return a record's time as nanoseconds, for the clock inside a cell."""
    moment = datetime.fromisoformat(at)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def read_before(call: HostCall) -> list[list[str]]:
    """Return the files that a cell read before a call, as a fact stores them."""
    return [[item.path, item.digest] for item in call.files]


def files_of(stored: list[list[str]]) -> tuple[FileRead, ...]:
    """Return stored file reads as a kernel takes them."""
    return tuple(FileRead(path, digest) for path, digest in stored)


@dataclass(slots=True)
class Leaves:
    """The leaf calls of one evaluation."""

    journal: Journal
    model: Model
    settings: Settings
    gate: LeafGate
    first_user_text: str
    cache_id: str | None
    turn: int
    step: int
    eval: int
    recorded: Sequence[tuple[str, LeafCalled]] = ()  # (at, fact) of this eval, in log order
    _reserve: governor.Reserve = field(init=False)
    _own_gate: asyncio.Semaphore = field(init=False)  # the session's own limit
    _base: int = 0
    _taken: set[int] = field(default_factory=set)
    _bases: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _items: dict[tuple[str, str, int], dict[int, tuple[str, LeafCalled]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._reserve = governor.Reserve(self.settings)
        self._own_gate = asyncio.Semaphore(self.settings.leaf_concurrency)
        answered = [(at, fact) for at, fact in self.recorded if fact.status != "unknown"]
        self._base = self.journal.state.counters.get("leaf_answered", 0) - len(answered)
        for _, fact in self.recorded:
            key = (fact.function, fact.digest, fact.occurrence)
            self._bases[key] = fact.ordinal - fact.item
            self._taken.update(range(self._bases[key], self._bases[key] + fact.width))
        for at, fact in answered:
            key = (fact.function, fact.digest, fact.occurrence)
            self._items.setdefault(key, {})[fact.item] = (at, fact)

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

    async def recorded_calls(self) -> list[RecordedCall]:
        """Return the calls that the log can answer in full, in the order of their last answer."""
        calls: list[tuple[str, RecordedCall]] = []
        for key, items in self._items.items():
            width = max(fact.width for _, fact in items.values())
            last = max(at for at, _ in items.values())
            answer = None
            if len(items) == width:
                answer = await self._answer(key[0], items, last)
            files = files_of(items[0][1].files) if 0 in items else ()
            calls.append((last, RecordedCall(*key, pure=False, answer=answer, files=files)))
        return [call for _, call in sorted(calls, key=lambda pair: pair[0])]

    async def call(self, call: HostCall) -> HostAnswer:
        """Answer one `lm` or `map_lm` of the cell."""
        at = nanoseconds(self.journal.state.updated_at)
        try:
            prompts, system = _arguments(call)
        except TypeError as error:
            return HostAnswer.failed("TypeError", str(error), at)
        if len(prompts) > self.settings.max_fanout:
            return HostAnswer.failed(
                "ValueError",
                f"map_lm got {len(prompts)} prompts; at most {self.settings.max_fanout} go in one "
                "call: split them into smaller lists",
                at,
            )
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
        last = max((moment for moment, _ in known.values()), default=self.journal.state.updated_at)
        return await self._answer(call.function, known, last)

    async def _ask(
        self, call: HostCall, prompt: str, system: str | None, item: int, ordinal: int, width: int
    ) -> tuple[str, LeafCalled]:
        request = ModelRequest(
            messages=(user(prompt),),
            system=system or "",
            purpose="leaf",
            session_id=self.journal.session,
            ordinal=ordinal,
            first_user_text=self.first_user_text,
            cache_id=self.cache_id,
            settings=self.settings.options(),
            max_output_tokens=self.settings.max_output_tokens or None,
            deadline_seconds=self.settings.leaf_timeout_seconds,
        )
        # What is set aside for a call is let go once its event is stored, so that the spend limit
        # sees every call, under way or ended; only the last one can go beyond it.
        size = self._size(request)
        ceiling = ceiling_of(self.model, *size)
        async with (
            self._reserve.aside(self.journal, ceiling, sum(size)),
            self._own_gate,
            self.gate,
        ):
            excess = governor.before_call(self.settings, self.journal.state)
            reply: ModelReply | None = None
            error: ModelError | None = None
            if excess is None:
                aside = BudgetReserved(
                    reservation=leaf_reservation(ordinal), usd=ceiling, tokens=sum(size)
                )
                await self.journal.append(lambda _: [aside])
                try:
                    reply = await ask(self.model, request)
                except asyncio.CancelledError:
                    # Broken off in flight: what it cost is unknown, and it will be asked again.
                    with suppress(HoldfastError):
                        await self._record(call, request, item, width, None, None, None)
                    raise
                except ModelError as problem:
                    error = problem
            return await self._record(call, request, item, width, reply, error, excess)

    def _size(self, request: ModelRequest) -> tuple[int, int]:
        """Return the most tokens that a call can send and get."""
        sent = estimate_tokens(request.prompt) + estimate_tokens(request.system)
        return sent, governor.output_ceiling(self.settings)

    async def _record(
        self,
        call: HostCall,
        request: ModelRequest,
        item: int,
        width: int,
        reply: ModelReply | None,
        error: ModelError | None,
        excess: governor.Excess | None,
    ) -> tuple[str, LeafCalled]:
        prompt, system = request.prompt, request.system
        asked = {"prompt": prompt, "system": system} if system else {"prompt": prompt}
        attempts = reply.attempts if reply else attempts_of(error) if error else ()
        failure = None
        cost_usd, usage = (reply.cost_usd, reply.usage.to_record()) if reply else (None, None)
        if excess is not None:
            failure = {"code": "budget_exceeded", "message": excess.message}
            cost_usd, usage = "0", {"input_tokens": 0, "output_tokens": 0}
        elif error is not None:
            failure = {"code": error.code, "message": str(error)}
            sent, most = self._size(request)
            cost_usd, usage = governor.spent_on_failure(
                error.code, ceiling_of(self.model, sent, most), sent, most, len(attempts)
            )
        elif reply is None:
            sent, most = self._size(request)
            cost_usd = ceiling_of(self.model, sent, most)
            usage = {"input_tokens": sent, "output_tokens": most}
        done = await self.journal.append(
            lambda state: [
                LeafCalled(
                    leaf=state.next("leaf"),
                    turn=self.turn,
                    step=self.step,
                    eval=self.eval,
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
                )
            ]
        )
        fact = done.events[0].fact()
        assert isinstance(fact, LeafCalled)
        return done.events[0].at, fact

    async def _answer(
        self, function: str, items: dict[int, tuple[str, LeafCalled]], last: str
    ) -> HostAnswer:
        results = [await self._result(index, items[index][1]) for index in sorted(items)]
        if function == "lm" and isinstance(results[0], dict):
            return HostAnswer.failed(ERROR_NAME, results[0]["error"], nanoseconds(last))
        value: Any = results[0] if function == "lm" else results
        return HostAnswer.ok(Encoded(*values.encode(value)), nanoseconds(last))

    async def _result(self, index: int, fact: LeafCalled) -> Any:
        if fact.reply is not None:
            return await self.journal.value(fact.reply)
        failure: Any = await self.journal.value(fact.error) if fact.error else {}
        message = f"{failure.get('code', 'error')}: {failure.get('message', '')}"
        return {"failed": True, "index": index, "error": message}


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
