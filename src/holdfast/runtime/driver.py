"""The driver: from taking a session's lease to giving it back.

It brings together what a drive needs (blueprint, transcript, namespace), opens turns, revives what
an earlier driver left, takes queued messages and stop requests out of the inbox, and records an
interruption when it is broken off. What it built is kept warm for the next driver of this process
and dropped if the log has moved meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import facts, messages
from holdfast.core.capability import Capability
from holdfast.core.errors import AgentMissing, InvalidSettings, KernelError, SessionBusy
from holdfast.core.facts import Fact, MessageAppended, TurnStarted, VarsCheckpointed
from holdfast.core.messages import Message, Text
from holdfast.core.payloads import slot
from holdfast.core.state import State, lost_leaves
from holdfast.kernels.choose import Choice, Kernels
from holdfast.kernels.port import Encoded, KernelLimits, KernelSession, KernelSettings
from holdfast.kernels.surfaces import Surface, host_functions
from holdfast.models.port import Model
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import governor, inputs, leaves
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.drive import Drive
from holdfast.runtime.evaluation import checkpoint_slots
from holdfast.runtime.gate import LeafGate
from holdfast.runtime.journal import Journal, namespace
from holdfast.runtime.repeats import result_of
from holdfast.runtime.results import BudgetExceeded, Failed, Stopped, Suspended, TurnResult
from holdfast.runtime.settle import abandoned, broken_off, problem, turn_end
from holdfast.runtime.shelter import ended
from holdfast.runtime.stops import stop_item
from holdfast.runtime.transcript import Transcript, load_transcript, message_slots
from holdfast.stores.port import InboxDraft, InboxItem, Lease, SessionStore
from holdfast.views.values import hydrate

logger = logging.getLogger("holdfast.runtime")

REVIVALS_WITHOUT_OUTCOME = 2


@dataclass(frozen=True, slots=True)
class Work:
    """A message to work on, with its inputs."""

    message: Message
    inputs: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    admitted: InboxItem | None = None

    def draft(self, key: str) -> InboxDraft:
        """Return the work as it waits in the inbox."""
        inputs.input_slots(self.inputs)
        return InboxDraft(key=key, kind="message", content=slot(self.to_value(), "input"))

    def to_value(self) -> dict[str, Any]:
        """Return the form in which a queued message waits in the inbox."""
        record, binaries = messages.to_record(self.message)
        return {"message": record, "binaries": binaries, "inputs": self.inputs}

    @classmethod
    def from_value(cls, value: Any, item: InboxItem) -> Work:
        """Return the work that an inbox item asks for."""
        message = messages.from_record(value["message"], value["binaries"])
        return cls(message, value["inputs"], item.key, item)


@dataclass(slots=True)
class Warm:
    """What a driver built, for the next one; of use only where the log still ends in `state`."""

    blueprint: Blueprint
    transcript: Transcript
    kernel: KernelSession
    choice: Choice
    surfaces: tuple[Surface, ...]
    state: State | None = None


class Driver:
    """The holder of one session's lease."""

    def __init__(
        self,
        *,
        store: SessionStore,
        lease: Lease,
        state: State,
        agent: Agent | None,
        model: Callable[[str], Model],
        kernels: Kernels,
        leaf_gate: LeafGate,
        reply_gate: asyncio.Semaphore,
        stop_asked: asyncio.Future[None],
        warm: Warm | None = None,
    ) -> None:
        self.lease = lease
        self.journal = Journal(store, lease, state, reply_gate)
        self.warm = warm
        self._store = store
        self._agent = agent
        self._model = model
        self._kernels = kernels
        self._leaf_gate = leaf_gate
        self._stop_asked = stop_asked
        self._active: Drive | None = None

    @property
    def state(self) -> State:
        """Return where the log stands."""
        return self.journal.state

    async def send(self, work: Work) -> TurnResult:
        """Finish what is open, then work one message until a terminal outcome."""
        ended = await self._ended()
        if ended is not None:
            return ended
        if self.state.turn is not None:
            result = await self._revive(force=False)
            if isinstance(result, Suspended):
                raise SessionBusy(
                    f"session {self.lease.session!r} waits for {', '.join(result.calls)}; answer "
                    "first, or send with when_busy='queue'"
                )
            if self.state.turn is not None or isinstance(result, Stopped):
                return result
        # What waited in the inbox when the lease was taken was sent before: it comes first.
        for _ in range(self.lease.inbox):
            queued = await self._queued()
            if queued is None:
                break
            result = await self._work(queued)
            if self.state.turn is not None or self.state.status != "idle":
                return result
        return await self._work(work, last=True)

    async def resume(self, *, force: bool) -> TurnResult | None:
        """Go on with what is open, then with queued messages; None if there was nothing."""
        result = await self._ended()
        if result is not None:
            return result
        if self.state.turn is not None:
            result = await self._revive(force=force)
        while self.state.turn is None and self.state.status == "idle":
            queued = await self._queued()
            if queued is None:
                break
            result = await self._work(queued)
        return result

    async def settle_stop(self) -> Stopped | None:
        """End the session if someone asked for it; None if nobody did."""
        item = await stop_item(self._store, self.lease.session)
        if item is None:
            return None
        turn = self.state.turn
        end: list[Fact] = []
        result = Stopped(session=self.lease.session, head=self.state.head)
        if turn is not None:
            error = problem("stopped", "the session was stopped")
            end = abandoned(self.state, error)
            put = turn_end(self.state, "stopped", end, error=error)
            end.append(put)
            result = Stopped(
                session=self.lease.session,
                turn=turn.turn,
                steps=turn.steps,
                usage=put.usage or {},
                cost_usd=put.cost_usd,
                held_usd=put.held_usd,
                unknown_calls=put.unknown_calls,
                head=self.state.head,
            )
        await self.journal.append(
            lambda _: [_admitted(item), facts.SessionStopRequested(), *end, facts.SessionStopped()],
            consumes=[item.key],
        )
        return result

    async def close(self, *, failed: bool, interrupted: bool = False) -> None:
        """Give the lease back; what was built stays warm unless it may not match the log."""
        try:
            if interrupted:
                await self._record_interruption()
            if self.warm is not None:
                if failed or (self._active is not None and self._active.stale):
                    await self.warm.kernel.close()
                    self.warm = None
                else:
                    self.warm.state = self.state
        finally:
            if self.journal.waiting is None:
                await self._store.release(self.lease)

    async def _record_interruption(self) -> None:
        """Record that driving was broken off on purpose; the turn stays open."""
        turn = self.state.turn
        if turn is None:
            return
        text = "driving was broken off; resume goes on from here"
        spend = broken_off(self.state)
        end = facts.TurnPut(
            turn=turn.turn,
            status="interrupted",
            steps=turn.steps,
            error=problem("interrupted", text),
            usage={"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
            cost_usd=spend.usd,
            held_usd=spend.held_usd if spend.unknown_usd else None,
            unknown_calls=spend.unknown_usd,
            elapsed_ms=turn.driven_ms,
        )
        await self.journal.append(lambda _: [end])

    async def _ended(self) -> TurnResult | None:
        """Return the result of a session that is over, or that someone asked to stop."""
        if self.state.status == "stopped":
            return Stopped(session=self.lease.session, head=self.state.head)
        if self.state.status == "failed":
            return Failed(
                session=self.lease.session,
                head=self.state.head,
                error="the session has failed; fork it from a head to go on",
                code="session_failed",
            )
        return await self.settle_stop() if self.lease.inbox else None

    async def _work(self, work: Work, *, last: bool = False) -> TurnResult:
        """Open a turn for a message and drive it."""
        drive = await self._drive()
        drive.last = last
        if work.key is not None and work.admitted is None:
            # Recorded by its key, so that the same message sent again is known.
            item = await self._store.put_inbox(self.lease.session, work.draft(work.key))
            if item.consumed_seq is not None:
                return await result_of(self._store, self.lease.session, item.key)
            work = replace(work, admitted=item)
        excess = governor.before_turn(drive.blueprint.settings, self.state)
        if excess is not None:
            fact = facts.BudgetExceeded(
                limit=excess.limit, used=excess.used, allowed=excess.allowed
            )
            await self.journal.append(lambda _: [*_admission(work), fact], consumes=_keys(work))
            return BudgetExceeded(
                session=self.lease.session,
                head=self.state.head,
                limit=excess.limit,
                used=excess.used,
                allowed=excess.allowed,
                error=excess.message,
            )
        for attempt in (1, 2):
            try:
                await self._open_turn(drive, work)
                break
            except KernelError as error:
                if work.admitted is None:
                    raise  # nothing is stored, and whoever sent it hears why
                if attempt == 2:
                    return await self._refuse(drive, work, error)
        return await self._driven(drive)

    async def _refuse(self, drive: Drive, work: Work, error: KernelError) -> Failed:
        """Fail the turn of a stored message whose inputs no worker takes: no later one would."""
        drive.stale = True
        content, parts = message_slots(work.message)
        turn = self.state.next("turn")
        problem = slot({"code": error.code, "message": str(error)}, "error")
        await self.journal.append(
            lambda state: [
                *_admission(work),
                TurnStarted(turn=turn),
                MessageAppended(
                    message=state.next("message"), role="user", content=content, turn=turn
                ),
                facts.TurnPut(turn=turn, status="failed", error=problem),
            ],
            consumes=_keys(work),
            payloads=parts,
        )
        return Failed(
            session=self.lease.session,
            turn=turn,
            head=self.state.head,
            error=str(error),
            code=error.code,
        )

    async def _open_turn(self, drive: Drive, work: Work) -> None:
        slots = inputs.input_slots(work.inputs)
        card = inputs.cards(work.inputs)
        message = work.message
        if card:
            message = Message("user", (*message.parts, Text("\n\n" + card)))
            if all(type(part) is Text and part.note is None for part in message.parts):
                message = messages.user(message.text)
        content, parts = message_slots(message)
        kept: list[Fact] = []
        for name, item in slots.items():
            await drive.kernel.set_variable(name, Encoded(item.encoding, item.data or b""))
        if slots:
            vars_slot, chunks = checkpoint_slots(await drive.kernel.checkpoint())
            kept = [VarsCheckpointed(vars=vars_slot, turn=self.state.next("turn"))]
            parts = [*parts, *chunks]

        def batch(state: State) -> list[Fact]:
            turn = state.next("turn")
            return [
                *_admission(work),
                TurnStarted(turn=turn, inputs=slots),
                MessageAppended(
                    message=state.next("message"), role="user", content=content, turn=turn
                ),
                *kept,
                *drive.announce(state, turn, message),
            ]

        await self.journal.append(batch, consumes=_keys(work), payloads=parts)
        drive.transcript.add(message)

    async def _revive(self, *, force: bool) -> TurnResult:
        """Go on with a turn that an earlier driver left open."""
        turn = self.state.turn
        assert turn is not None
        if self.state.status == "suspended":
            return Suspended(
                session=self.lease.session, turn=turn.turn, calls=tuple(self.state.calls)
            )
        if self.state.revivals >= REVIVALS_WITHOUT_OUTCOME and not force:
            spend = broken_off(self.state)
            return Failed(
                session=self.lease.session,
                turn=turn.turn,
                steps=turn.steps,
                usage={"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
                cost_usd=spend.usd,
                held_usd=spend.held_usd,
                unknown_calls=spend.unknown_usd,
                head=self.state.head,
                error=f"turn {turn.turn} was revived {self.state.revivals} times without a new "
                "outcome; look at its last step, then resume with force, or stop the session",
                code="revival_limit",
            )
        # A process that lacks what it takes refuses here, before it uses up a revival.
        drive = await self._drive()
        await self.journal.append(
            lambda state: [
                facts.SessionRevived(
                    turn=turn.turn, owner=self.lease.owner, forced=force, found=turn.phase
                ),
                *lost_leaves(state),
            ]
        )
        drive.revived = True
        return await self._driven(drive)

    async def _driven(self, drive: Drive) -> TurnResult:
        """Drive the open turn, unless someone asks to stop the session meanwhile."""
        work = asyncio.ensure_future(drive.turn())
        broken_off = False

        def break_off(_: asyncio.Future[None]) -> None:
            nonlocal broken_off
            broken_off = work.cancel()

        self._stop_asked.add_done_callback(break_off)
        try:
            await asyncio.wait({work})
            if broken_off and self.journal.waiting is not None:
                # The turn came to its end before the stop did: who drives next settles that one.
                return await drive.last_result()
            if broken_off:
                stopped = await self.settle_stop()
                if stopped is not None:
                    return stopped
            return work.result()
        finally:
            self._stop_asked.remove_done_callback(break_off)
            await ended(work)

    async def _queued(self) -> Work | None:
        for item in await self._store.list_inbox(self.lease.session):
            if item.kind == "message" and item.content is not None:
                value = (await hydrate(self._store, self.lease.session, item.content)).value()
                return Work.from_value(value, item)
        return None

    async def _drive(self) -> Drive:
        """Return the drive of this session, warm or built from the log."""
        if self._active is not None:
            return self._active
        warm = self.warm
        if warm is None or warm.state is None or warm.state.digest != self.state.digest:
            if warm is not None:
                await warm.kernel.close()
            warm = self.warm = await self._build()
        settings = warm.blueprint.settings
        self._active = Drive(
            journal=self.journal,
            blueprint=warm.blueprint,
            transcript=warm.transcript,
            kernel=warm.kernel,
            engine=warm.choice.name,
            model=self._named(settings.model),
            leaf_model=self._named(settings.leaf_model or settings.model),
            leaf_gate=self._leaf_gate,
            surfaces=warm.surfaces,
        )
        return self._active

    def _named(self, name: str) -> Model:
        try:
            return self._model(name)
        except InvalidSettings as error:
            if ":" in name:
                raise
            raise AgentMissing(
                f"session {self.lease.session!r} was started with a model of the program's own, "
                f"{name!r}, which is not here; open the runtime with it, as in open(model=…)"
            ) from error

    async def _build(self) -> Warm:
        if self._agent is None:
            raise AgentMissing(f"agent {self.state.agent!r} is not registered here")
        session_id = self.lease.session
        _, blueprint = await blueprints.load(self._store, session_id)
        surfaces = blueprints.match_surfaces(self._store, session_id, blueprint, self._agent)
        capability = blueprint.capability
        choice = await self._kernels.choose(blueprint.settings.kernel, capability)
        functions = host_functions(surfaces)
        if capability.model_calls:
            functions = (*leaves.FUNCTIONS, *functions)
        kernel = await choice.kernel.open(
            KernelSettings(
                functions=functions,
                read_roots=capability.read_roots,
                hidden=blueprints.hidden_paths(self._store, blueprint.settings.work_area),
                limits=_limits(capability),
                seed=blueprint.seed,
            ),
            fetch=lambda payload_id: self._store.get_payload(session_id, payload_id),
            manifest=await self._namespace(),
        )
        transcript = await load_transcript(self._store, session_id, self.state.compact_from)
        return Warm(blueprint, transcript, kernel, choice, surfaces)

    async def _namespace(self) -> Any:
        if self.state.vars is None:
            return None
        return (await namespace(self._store, self.lease.session, self.state.vars)).value()


def _limits(capability: Capability) -> KernelLimits:
    return KernelLimits(
        memory_bytes=capability.memory_bytes,
        cpu_seconds=capability.cpu_seconds,
        wall_seconds=capability.wall_seconds,
        output_bytes=capability.output_bytes,
        processes=capability.processes,
        open_files=capability.open_files,
    )


def _admitted(item: InboxItem) -> facts.InputAdmitted:
    return facts.InputAdmitted(
        key=item.key,
        kind=item.kind,
        call_id=item.call_id,
        content=item.content,
        sent_at=item.at,
    )


def _admission(work: Work) -> list[Fact]:
    return [] if work.admitted is None else [_admitted(work.admitted)]


def _keys(work: Work) -> list[str]:
    return [] if work.admitted is None else [work.admitted.key]
