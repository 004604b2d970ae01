"""The driver: from taking a session's lease to giving it back.

It admits what the inbox holds, revives what an earlier driver left, opens turns for messages and
works them, and settles stop requests. What it built (blueprint, transcript, harness) is kept warm
for the next driver of this process, and dropped where the log says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import messages
from holdfast.core.errors import (
    AgentMissing,
    KernelError,
    PayloadNotFound,
    SessionBusy,
    SettingsConflict,
    StoreFailed,
)
from holdfast.core.facts import (
    Fact,
    InputAdmitted,
    MessageAppended,
    SessionConfigured,
    SessionRevived,
    SessionStarted,
    TurnPut,
    TurnReopened,
    TurnStarted,
    VarsCheckpointed,
)
from holdfast.core.messages import Message, observation
from holdfast.core.payloads import slot
from holdfast.core.state import State, lost_leaves
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget, inbox, input_files, inputs, results, settle
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.children import (
    STOP_KEY,
    TASK_KEY,
    Children,
    asked_for,
    is_wanted,
    report,
    schema_of,
    unmade,
)
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.dispatch import Dispatcher
from holdfast.runtime.engine import Engine
from holdfast.runtime.harness import Harness
from holdfast.runtime.harness.code import CodeHarness
from holdfast.runtime.harness.tools import ToolsHarness
from holdfast.runtime.hooks import Halted
from holdfast.runtime.inbox import Watched
from holdfast.runtime.journal import Journal, namespace
from holdfast.runtime.results import Stopped, Suspended, TurnResult
from holdfast.runtime.scope import Scope
from holdfast.runtime.shielding import ended
from holdfast.runtime.shortage import Shortage, posted_again
from holdfast.runtime.tools import Toolset
from holdfast.runtime.transcript import (
    Transcript,
    estimate_tokens,
    load_transcript,
    message_slots,
)
from holdfast.runtime.turn import Steering, TurnLoop
from holdfast.stores.port import InboxDraft, InboxItem, Lease

logger = logging.getLogger("holdfast.runtime")

REVIVALS_WITHOUT_OUTCOME = 2
HARNESSES: dict[str, type[CodeHarness] | type[ToolsHarness]] = {
    "code": CodeHarness,
    "tools": ToolsHarness,
}


@dataclass(frozen=True, slots=True)
class Work:
    """A message to work on, with its inputs."""

    message: Message
    inputs: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    item: InboxItem | None = None  # where it waited
    when_busy: str = "queue"  # queue, steer or interrupt
    scope: Scope | None = field(default=None, repr=False)
    output: dict[str, Any] | None = None  # the schema that a parent asks for
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # path, size and digest

    def draft(self, key: str) -> InboxDraft:
        """Return the work as it waits in the inbox."""
        inputs.input_slots(self.inputs)
        record, binaries = messages.to_record(self.message)
        value: dict[str, Any] = {"message": record, "binaries": binaries, "inputs": self.inputs}
        if self.files:
            value["files"] = self.files
        if self.when_busy != "queue":
            value["when_busy"] = self.when_busy
        if self.scope is not None and self.scope.reference is not None:
            value["scope"] = self.scope.reference
        if self.output is not None:
            value["output"] = self.output
        return InboxDraft(key=key, kind="message", content=slot(value, "input"))

    @classmethod
    def from_value(cls, value: Any, item: InboxItem) -> Work:
        """Return the work that an inbox item asks for."""
        message = messages.from_record(value["message"], value["binaries"])
        busy, scope = value.get("when_busy", "queue"), _stored_scope(value)
        files, output = value.get("files", {}), value.get("output")
        return cls(message, value["inputs"], item.key, item, busy, scope, output, files)

    @property
    def admission(self) -> list[Fact]:
        """Return the fact that the message was taken out of the inbox."""
        return [] if self.item is None else [inbox.admitted(self.item)]

    @property
    def keys(self) -> list[str]:
        """Return what its batch consumes."""
        return [] if self.item is None else [self.item.key]


def _stored_scope(value: Any) -> Scope | None:
    """Return the scope that a message of the inbox left as a reference."""
    reference = value.get("scope")
    return None if reference is None else Scope(reference=reference)


@dataclass(slots=True)
class Warm:
    """What a driver built, for the next one."""

    blueprint: Blueprint
    toolsets: tuple[Toolset, ...]
    transcript: Transcript
    state: State
    harness: Harness | None = None
    compared: bool = False  # with the agent that is here

    def matches(self, state: State) -> bool:
        """Tell whether what is in memory is what the log says."""
        if self.transcript.number != state.counters.get("message", 0):
            return False
        if self.state.configured != state.configured:
            return False
        return self.harness is None or self.harness.matches(state.vars)

    async def close(self) -> None:
        """Let go of what is in memory."""
        if self.harness is not None:
            await self.harness.close()


class Driver:
    """The holder of one session's lease."""

    def __init__(
        self, engine: Engine, lease: Lease, state: State, watched: Watched, warm: Warm | None
    ) -> None:
        self.lease = lease
        self.journal = Journal(engine.store, lease, state)
        self.warm = warm
        self._engine = engine
        self._store = engine.store
        self._watched = watched
        self._waited = state.status == "suspended"
        """Whether the turn was left on purpose, waiting for someone: going on is no revival."""
        self._children: Children | None = None
        self._dispatcher = Dispatcher(
            self.journal, engine.guards, replayed=engine.replay is not None
        )

    @property
    def state(self) -> State:
        """Return where the log stands."""
        return self.journal.state

    @property
    def watched(self) -> Watched:
        """Return what says that something has arrived in the inbox."""
        return self._watched

    async def send(self, work: Work) -> TurnResult:
        """Finish what is open, then work one message until a terminal outcome."""
        over = await self._over()
        if over is not None:
            return over
        if self.state.turn is None and self.state.status == "suspended":
            raise _waiting(self.lease.session, self.state.calls)
        if self.state.turn is not None:
            result = await self._revive(force=False)
            if isinstance(result, Suspended):
                raise _waiting(self.lease.session, result.calls)
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

    async def resume(self, *, force: bool, scope: Scope | None = None) -> TurnResult | None:
        """Go on with what is open, then with queued messages; None if there was nothing.

        The scope counts for the open turn, and for the task of a child: other messages that wait
        were sent by someone else.
        """
        result = await self._over()
        if result is not None:
            return result
        if self.state.turn is not None:
            result = await self._revive(force=force, scope=scope)
        while self.state.turn is None and self.state.status == "idle":
            queued = await self._queued()
            if queued is None:
                break
            if queued.key == TASK_KEY and scope is not None:
                queued = replace(queued, scope=scope)
            result = await self._work(queued)
        return result

    async def retry(self, scope: Scope | None = None) -> TurnResult | None:
        """Take up the last turn again, which ended without a value; None if there is none."""
        over = await self._over()
        if over is not None:
            return over
        settled = self.state.settled
        if self.state.turn is not None or settled is None or self.state.calls:
            return await self.resume(force=False, scope=scope)
        # A process that lacks what it takes refuses here, before the turn is open again.
        loop = await self._loop()
        await self.journal.append(lambda _: [TurnReopened(turn=settled.turn)])
        self._act_for(await self._scope_left() or scope)
        return await self._driven(loop)

    async def admit(self) -> None:
        """Turn what moves calls into facts; needs no agent."""
        await inbox.admit(self.journal)

    async def compact(self, strategies: Sequence[str]) -> Compaction | None:
        """Shorten the transcript now; None where nothing would be gained."""
        if results.ended(self.state) is not None:
            return None
        loop = await self._loop()
        return await loop.compactor.on_demand(strategies)

    async def settle_stop(self) -> TurnResult | None:
        """End the session if someone asked for it; None if nobody did."""
        left = await inbox.admit(self.journal)
        return None if left.stop is None else await settle.stopped(self.journal, left.stop)

    async def close(self, *, failed: bool, interrupted: bool = False) -> None:
        """Give the lease back; what was built stays warm unless it does not match the log."""
        try:
            if interrupted:
                await settle.interrupted(self.journal)
            if self.warm is not None:
                fits = self.warm.matches(self.state)
                self.warm.state = self.state
                if failed or not fits:
                    await self.warm.close()
                    self.warm = None
        finally:
            if self.journal.waiting is None:
                await self._store.release(self.lease)

    async def _over(self) -> TurnResult | None:
        """Return the result of a session that is over, or that someone asked to stop."""
        over = results.ended(self.state)
        if over is None and not await is_wanted(self._store, self.state):
            await self._store.put_inbox(self.lease.session, InboxDraft(key=STOP_KEY, kind="stop"))
            return await self.settle_stop()
        if over is None and self.lease.inbox:
            over = await self.settle_stop()
        if over is None:
            await self._settle_left()
        return over

    async def _settle_left(self) -> None:
        """Settle calls that a program made outside of turns and did not live to see the end of."""
        if settle.left_by_programs(self.state):
            await self.journal.append(settle.left_by_programs)
        await self._close_unmade()
        if self.state.turn is None and self.state.status == "suspended":
            await inbox.admit(self.journal)

    async def _close_unmade(self) -> None:
        """Give back what is set aside for children that will never be made."""
        closing = await unmade(self._store, self.state)
        if closing:
            await self.journal.append(lambda _: closing)

    async def _work(self, work: Work, *, last: bool = False) -> TurnResult:
        """Open a turn for a message and drive it."""
        await self._compare()
        loop = await self._loop(release=last)
        self._act_for(work.scope)
        if work.key is not None and work.item is None:
            # Recorded by its key, so that the same message sent again is known.
            item = await self._store.put_inbox(self.lease.session, work.draft(work.key))
            if item.consumed_seq is not None:
                return await results.of_key(self._store, self.lease.session, item.key)
            work = replace(work, item=item)
        excess = budget.before_turn(loop.blueprint.settings, self.state)
        if excess is not None:
            return await settle.refused(self.journal, excess, work.admission, work.keys)
        await loop.compactor.between_turns(estimate_tokens(work.message.text))
        for attempt in (1, 2):
            try:
                await self._open_turn(loop, work)
                break
            except KernelError as error:
                if work.item is None:
                    raise  # nothing is stored, and whoever sent it hears why
                if attempt == 2:
                    return await self._refuse(work, error)
        return await self._driven(loop)

    async def _refuse(self, work: Work, error: KernelError) -> TurnResult:
        """Fail the turn of a stored message whose inputs no worker takes: no later one would."""
        content, parts = message_slots(work.message)
        turn = self.state.next("turn")
        put = TurnPut(turn=turn, status="failed", error=settle.problem(error.code, str(error)))
        await self.journal.append(
            lambda state: [
                *work.admission,
                TurnStarted(turn=turn),
                MessageAppended(
                    message=state.next("message"), role="user", content=content, turn=turn
                ),
                put,
            ],
            consumes=work.keys,
            payloads=parts,
            posts=report(self.state),
        )
        return await results.of(self._store, self.lease.session, put, head=self.state.head)

    async def _open_turn(self, loop: TurnLoop, work: Work) -> None:
        slots = inputs.input_slots(work.inputs) | input_files.slots(work.files)
        message = work.message
        content, parts = message_slots(message)
        card = inputs.cards(work.inputs, work.files)
        shown = [message, *([observation(card)] if card else [])]
        loop.output_schema = work.output
        if work.output is None:
            loop.output_schema = self._engine.agent(self.state.agent).output_schema
        wanted = None if loop.output_schema is None else slot(loop.output_schema, "settings")
        bound, chunks = await loop.harness.bind(slots)

        def batch(state: State) -> list[Fact]:
            turn = state.next("turn")
            kept = [] if bound is None else [VarsCheckpointed(vars=bound, turn=turn)]
            return [
                *settle.compaction_lost(state),
                *work.admission,
                TurnStarted(turn=turn, inputs=slots, output_schema=wanted),
                MessageAppended(
                    message=state.next("message"),
                    role="user",
                    content=content,
                    turn=turn,
                    card=slot(card, "message") if card else None,
                ),
                *kept,
                *loop.first_step(state, turn, *shown),
            ]

        await self.journal.append(batch, consumes=work.keys, payloads=[*parts, *chunks])
        loop.transcript.add(*shown)

    async def _revive(self, *, force: bool, scope: Scope | None = None) -> TurnResult:
        """Go on with a turn that an earlier driver left open, or that someone answered."""
        turn = self.state.turn
        assert turn is not None
        self._act_for(await self._scope_left() or scope)
        if self.state.status == "suspended":
            for above, draft in await posted_again(self.journal):
                await self._store.put_inbox(above, draft)
            left = await inbox.admit(self.journal)
            if any(work.when_busy == "interrupt" for work in await self._works(left.messages)):
                await inbox.call_off_waits(self.journal)
        if self.state.status == "suspended" and not self._waits_for_children:
            return results.suspended(self.state)
        begun_elsewhere = self.state.seq == 1  # a fork inside a turn, which nobody drove yet
        if (self._waited or begun_elsewhere) and settle.is_at_rest(self.state):
            return await self._driven(await self._loop())
        if self.state.revivals >= REVIVALS_WITHOUT_OUTCOME and not force:
            limit = results.revival_limit(self.state, settle.spend_if_broken_off(self.state))
            if self.state.parent is None:
                return limit
            return await settle.ended(self.journal, "failed", limit.code, limit.error)
        # A process that lacks what it takes refuses here, before it uses up a revival.
        loop = await self._loop()
        why = settle.problem("lost", "the process ended while the model was being asked")
        await self.journal.append(
            lambda state: [
                SessionRevived(
                    turn=turn.turn, owner=self.lease.owner, forced=force, found=turn.phase
                ),
                *settle.step_lost(state, why),
                *settle.compaction_lost(state),
                *lost_leaves(state),
            ]
        )
        return await self._driven(loop)

    def _act_for(self, scope: Scope | None) -> None:
        """Let the tools of the open turn, and its children, act for someone."""
        self._dispatcher.scope = scope
        if self._children is not None:
            self._children.scope = scope

    async def _scope_left(self) -> Scope | None:
        """Return the scope that the message of the open turn left as a reference."""
        turn = self.state.turn
        if turn is None or turn.started_seq < 2:  # a fork inside a turn: nobody sent it
            return None
        place = turn.started_seq
        # What admitted a message stands right before the turn that it opened.
        page = await self._store.read_events(self.lease.session, after=place - 2, before=place)
        fact = page[0].fact() if page else None
        if not isinstance(fact, InputAdmitted) or fact.kind != "message" or fact.content is None:
            return None
        try:
            return _stored_scope(await self.journal.value(fact.content))
        except PayloadNotFound:
            return None  # erased

    async def _driven(self, loop: TurnLoop) -> TurnResult:
        """Drive the open turn, and tell the hooks what came of it."""
        hooks = self._dispatcher.hooks
        try:
            result = await self._driven_until_stopped(loop)
            while isinstance(result, Suspended) and self._has_moved(loop):
                # An answer was admitted just as the turn was given up: nobody else goes on.
                result = await self._driven_until_stopped(loop)
            if hooks.has("turn_ended") and not isinstance(result, Suspended):
                with suppress(Halted):  # there is nothing left to halt
                    await hooks.tell("turn_ended", self._dispatcher.context(), result)
            if self.state.status == "idle" and self.journal.waiting is None:
                await self._close_unmade()
            return result
        finally:
            await hooks.close()

    def _has_moved(self, loop: TurnLoop) -> bool:
        """Tell whether a turn that was found waiting can go on by now."""
        return self.state.status == "running" or (
            self.state.status == "suspended" and loop.harness.can_go_on()
        )

    async def _driven_until_stopped(self, loop: TurnLoop) -> TurnResult:
        """Drive the open turn, unless someone asks to stop the session meanwhile."""
        if loop.output_schema is None:
            loop.output_schema = await self._output_schema()
        work = asyncio.ensure_future(loop.run())
        if self.lease.inbox:
            self._watched.arrived.set()
        answers = asyncio.ensure_future(self._admit_answers(loop))
        broken_off = False

        def break_off(_: asyncio.Future[None]) -> None:
            nonlocal broken_off
            broken_off = work.cancel()

        self._watched.stop.add_done_callback(break_off)
        try:
            await asyncio.wait({work})
            if broken_off and self.journal.waiting is not None:
                # The turn came to its end before the stop did: who drives next settles that one.
                turn = self.state.counters["turn"]
                result = await results.of_turn(self._store, self.lease.session, turn)
                assert result is not None
                return result
            if broken_off:
                stopped = await self.settle_stop()
                if stopped is not None:
                    return stopped
            return work.result()
        finally:
            self._watched.stop.remove_done_callback(break_off)
            await ended(answers)
            await ended(work)

    @property
    def _waits_for_children(self) -> bool:
        return any(call.kind == "child" for call in self.state.calls.values())

    async def _until_moved(self) -> bool:
        """Wait while children are driven here; tell whether what waited for them can go on."""
        assert self._children is not None
        assert self.warm is not None
        harness = self.warm.harness
        self._children.take_up()
        while self.state.status == "suspended" and not (harness and harness.can_go_on()):
            if not self._children.busy:
                return False
            await self._children.changed()
        return True

    def _output_type(self) -> Any:
        agent = self._engine.agents.get(self.state.agent)
        return None if agent is None else agent.output_type

    async def _output_schema(self) -> dict[str, Any] | None:
        """Return the schema that the final value of the open turn must fit."""
        turn = self.state.turn
        if turn is None:
            return None
        place = turn.started_seq
        page = await self._store.read_events(self.lease.session, after=place - 1, before=place + 1)
        fact = page[0].fact() if page else None
        if isinstance(fact, SessionStarted):  # a fork inside a turn
            return (await self._warmed()).blueprint.output_schema
        if not isinstance(fact, TurnStarted) or fact.output_schema is None:
            return None
        found: Any = await self.journal.value(fact.output_schema)
        return dict(found)

    async def _admit_answers(self, loop: TurnLoop) -> None:
        """Admit what arrives while the turn is driven: a cell may wait for it in place."""
        seen: set[str] = set()
        while True:
            await self._watched.arrived.wait()
            self._watched.arrived.clear()
            try:
                left = await inbox.admit(self.journal)
                fresh = [item for item in left.messages if item.key not in seen]
                seen.update(item.key for item in fresh)
                for work in await self._works(fresh):
                    if work.when_busy != "queue" and work.item is not None:
                        loop.steering.append(Steering(work.message, work.item))
                    if work.when_busy == "interrupt":
                        await inbox.call_off_waits(self.journal)
            except StoreFailed:
                logger.warning("an answer for %s was not admitted", self.lease.session)

    async def _works(self, items: Sequence[InboxItem]) -> list[Work]:
        """Return the work that messages of the inbox ask for."""
        return [
            Work.from_value(await self.journal.value(item.content), item)
            for item in items
            if item.content is not None
        ]

    async def _queued(self) -> Work | None:
        left = await inbox.admit(self.journal)
        found = await self._works(left.messages[:1])
        return found[0] if found else None

    async def configure(self, explicit: Mapping[str, Any], by: str | None, now: bool) -> None:
        """Change the settings of the session on request, which may widen them.

        An open turn keeps its settings, unless they change `now`, which takes a step boundary.
        """
        turn = self.state.turn
        if turn is not None and not now:
            raise SessionBusy(
                f"session {self.lease.session!r} has an open turn, which keeps its settings; "
                "resume or stop it first, or configure it with now=True"
            )
        if turn is not None and (self.state.calls or turn.phase == "replied"):
            raise SessionBusy(
                f"turn {turn.turn} of session {self.lease.session!r} is inside of a step: its "
                "reply has calls or cells to finish; resume it first"
            )
        await self._compare(explicit, by)

    async def _compare(
        self, explicit: Mapping[str, Any] | None = None, by: str | None = None
    ) -> None:
        """Record what has changed of the agent, or is asked for, before a turn begins."""
        warm = await self._warmed()
        agent = self._engine.agent(self.state.agent)
        if warm.compared and explicit is None:
            return
        settings = warm.blueprint.settings
        card = ""
        if settings.harness == "code":
            card = (
                await self._engine.kernels.choose(settings.kernel, warm.blueprint.capability)
            ).card
        plan, changes = blueprints.renewed(
            warm.blueprint,
            agent,
            kernel_card=card,
            store=self._store,
            depth=self.state.depth,
            explicit=explicit,
        )
        if agent.version != self.state.agent_version:
            changes["agent_version"] = [self.state.agent_version, agent.version]
        if changes:
            if agent.pinned and explicit is None:
                told = "; ".join(
                    f"{name}: {old!r}, now {new!r}" for name, (old, new) in changes.items()
                )
                raise SettingsConflict(
                    f"agent {agent.name!r} is pinned and differs from what session "
                    f"{self.lease.session!r} is driven with: {told}; configure the session, or "
                    "drive it with the agent that it had"
                )
            item, payloads = plan.slots()
            fact = SessionConfigured(
                settings=item,
                changes=slot(changes, "settings"),
                agent_version=agent.version,
                by=by,
            )
            why = settle.problem("lost", "the process ended while the model was being asked")
            await self.journal.append(
                lambda state: [*settle.step_lost(state, why), fact], payloads=payloads
            )
            await warm.close()
            self.warm = warm = await self._build()
        warm.compared = True

    async def _warmed(self) -> Warm:
        """Return what is warm and matches the log, or built from it."""
        if self.warm is not None and not self.warm.matches(self.state):
            await self.warm.close()
            self.warm = None
        self.warm = self.warm or await self._build()
        return self.warm

    async def _loop(self, *, release: bool = False) -> TurnLoop:
        """Return the loop of this session's turns, with what is warm or built from the log."""
        if self.warm is not None and not self.warm.matches(self.state):
            await self.warm.close()
            self.warm = None
        warm = self.warm = self.warm or await self._build()
        children = self._children = self._children or self._looked_after(warm.blueprint)
        driving = self._engine.driving
        assert driving is not None
        shortage = Shortage(self.journal, warm.blueprint, driving.tell)
        if warm.harness is None:
            kind = HARNESSES[warm.blueprint.settings.harness]
            warm.harness = kind(
                *(self._engine, self.journal, warm.blueprint, warm.toolsets, warm.transcript),
                *(children, shortage),
            )
        warm.harness.journal = self.journal
        warm.harness.children = children
        warm.harness.shortage = shortage
        warm.harness.dispatcher = self._dispatcher
        agent = self._engine.agents.get(self.state.agent)
        self._dispatcher.hooks.hooks = () if agent is None else agent.hooks
        settings = warm.blueprint.settings
        return TurnLoop(
            journal=self.journal,
            blueprint=warm.blueprint,
            transcript=warm.transcript,
            harness=warm.harness,
            model=self._engine.model_of(
                self.lease.session, settings.model, settings, lambda: self.journal.state
            ),
            toolsets=warm.toolsets,
            shortage=shortage,
            until_moved=self._until_moved,
            output_type=self._output_type(),
            replay=self._engine.replay,
            release=release,
            dispatcher=self._dispatcher,
        )

    def _looked_after(self, blueprint: Blueprint) -> Children:
        """Return what looks after the children of this session."""
        driving = self._engine.driving
        assert driving is not None

        def message(task: str, inputs: Mapping[str, Any], output: Any) -> InboxDraft:
            work = Work(messages.user(task + asked_for(output)), dict(inputs))
            wanted = schema_of(output)
            return replace(work, scope=self._dispatcher.scope, output=wanted).draft(TASK_KEY)

        return Children(
            log=self.journal,
            driving=driving,
            message=message,
            admit=lambda: inbox.admit(self.journal),
            gate=asyncio.Semaphore(blueprint.settings.child_concurrency),
            scope=self._dispatcher.scope,
        )

    async def _build(self) -> Warm:
        agent = self._engine.agents.get(self.state.agent)
        if agent is None:
            raise AgentMissing(f"agent {self.state.agent!r} is not registered here")
        session = self.lease.session
        blueprint = await blueprints.load(self._store, session, self.state.configured)
        toolsets = blueprints.match_tools(self._store, blueprint, agent)
        if blueprint.settings.harness == "code":
            # Refused before any work where this machine cannot run it or restore its namespace.
            await self._engine.kernels.choose(blueprint.settings.kernel, blueprint.capability)
        if self.state.vars is not None:
            await namespace(self._store, session, self.state.vars)
        transcript = await load_transcript(self._store, self.state)
        return Warm(blueprint, toolsets, transcript, self.state)


def _waiting(session_id: str, calls: Iterable[str]) -> SessionBusy:
    return SessionBusy(
        f"session {session_id!r} waits for {', '.join(calls)}; answer first, or send with "
        "when_busy='queue'"
    )
