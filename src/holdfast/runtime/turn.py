"""The turn loop: what is due next follows from the phase of the open turn, and from nothing else.

A fresh turn and a revived one take the same path, so whatever a kill left unfinished is taken up
where the log stands and nothing that is stored is done again.

| phase               | what is due                                                        |
|---------------------|--------------------------------------------------------------------|
| `opened`, `observed`| limits are checked, then the next step is started                  |
| `asking`            | the model is asked; the step was started by this driver            |
| `replied`           | the harness acts on the reply                                      |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.errors import InvalidInput, ModelError
from holdfast.core.facts import Fact, MessageAppended, StepPut, StepStarted, TurnPut, TurnStatus
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.messages import Message, observation
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import State, step_reservation
from holdfast.models.asking import ask, attempts_of
from holdfast.models.errors import ContextTooLong, ModelTimeout
from holdfast.models.port import Delta, Model, ModelReply, ModelRequest
from holdfast.models.spend import Ceiling, spent
from holdfast.runtime import budget, results, schemas, settle
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.compaction import Compactor
from holdfast.runtime.dispatch import Dispatcher
from holdfast.runtime.harness import Acted, Harness
from holdfast.runtime.hooks import HALTED, Halted, reserve
from holdfast.runtime.inbox import admitted
from holdfast.runtime.journal import Journal
from holdfast.runtime.requests import chained, parent_call, request_digest
from holdfast.runtime.results import TurnResult
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.tools import Toolset, transient_text
from holdfast.runtime.transcript import Transcript, estimate_tokens, message_slots, size_of
from holdfast.stores.port import InboxItem, Transient

if TYPE_CHECKING:
    from holdfast.runtime.recordings import SessionRecording

_T = TypeVar("_T")

PROSE_REPLIES = 3
LONGEST_RESET_SECONDS = 31 * 86_400  # what a provider says beyond that is not believed
"""So many replies in a row without anything to act on end a turn."""
INVALID = "output_invalid"
REPAIR = "%s. Call FINAL again with a value that fits; this is the only chance to repair it."
REPAIR_TEXT = "%s. Answer again, with nothing but JSON that fits; this is the only chance to do so."


class DrivingTimeUsedUp(Exception):
    """The turn has been driven for as long as it may."""


@dataclass(frozen=True, slots=True)
class Steering:
    """A message that came while the turn was worked, to be shown before the next model call."""

    message: Message
    item: InboxItem


@dataclass(slots=True)
class TurnLoop:
    """What a turn is worked with."""

    journal: Journal
    blueprint: Blueprint
    transcript: Transcript
    harness: Harness
    model: Model
    toolsets: tuple[Toolset, ...]
    shortage: Shortage
    dispatcher: Dispatcher
    until_moved: Callable[[], Awaitable[bool]]
    """Waits while children are driven here; tells whether what waited for them can go on."""
    output_schema: dict[str, Any] | None = None
    """What the final value of the open turn must fit."""
    output_type: Any = None
    replay: SessionRecording | None = None
    release: bool = False
    """Whether the batch of a final value gives the lease back: nothing is driven after it."""
    steering: list[Steering] = field(default_factory=list)

    @property
    def state(self) -> State:
        """Return where the log stands."""
        return self.journal.state

    async def run(self) -> TurnResult:
        """Work the open turn until it settles or waits for someone."""
        while True:
            turn = self.state.turn
            assert turn is not None
            if self.blueprint is not self.shortage.blueprint:
                # A parent granted more in the middle of a cell.
                self.blueprint = self.harness.blueprint = self.shortage.blueprint
            if self.state.status == "suspended" and not await self.until_moved():
                return results.suspended(self.state)
            try:
                match turn.phase:
                    case "asking":
                        result = await self._ask()
                    case "replied":
                        result = await self._act()
                    case _:
                        await self._take_steering()
                        result = await self._start_step()
            except DrivingTimeUsedUp:
                return await self._out_of_time()
            except Halted as halted:
                return await self._halted(str(halted))
            if result is not None:
                return result

    def first_step(self, state: State, turn: int, *messages: Message) -> list[Fact]:
        """Return the start of the step that answers messages, for the batch that brings them.

        It spares a durable write per step. Empty where a limit forbids the step: the loop then
        finds the same and settles the turn.
        """
        context = self._context() + sum(map(size_of, messages))
        if budget.before_step(self.blueprint.settings, state, context) is not None:
            return []
        return self._started(state, turn, context, messages)

    def _started(
        self, state: State, turn: int, context: int, messages: Sequence[Message] = ()
    ) -> list[Fact]:
        settings = self.blueprint.settings
        ceiling = budget.ceiling(self.model, settings, context)
        step = StepStarted(
            step=state.next("step"),
            turn=turn,
            ordinal=state.counters.get("answered", 0),
            model=self.model.name,
            request=request_digest(
                chained(self.transcript.digest, messages),
                system=self.blueprint.prompt,
                options=settings.options(),
                max_output_tokens=settings.max_output_tokens,
                tools=self.harness.tools,
            ),
            reserved_usd=ceiling.usd,
            reserved_input_tokens=ceiling.input_tokens,
            reserved_output_tokens=ceiling.output_tokens,
        )
        return [*budget.warned(settings, state, context), step]

    @property
    def compactor(self) -> Compactor:
        """Return what shortens the transcript."""
        return Compactor(
            self.journal,
            self.blueprint,
            self.transcript,
            self.model,
            self._lineage(),
            self.replay,
        )

    def _context(self) -> int:
        """Return about how many tokens the next call sends."""
        kept_free = reserve(self.dispatcher.hooks.hooks)
        return self.transcript.tokens + estimate_tokens(self.blueprint.prompt) + kept_free

    async def _take_steering(self) -> None:
        """Show the model what was sent while it worked, after the results of its last reply."""
        while self.steering:
            await self._show(self.steering.pop(0))

    async def _show(self, taken: Steering) -> None:
        turn = self.state.turn
        assert turn is not None
        content, parts = message_slots(taken.message)
        await self.journal.append(
            lambda state: [
                admitted(taken.item),
                MessageAppended(
                    message=state.next("message"),
                    role="user",
                    content=content,
                    turn=turn.turn,
                    input=taken.item.key,
                ),
            ],
            consumes=[taken.item.key],
            payloads=parts,
        )
        self.transcript.add(taken.message)

    async def _start_step(self) -> TurnResult | None:
        turn, context = self.state.turn, self._context()
        assert turn is not None
        settings = self.blueprint.settings
        excess = budget.before_step(settings, self.state, context)
        if (
            excess is not None
            and excess.limit == "context_tokens"
            and await self._within_time(self.compactor.inside_turn()) is not None
        ):
            context = self._context()
            excess = budget.before_step(settings, self.state, context)
        if excess is not None and await self.shortage.ask(excess):
            return None
        if excess is not None:
            return await settle.ended(
                self.journal, "budget_exceeded", "budget_exceeded", excess.message, limit=excess
            )
        await self.journal.append(lambda state: self._started(state, turn.turn, context))
        return None

    async def _ask(self) -> TurnResult | None:
        try:
            added = await self._within_time(self._injected())
            reply = await self._within_time(self._asked(added))
        except ContextTooLong as error:
            return await self._too_long(error)
        except ModelError as error:
            return await self._model_failed(error)
        await self._store_reply(reply)
        hooks = self.dispatcher.hooks
        if hooks.has("after_reply"):
            context = await self.dispatcher.hook_context()
            await self._within_time(hooks.tell("after_reply", context, reply.message))
        return None

    async def _injected(self) -> str:
        """Return what hooks add to this request: never stored, asked again after a kill."""
        hooks = self.dispatcher.hooks
        if not hooks.has("before_model"):
            return ""
        context = await self.dispatcher.hook_context()
        return await hooks.injected(context, self.transcript.messages)

    def _asked(self, added: str) -> Awaitable[ModelReply]:
        settings, context = self.blueprint.settings, self._context()
        messages = tuple(self.transcript.messages)
        note = "\n\n".join(
            text
            for text in (
                budget.warning(settings, self.state, context),
                transient_text(self.toolsets),
                added,
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
            ordinal=self.state.counters.get("answered", 0),
            first_user_text=self.transcript.first_user_text,
            parent=parent_call(self.state),
            cache_id=self.state.cache_id,
            settings=settings.options(),
            max_output_tokens=settings.max_output_tokens or None,
            deadline_seconds=settings.call_timeout_seconds,
            tools=self.harness.tools,
            retry=settings.retry,
            max_charged_attempts=budget.charged_attempts(settings, self.state, self._ceiling()),
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
        counted = spent(reply.attempts, self._ceiling(), reply)
        await self.journal.append(
            lambda state: [
                *budget.retried(step_reservation(turn.step), counted),
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
        )
        self.transcript.add(reply.message)

    async def _act(self) -> TurnResult | None:
        acted = await self._within_time(self.harness.act(self.transcript.messages[-1]))
        if acted.waits:
            return None
        if acted.prose:
            return await self._prose(acted)
        acted, misfit = await self._judged(acted)
        if misfit is None:
            return await self._observe(acted)
        if await self._repair_was_asked():
            return await self._observe(replace(acted, final=None), failure=(INVALID, misfit))
        told, repair = acted.messages, REPAIR % misfit
        if not told:  # text was the answer, and nothing else was done
            told, repair = (observation("The answer was not taken."),), REPAIR_TEXT % misfit
        return await self._observe(replace(acted, messages=told, final=None), card=repair)

    async def _judged(self, acted: Acted) -> tuple[Acted, str | None]:
        """Return what was done with the value that the turn asks for, or why it does not fit."""
        wanted = self.output_schema
        if acted.final is None or wanted is None:
            return acted, None
        if self.blueprint.settings.harness == "tools" and wanted.get("type") != "string":
            try:
                value = schemas.read_json(str(await self.journal.value(acted.final)))
            except InvalidInput as error:
                return acted, str(error)
            acted = replace(acted, final=slot(value, "final"))
        assert acted.final is not None
        return acted, await self._misfit(acted.final)

    async def _prose(self, acted: Acted) -> TurnResult | None:
        """Take a reply without anything to act on as the answer, or bear with a few of them."""
        turn = self.state.turn
        assert turn is not None
        if self.blueprint.settings.prose == "answer":
            final = slot(self.transcript.messages[-1].text, "final")
            misfit = await self._misfit(final)
            if misfit is None:
                return await self._observe(Acted(final=final))
        if turn.prose + 1 < PROSE_REPLIES:
            return await self._observe(acted)
        text = f"the model replied {PROSE_REPLIES} times in a row without anything to act on"
        return await self._observe(acted, failure=("no_action", text))

    async def _misfit(self, final: Slot) -> str | None:
        """Return why a final value does not fit what the turn asks for; None where it does."""
        if self.output_schema is None:
            return None
        value = await self.journal.value(final)
        try:
            schemas.check(self.output_schema, value, "the final value")
            if self.output_type is not None and schemas.of(self.output_type) == self.output_schema:
                schemas.convert(self.output_type, value, "the final value")
        except InvalidInput as error:
            return str(error)
        return None

    async def _repair_was_asked(self) -> bool:
        """Tell whether the open turn has had its one request to repair a final value."""
        turn = self.state.turn
        assert turn is not None
        after = turn.started_seq
        types = [MessageAppended.TYPE]
        session = self.journal.session
        while page := await self.journal.store.read_events(session, after=after, types=types):
            for event in page:
                fact = event.fact()
                if isinstance(fact, MessageAppended) and fact.role == "observation" and fact.card:
                    return True
            after = page[-1].seq
        return False

    async def _observe(
        self, acted: Acted, *, card: str = "", failure: tuple[str, str] | None = None
    ) -> TurnResult | None:
        """Append what came of a reply: what the model sees next or, with a value, the end.

        `card` is told beside the last message. A failure, by its code and message, ends the turn.
        """
        turn = self.state.turn
        assert turn is not None
        written = [message_slots(message) for message in acted.messages]
        shown = [*acted.messages, *([observation(card)] if card else [])]
        put: TurnPut | None = None

        def batch(state: State) -> list[Fact]:
            nonlocal put
            first = state.next("message")
            seen = [
                MessageAppended(
                    message=first + index,
                    role="observation",
                    content=content,
                    turn=turn.turn,
                    step=turn.step,
                    prose=acted.prose,
                    card=slot(card, "message") if card and index == len(written) - 1 else None,
                )
                for index, (content, _) in enumerate(written)
            ]
            if failure is not None:
                why = settle.problem(*failure)
                put = settle.turn_put(state, "failed", acted.facts, why=why)
                after: list[Fact] = [put]
            elif acted.final is None:
                # What steers is shown first; the loop then starts the step.
                after = [] if self.steering else self.first_step(state, turn.turn, *shown)
            else:
                put = settle.turn_put(state, "final", acted.facts, final=acted.final)
                after = [put]
            return [*acted.facts, *seen, *after]

        put_due = acted.final is not None or failure is not None
        head, edges = None, list[EdgeDraft]()
        if acted.final is not None:
            kept = acted.vars or self.state.vars
            head = HeadDraft(kind="turn_final", turn=turn.turn, vars=kept, final=acted.final)
            edges = self._lineage()
        await self.journal.append(
            batch,
            head=head,
            edges=edges,
            payloads=[*acted.payloads, *(part for _, parts in written for part in parts)],
            posts=settle.posts(self.state) if put_due else acted.posts,
            release=self.release and acted.final is not None,
        )
        for message in acted.messages:
            self.transcript.add(message)
        if card:
            self.transcript.keep(observation(card))
        if put is None:
            return None
        return await results.of(self.journal.store, self.journal.session, put, head=self.state.head)

    def _lineage(self) -> list[EdgeDraft]:
        """Return the edge that a fork's first head brings."""
        origin = self.state.origin
        if origin is None or self.state.derived:
            return []
        head = origin.get("head")
        return [
            EdgeDraft(
                type="derivation",
                from_session=str(origin["session"]),
                from_head=None if head is None else str(head),
                to_session=self.journal.session,
            )
        ]

    async def _too_long(self, error: ContextTooLong) -> TurnResult | None:
        """Shorten what the provider finds too long, and ask again as the next step."""
        step = self._failed_step(error)
        await self.journal.append(lambda _: [step])
        if await self._within_time(self.compactor.inside_turn()) is not None:
            return None
        return await settle.ended(self.journal, "failed", error.code, str(error))

    async def _model_failed(self, error: ModelError) -> TurnResult:
        step = self._failed_step(error)
        status: TurnStatus = "timed_out" if isinstance(error, ModelTimeout) else "failed"
        return await settle.ended(
            self.journal, status, error.code, str(error), before=[step], until=_resets(error)
        )

    def _failed_step(self, error: ModelError) -> StepPut:
        turn = self.state.turn
        assert turn is not None
        attempts = attempts_of(error)
        cost_usd, usage, unknown = spent(attempts, self._ceiling()).of_failure
        return StepPut(
            step=turn.step,
            turn=turn.turn,
            status="failed",
            model=self.model.name,
            cost_usd=cost_usd,
            usage=usage,
            unknown=unknown,
            attempts=slot([attempt.to_record() for attempt in attempts], "reply"),
            error=settle.problem(error.code, str(error)),
        )

    async def _halted(self, why: str) -> TurnResult:
        """End the turn that a hook halted; a model that was not asked has cost nothing."""
        turn = self.state.turn
        assert turn is not None
        before: list[Fact] = []
        if turn.phase == "asking":
            before = [
                StepPut(
                    step=turn.step,
                    turn=turn.turn,
                    status="failed",
                    model=self.model.name,
                    cost_usd="0",
                    usage={"input_tokens": 0, "output_tokens": 0},
                    error=settle.problem(HALTED, why),
                )
            ]
        return await settle.ended(self.journal, "failed", HALTED, why, before=before)

    def _ceiling(self) -> Ceiling:
        """Return the most that one attempt at the model can cost now."""
        return budget.ceiling(self.model, self.blueprint.settings, self._context())

    async def _out_of_time(self) -> TurnResult:
        turn = self.state.turn
        if turn is None:
            # Time ran out while the batch that ends the turn was being written: it ended.
            ended = self.state.counters["turn"]
            result = await results.of_turn(self.journal.store, self.journal.session, ended)
            assert result is not None
            return result
        text = f"the turn was driven for its {self.blueprint.settings.turn_seconds} seconds"
        before: list[Fact] = []
        if turn.phase == "asking":
            cost_usd, usage, unknown = spent((), self._ceiling()).of_failure
            before = [
                StepPut(
                    step=turn.step,
                    turn=turn.turn,
                    status="failed",
                    model=self.model.name,
                    cost_usd=cost_usd,
                    usage=usage,
                    unknown=unknown,
                    error=settle.problem("timed_out", text),
                )
            ]
        return await settle.ended(self.journal, "timed_out", "timed_out", text, before=before)

    async def _within_time(self, work: Awaitable[_T]) -> _T:
        """Await work for as long as the turn may still be driven."""
        left = budget.seconds_left(self.blueprint.settings, self.state)
        try:
            async with asyncio.timeout(left) as clock:
                return await work
        except TimeoutError:
            if clock.expired():
                raise DrivingTimeUsedUp from None
            raise


def _resets(error: ModelError) -> str | None:
    """Return when the limit that a provider told of resets, if it said how long that takes."""
    wait = getattr(error, "retry_after", None)
    if wait is None or not 0 < wait <= LONGEST_RESET_SECONDS:
        return None
    return (datetime.now(UTC) + timedelta(seconds=wait)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
