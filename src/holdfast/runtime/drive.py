"""The drive: one holder of a session's lease working a turn to its end.

The loop is one function of the log's state. A fresh turn and a revived one take the same path: the
phase of the open turn says what is due next, so whatever a kill left unfinished is taken up where
the log stands and nothing that is stored is done again. Every outcome settles in one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core import facts
from holdfast.core.errors import ModelError
from holdfast.core.facts import (
    Fact,
    MessageAppended,
    StepPut,
    StepStarted,
    TurnPut,
    TurnStatus,
)
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.messages import Message, observation
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import OpenTurn, State
from holdfast.kernels.port import KernelSession
from holdfast.kernels.surfaces import Surface, transient_text
from holdfast.models.asking import ask, attempts_of, ceiling_of
from holdfast.models.errors import ModelTimeout
from holdfast.models.port import Delta, Model, ModelReply, ModelRequest
from holdfast.runtime import governor
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.evaluation import Evaluated, Evaluation
from holdfast.runtime.gate import LeafGate
from holdfast.runtime.governor import Excess
from holdfast.runtime.journal import Journal
from holdfast.runtime.leaves import Leaves
from holdfast.runtime.results import (
    BudgetExceeded,
    Failed,
    Final,
    Suspended,
    TimedOut,
    TurnResult,
)
from holdfast.runtime.settle import calls_settled, problem, step_lost, turn_end
from holdfast.runtime.surface_calls import SurfaceCalls
from holdfast.runtime.transcript import Transcript, estimate_tokens, message_slots
from holdfast.stores.port import Transient

logger = logging.getLogger("holdfast.runtime")

_T = TypeVar("_T")
_R = TypeVar("_R", bound=TurnResult)


class DrivingTimeUsedUp(Exception):
    """The turn has been driven for as long as it may."""


@dataclass(slots=True)
class Drive:
    """What a turn is worked with."""

    journal: Journal
    blueprint: Blueprint
    transcript: Transcript
    kernel: KernelSession
    engine: str
    model: Model
    leaf_model: Model
    leaf_gate: LeafGate
    surfaces: tuple[Surface, ...]
    revived: bool = False
    announced: bool = False
    """The step that is due has been started in the log; the model was not asked yet."""
    last: bool = False
    """Nothing is driven after this turn: its final batch gives the lease back."""
    stale: bool = False
    """Work was broken off in the middle: transcript and namespace may lag behind the log."""

    @property
    def state(self) -> State:
        """Return where the log stands."""
        return self.journal.state

    async def turn(self) -> TurnResult:
        """Work the open turn until it settles or waits for someone."""
        while True:
            turn = self.state.turn
            assert turn is not None
            if self.state.status == "suspended":
                return self._result(
                    Suspended, turn_end(self.state, "open"), calls=tuple(self.state.calls)
                )
            try:
                if turn.phase == "asking" and not self.announced:
                    await self._settle_lost_step(turn)
                elif turn.phase == "replied":
                    result = await self._within_time(self._evaluate(turn))
                    if result is not None:
                        return result
                else:
                    result = await self._step(turn)
                    if result is not None:
                        return result
            except DrivingTimeUsedUp:
                self.stale = True
                return await self._out_of_time()

    def announce(self, state: State, turn: int, message: Message) -> list[Fact]:
        """Return the start of the step that answers a message, for the message's own batch.

        It spares a durable write per step. Empty where a limit forbids the step: the loop then
        finds the same and settles the turn.
        """
        context = self._context() + estimate_tokens(message.text)
        if governor.before_step(self.blueprint.settings, state, context) is not None:
            return []
        self.announced = True
        return [self._started(state, turn, context)]

    def _started(self, state: State, turn: int, context: int) -> StepStarted:
        output = governor.output_ceiling(self.blueprint.settings)
        return StepStarted(
            step=state.next("step"),
            turn=turn,
            ordinal=state.counters.get("answered", 0),
            model=self.model.name,
            reserved_usd=ceiling_of(self.model, context, output),
            reserved_input_tokens=context,
            reserved_output_tokens=output,
        )

    def _context(self) -> int:
        """Return about how many tokens the next call sends."""
        return self.transcript.tokens + estimate_tokens(self.blueprint.prompt)

    async def _step(self, turn: OpenTurn) -> TurnResult | None:
        context = self._context()
        if not self.announced:
            excess = governor.before_step(self.blueprint.settings, self.state, context)
            if excess is not None:
                return await self._exceed(excess)
            await self.journal.append(lambda state: [self._started(state, turn.turn, context)])
        self.announced = False
        try:
            ordinal = self.state.counters.get("answered", 0)
            reply = await self._within_time(self._ask(ordinal, context))
        except ModelError as error:
            return await self._model_failed(error)
        await self._store_reply(reply)
        return None

    def _ask(self, ordinal: int, context: int) -> Awaitable[ModelReply]:
        settings = self.blueprint.settings
        messages = tuple(self.transcript.messages)
        note = "\n\n".join(
            text
            for text in (
                governor.warning(settings, self.state, context),
                transient_text(self.surfaces),
            )
            if text
        )
        if note:
            messages = (*messages, observation(note))
        request = ModelRequest(
            messages=messages,
            system=self.blueprint.prompt,
            purpose="step",
            session_id=self.journal.session,
            ordinal=ordinal,
            first_user_text=self.transcript.first_user_text,
            cache_id=self.state.cache_id,
            settings=settings.options(),
            max_output_tokens=settings.max_output_tokens or None,
            deadline_seconds=settings.call_timeout_seconds,
        )

        def on_delta(delta: Delta) -> None:
            data = {"kind": delta.kind, "text": delta.text}
            self.journal.store.notify(Transient(self.journal.session, "delta.token", data))

        return ask(self.model, request, on_delta=on_delta)

    async def _store_reply(self, reply: ModelReply) -> None:
        turn = self.state.turn
        assert turn is not None
        content, parts = message_slots(reply.message)
        attempts = [attempt.to_record() for attempt in reply.attempts]
        await self.journal.append(
            lambda state: [
                MessageAppended(
                    message=state.next("message"),
                    role="assistant",
                    content=content,
                    turn=turn.turn,
                    step=turn.step,
                ),
                StepPut(
                    step=turn.step,
                    turn=turn.turn,
                    status="replied",
                    model=reply.model,
                    usage=reply.usage.to_record(),
                    cost_usd=reply.cost_usd,
                    price_table=reply.price_table,
                    latency_ms=reply.latency_ms,
                    finish_reason=reply.finish_reason,
                    attempts=slot(attempts, "reply") if attempts else None,
                ),
            ],
            payloads=parts,
            gated=True,
        )
        self.transcript.add(reply.message)

    async def _evaluate(self, turn: OpenTurn) -> TurnResult | None:
        evaluation = Evaluation(
            journal=self.journal,
            kernel=self.kernel,
            engine=self.engine,
            leaves=lambda known: Leaves(
                journal=self.journal,
                model=self.leaf_model,
                settings=self.blueprint.settings,
                gate=self.leaf_gate,
                first_user_text=self.transcript.first_user_text,
                cache_id=self.state.cache_id,
                turn=turn.turn,
                step=turn.step,
                eval=self.state.next("eval"),
                recorded=known,
            ),
            surfaces=lambda: SurfaceCalls(
                journal=self.journal,
                surfaces=self.surfaces,
                turn=turn.turn,
                step=turn.step,
                eval=self.state.next("eval"),
                renew=lambda: self.journal.store.renew(self.journal.lease),
            ),
            revived=self.revived,
        )
        self.revived = False
        done = await evaluation.run(self.transcript.messages[-1].text)
        return await self._observe(done)

    async def _observe(self, done: Evaluated) -> TurnResult | None:
        """Append the last cell with the observation and, after FINAL, the end of the turn."""
        turn = self.state.turn
        assert turn is not None
        message = observation(done.observation)
        content, parts = message_slots(message)
        end = (
            None
            if done.final is None
            else turn_end(self.state, "final", done.facts, final=done.final)
        )

        def batch(state: State) -> list[Fact]:
            seen = MessageAppended(
                message=state.next("message"),
                role="observation",
                content=content,
                turn=turn.turn,
                step=turn.step,
            )
            after = [end] if end else self.announce(state, turn.turn, message)
            return [*done.facts, seen, *after]

        head, edges = None, list[EdgeDraft]()
        if done.final is not None:
            kept = done.vars or self.state.vars
            head = HeadDraft(kind="turn_final", turn=turn.turn, vars=kept, final=done.final)
            edges = self._lineage()
        await self.journal.append(
            batch,
            head=head,
            edges=edges,
            payloads=[*done.payloads, *parts],
            release=self.last and end is not None,
        )
        self.transcript.add(message)
        if done.final is None or end is None:
            return None
        return self._result(Final, end, value=done.final.value())

    def _lineage(self) -> list[EdgeDraft]:
        """Return the edge that a fork's first head brings."""
        origin = self.state.origin
        if origin is None or self.state.derived:
            return []
        return [
            EdgeDraft(
                type="derivation",
                from_session=str(origin["session"]),
                from_head=str(origin["head"]),
                to_session=self.journal.session,
            )
        ]

    async def _settle_lost_step(self, turn: OpenTurn) -> None:
        """Settle a call whose reply a crash took with it, at what was set aside for it."""
        error = problem("lost", "the process ended while the model was being asked")
        await self.journal.append(lambda state: step_lost(state, error))

    async def _model_failed(self, error: ModelError) -> TurnResult:
        turn = self.state.turn
        assert turn is not None
        attempts = [attempt.to_record() for attempt in attempts_of(error)]
        cost_usd, usage = self._broken_off(error.code, len(attempts))
        step = StepPut(
            step=turn.step,
            turn=turn.turn,
            status="failed",
            model=self.model.name,
            cost_usd=cost_usd,
            usage=usage,
            attempts=slot(attempts, "reply") if attempts else None,
            error=problem(error.code, str(error)),
        )
        timed_out = isinstance(error, ModelTimeout)
        kind: type[TurnResult] = TimedOut if timed_out else Failed
        extra = {"error": str(error)} if timed_out else {"error": str(error), "code": error.code}
        status: TurnStatus = "timed_out" if timed_out else "failed"
        return await self._settle(kind, status, [step], problem(error.code, str(error)), **extra)

    def _broken_off(self, code: str, attempts: int = 1) -> tuple[str | None, dict[str, int | None]]:
        """Return (cost, usage) of the step under way, which brings no reply."""
        context, output = self._context(), governor.output_ceiling(self.blueprint.settings)
        ceiling = ceiling_of(self.model, context, output)
        return governor.spent_on_failure(code, ceiling, context, output, attempts)

    async def _exceed(self, excess: Excess) -> TurnResult:
        fact = facts.BudgetExceeded(limit=excess.limit, used=excess.used, allowed=excess.allowed)
        return await self._settle(
            BudgetExceeded,
            "budget_exceeded",
            [fact],
            problem("budget_exceeded", excess.message),
            limit=excess.limit,
            used=excess.used,
            allowed=excess.allowed,
            error=excess.message,
        )

    async def _out_of_time(self) -> TurnResult:
        turn = self.state.turn
        if turn is None:
            # Time ran out while the batch that ends the turn was being written: it ended.
            return await self.last_result()
        text = f"the turn was driven for its {self.blueprint.settings.turn_seconds} seconds"
        lost: list[Fact] = []
        if turn.phase == "asking":
            cost_usd, usage = self._broken_off("timed_out")
            lost = [
                StepPut(
                    step=turn.step,
                    turn=turn.turn,
                    status="failed",
                    cost_usd=cost_usd,
                    usage=usage,
                    unknown=True,
                    error=problem("timed_out", text),
                )
            ]
        return await self._settle(
            TimedOut, "timed_out", lost, problem("timed_out", text), error=text
        )

    async def last_result(self) -> TurnResult:
        """Return the result of a turn that ended with FINAL, from the log."""
        events = await self.journal.store.read_events(
            self.journal.session, reverse=True, limit=1, types=[TurnPut.TYPE]
        )
        end = events[0].fact()
        assert isinstance(end, TurnPut)
        assert end.final is not None
        return self._result(Final, end, value=await self.journal.value(end.final))

    async def _settle(
        self,
        kind: type[TurnResult],
        status: TurnStatus,
        before: Sequence[Fact],
        why: Slot,
        **extra: Any,
    ) -> TurnResult:
        turn = self.state.turn
        assert turn is not None
        before = [*before, *calls_settled(self.state, self.state.calls_of(turn.turn))]
        end = turn_end(self.state, status, before, error=why)
        await self.journal.append(lambda _: [*before, end])
        return self._result(kind, end, **extra)

    def _result(self, kind: type[_R], end: TurnPut, **extra: Any) -> _R:
        return kind(
            session=self.journal.session,
            turn=end.turn,
            steps=end.steps,
            usage=end.usage or {},
            cost_usd=end.cost_usd,
            held_usd=end.held_usd,
            unknown_calls=end.unknown_calls,
            head=self.state.head,
            **extra,
        )

    async def _within_time(self, work: Awaitable[_T]) -> _T:
        """Await work for as long as the turn may still be driven."""
        left = governor.seconds_left(self.blueprint.settings, self.state)
        try:
            async with asyncio.timeout(left) as clock:
                return await work
        except TimeoutError:
            if clock.expired():
                raise DrivingTimeUsedUp from None
            raise
