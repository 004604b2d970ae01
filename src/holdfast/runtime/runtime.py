"""The Runtime: sessions of one store, driven here.

It owns the store handle, the kernel and the models, and takes a session's lease only while it
drives it. Recovery happens when someone asks for it (`send`, `resume`, `open(recover=True)`),
never as a side effect of reading.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from holdfast.core import values
from holdfast.core.capability import Capability
from holdfast.core.errors import (
    HoldfastError,
    InboxConsumed,
    InboxItemNotFound,
    InvalidInput,
    InvalidSettings,
    LeaseHeld,
    SessionBusy,
    SessionNotFound,
    SettingsConflict,
    check_kind,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import check_id, check_key, new_session_id
from holdfast.core.messages import Message, user
from holdfast.core.state import State
from holdfast.kernels.choose import Kernels
from holdfast.models.port import Model
from holdfast.runtime import answers, input_files, results, schemas
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.agent import Agent, by_name, check_model_of
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.children import OWN_KEYS, STOP_KEY
from holdfast.runtime.claims import Claims
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.driver import Warm, Work
from holdfast.runtime.embedding import Embedding
from holdfast.runtime.engine import Engine
from holdfast.runtime.erasing import Erasure, erase
from holdfast.runtime.forks import fork_session
from holdfast.runtime.inputs import check_names
from holdfast.runtime.results import Final, Pending, Queued, Stopped, TurnResult
from holdfast.runtime.scope import Guards, Scope, scope_of
from holdfast.runtime.session import AnySession, Session, WhenBusy, id_of
from holdfast.runtime.settings import Resolved, SettingsOptions, check_model, resolve
from holdfast.runtime.shielding import ended
from holdfast.runtime.transcript import Transcript
from holdfast.runtime.writing import Writers
from holdfast.stores.choose import find_folder, open_store
from holdfast.stores.port import (
    AuditRow,
    InboxDraft,
    InboxItem,
    PendingFilter,
    PendingPage,
    SessionFilter,
    SessionPage,
    SessionStore,
    Subscription,
)
from holdfast.stores.rows import imported_error
from holdfast.stores.tenant_erasure import delete_tenant

logger = logging.getLogger("holdfast.runtime")

RECOVER_PAGE = 1000
TICK_SECONDS = 1.0
"""How often a runtime that drives sessions looks for deadlines that have passed."""
WHEN_BUSY = ("error", "queue", "steer", "interrupt")
DEFAULT_AGENT = "default"

T = TypeVar("T")


class Runtime(Embedding):
    """Drives sessions whose agents it has, and reads every session of its store."""

    def __init__(
        self,
        store: SessionStore,
        *,
        resolved: Resolved,
        agents: Iterable[Agent[Any]] = (),
        models: Iterable[Model] = (),
        kernels: Kernels | None = None,
        owns_store: bool = False,
        guards: Guards | None = None,
    ) -> None:
        self.store = store
        self.engine = Engine(
            store,
            resolved=resolved,
            agents=tuple(agents) or (Agent(),),
            models=models,
            kernels=kernels or Kernels(),
            guards=guards,
        )
        self._claims = Claims(self.engine)
        super().__init__(store, Writers(self._claims), self.engine.guards)
        self._owns_store = owns_store
        self._timer: asyncio.Task[None] | None = None

    @property
    def agents(self) -> Mapping[str, Agent[Any]]:
        """Return the agents that this runtime can drive, by name."""
        return self.engine.agents

    @property
    def claims(self) -> Claims:
        """Return which sessions are driven here."""
        return self._claims

    @property
    def resolved(self) -> Resolved:
        """Return the settings of this runtime, with where each came from."""
        return self.engine.resolved

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @overload
    def session(
        self,
        session_id: str,
        *,
        agent: Agent[T],
        create: bool = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
    ) -> Session[T]: ...

    @overload
    def session(
        self,
        session_id: str,
        *,
        agent: str | None = ...,
        create: bool = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
    ) -> Session[Any]: ...

    def session(
        self,
        session_id: str,
        *,
        agent: str | Agent[Any] | None = None,
        create: bool = False,
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
    ) -> Session[Any]:
        """Return the handle of a session; with `create` it is made where there is none yet.

        One that exists is returned as it is, whatever the settings, folder, limits or version of
        today are; only another agent is refused. Awaiting the handle does it at once,
        otherwise its first call does.
        """
        check_id(session_id)
        found = None if agent is None and not create else self._agent(agent)
        if found is None or not create:
            return Session(self, session_id)

        async def ensure() -> None:
            for attempt in (1, 2):
                try:
                    await self._check_same(session_id, found)
                    return
                except SessionNotFound:
                    pass
                try:
                    await self.start(
                        session_id=session_id,
                        agent=found,
                        labels=labels,
                        capability=capability,
                    )
                    return
                except SettingsConflict:
                    if attempt == 2:
                        raise  # not someone who created it in between

        return Session(self, session_id, create=ensure)

    @overload
    async def start(
        self,
        *,
        session_id: str | None = ...,
        agent: Agent[T],
        tenant: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
        model: str | None = ...,
        leaf_model: str | None = ...,
        **settings: Unpack[SettingsOptions],
    ) -> Session[T]: ...

    @overload
    async def start(
        self,
        *,
        session_id: str | None = ...,
        agent: str | None = ...,
        tenant: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
        model: str | None = ...,
        leaf_model: str | None = ...,
        **settings: Unpack[SettingsOptions],
    ) -> Session[Any]: ...

    async def start(
        self,
        *,
        session_id: str | None = None,
        agent: str | Agent[Any] | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> Session[Any]:
        """Create a session; the same id with the same settings returns the one that exists."""
        found = self._agent(agent)
        if labels is not None:
            check_kind(labels, Mapping, "set of labels")
        if capability is not None:
            check_kind(capability, Capability, "capability")
        if found.external:
            session_id = new_session_id() if session_id is None else check_id(session_id)
            tenant = self.store.tenant if tenant is None else tenant
            await self.store.create_session(
                session_id,
                SessionStarted(
                    tenant=tenant,
                    agent=found.name,
                    agent_version=found.version,
                    labels=dict(labels or {}),
                ),
            )
            return Session(self, session_id)
        given = self.resolved.settings.to_record()
        own: dict[str, Any] = {**settings, "model": model, "leaf_model": leaf_model}
        for layer in (found.given(), own):
            # None is "not given" here as everywhere: it must not undo a limit of the runtime.
            given |= {name: value for name, value in layer.items() if value is not None}
        merged = resolve(given, environment={}).settings
        check_model(merged)
        self.engine.model(merged.model)
        if merged.leaf_model:
            self.engine.model(merged.leaf_model)
        card = ""
        if merged.harness == "code":
            card = (await self.engine.kernels.choose(merged.kernel, capability)).card
        session_id = new_session_id() if session_id is None else check_id(session_id)
        seed = int.from_bytes(values.encode(session_id)[1][-6:], "big")
        plan = blueprints.draft(
            merged,
            found,
            kernel_card=card,
            capability=capability,
            seed=seed,
            store=self.store,
        )
        item, payloads = plan.slots()
        started = SessionStarted(
            tenant=self.store.tenant if tenant is None else tenant,
            agent=found.name,
            agent_version=found.version,
            settings=item,
            cache_id=session_id,
            labels=dict(labels or {}),
        )
        state = await self.store.create_session(session_id, started, payloads=payloads)
        if state.seq == 1:
            offered = blueprints.offered(
                found, plan.capability, plan.settings.work_area, self.store
            )
            self._claims.keep(session_id, Warm(plan, offered, Transcript(), state))
        return Session(self, session_id)

    async def send(
        self,
        session: AnySession,
        message: str | Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: WhenBusy = "error",
        key: str | None = None,
        timeout: float | None = None,
        takeover: bool = False,
        scope: Any = None,
        wait: bool = True,
    ) -> TurnResult:
        """Work one message until a terminal outcome, reviving the session if it must be.

        A session with a turn in flight is SessionBusy, in another process LeaseHeld; with
        `when_busy="queue"` the message waits durably in the inbox instead, with `"steer"` it is
        shown before the next model call of the turn, and `"interrupt"` also calls off what the turn
        waits for. A `key` makes sending
        again harmless: the message is worked once, and its result returned each time; while there
        is none yet, InboxConsumed says so. Another message with the same key is InboxConflict.

        `scope` is for whom the tools of this turn act, a `Scope` or anything that they understand.
        It is never stored; the reference of a `Scope` is, and serves after a restart.

        With `wait=False` the message is only put into the inbox, durably, for a worker to work:
        `Queued` has the key by which its result is read.
        """
        self._keep_time()
        session_id = id_of(session)
        if when_busy not in WHEN_BUSY:
            raise InvalidSettings(
                f"when_busy is {when_busy!r}; use one of {', '.join(map(repr, WHEN_BUSY))}"
            )
        if key is not None and check_key(key, "key of a message").startswith(OWN_KEYS):
            raise InvalidInput(f"keys that begin with {OWN_KEYS!r} are reserved; choose another")
        if inputs is not None:
            check_kind(inputs, Mapping, "set of inputs")
        content = message if isinstance(message, Message) else user(message)
        if content.role != "user":
            # The log has it as the user's: the model would see another role after a restart.
            raise InvalidInput(f"a message to send has the role 'user', not {content.role!r}")
        if timeout is not None or not wait:
            # By its key the result can be read once nobody waits for it any more.
            key = key or _new_key()
        acts_for = scope_of(scope)
        if acts_for is not None and acts_for.reference is not None:
            key = key or _new_key()  # the reference is stored with the message
        busy = "queue" if when_busy == "error" else when_busy
        guards = self.engine.guards
        content, given, named = input_files.split(content, inputs or {})
        check_names(named)
        files = await self._described(session_id, {name: given.pop(name) for name in named})
        content = guards.redacted_message("message", content)
        bound = {name: guards.redacted("input", value) for name, value in given.items()}
        work = Work(content, bound, key, when_busy=busy, scope=acts_for, files=files)
        if not wait:
            return await self._put(session_id, work)
        if timeout is None:
            return await self._send(session_id, work, when_busy, takeover)
        sending = self._send(session_id, work, when_busy, takeover)
        return await self._within(timeout, session_id, str(work.key), sending)

    async def _described(
        self, session_id: str, files: Mapping[str, os.PathLike[Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return what the log is to have of files that are inputs."""
        if not files:
            return {}
        plan = await blueprints.load(self.engine.store, session_id)
        return {
            name: await input_files.described(name, path, plan.capability)
            for name, path in files.items()
        }

    async def _send(
        self, session_id: str, work: Work, when_busy: WhenBusy, takeover: bool
    ) -> TurnResult:
        try:
            async with self._claims.driving(session_id, takeover=takeover) as driver:
                return self._typed(driver.state.agent, await driver.send(work))
        except (SessionBusy, LeaseHeld):
            if when_busy == "error":
                raise
        if work.scope is not None and work.scope.reference is None:
            raise InvalidInput(
                f"session {session_id!r} is busy, and a message that waits is worked later, maybe "
                "elsewhere: give its scope a reference, as in Scope(value, reference=…)"
            )
        return await self._queue(session_id, work)

    async def _within(
        self, seconds: float, session_id: str, key: str, sending: Coroutine[Any, Any, TurnResult]
    ) -> TurnResult:
        """Wait so long for a drive, and leave it to the background then."""
        task = self._claims.spawn(sending)
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            await ended(task)
            raise
        if task.done():
            result: TurnResult = task.result()
            return result
        task.add_done_callback(_log_failure)
        state = await self.store.load_state(session_id)
        return Pending(key=key, **results.so_far(state, state.turn_spend()))

    async def result(self, session: AnySession, key: str) -> TurnResult:
        """Return what came of the message with a key: its result, `Queued` or `Pending`."""
        session_id = id_of(session)
        check_key(key, "key of a message")
        state = await self.store.load_state(session_id)
        items = await self.store.list_inbox(session_id, pending=False)
        item = next((item for item in items if item.key == key), None)
        if item is None:
            raise InboxItemNotFound(f"session {session_id!r} was sent no message with key {key!r}")
        if item.consumed_seq is None:
            return Queued(session=session_id, key=key)
        try:
            return self._typed(state.agent, await results.of_key(self.store, session_id, key))
        except InboxConsumed:
            return Pending(key=key, **results.so_far(state, state.turn_spend()))

    async def resume(
        self,
        session: AnySession,
        *,
        force: bool = False,
        takeover: bool = False,
        scope: Any = None,
    ) -> TurnResult | None:
        """Go on with an interrupted turn and with queued messages; None if nothing was open.

        `scope` is for whom the open turn acts where its message left no reference.
        """
        self._keep_time()
        acts_for = scope_of(scope)
        async with self._claims.driving(id_of(session), takeover=takeover) as driver:
            result = await driver.resume(force=force, scope=acts_for)
            return None if result is None else self._typed(driver.state.agent, result)

    async def retry(self, session: AnySession, *, takeover: bool = False) -> TurnResult | None:
        """Take up the last turn again if it ended without a value, from where it stood.

        Nothing that is recorded is done again. Where no turn has failed, it is as `resume`.
        """
        async with self._claims.driving(id_of(session), takeover=takeover) as driver:
            result = await driver.retry()
            return None if result is None else self._typed(driver.state.agent, result)

    async def configure(
        self,
        session: AnySession,
        *,
        by: str | None = None,
        now: bool = False,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> None:
        """Change what a session is driven with from its next turn on, and record who did it.

        Unlike a changed agent by itself, it may widen: limits grow, and tools that the agent has
        got since are let in. With `now` a turn that was interrupted between two steps goes on with
        the new settings.
        """
        given: dict[str, Any] = {**settings, "model": model, "leaf_model": leaf_model}
        explicit = {name: value for name, value in given.items() if value is not None}
        async with self._claims.driving(id_of(session)) as driver:
            await driver.configure(explicit, by, now)

    async def compact(
        self, session: AnySession, *strategies: str, takeover: bool = False
    ) -> Compaction | None:
        """Shorten a session's transcript now; None where nothing would be gained.

        `strategies` (`evict`, `summary`, `window`) are tried in order, by default those of the
        session's settings. The log keeps everything.
        """
        async with self._claims.driving(id_of(session), takeover=takeover) as driver:
            return await driver.compact(strategies)

    async def stop(self, session: AnySession) -> TurnResult | None:
        """Ask a session to end. Settles here if nobody drives it, else its driver does."""
        session_id = id_of(session)
        state = await self.store.load_state(session_id)
        if state.status == "stopped":
            return Stopped(session=session_id, head=state.head)
        if (await self.store.session_info(session_id)).imported:
            # Refused before it is asked for: it would end the copy once someone takes it over.
            raise imported_error(session_id)
        await self.store.put_inbox(session_id, InboxDraft(key=STOP_KEY, kind="stop"))
        try:
            async with self._claims.driving(session_id, needs_agent=False) as driver:
                return await driver.settle_stop()
        except (SessionBusy, LeaseHeld):
            return None

    async def fork(
        self,
        session: AnySession,
        head: str | None = None,
        *,
        step: int | None = None,
        model: str | None = None,
        agent: str | Agent[Any] | None = None,
        session_id: str | None = None,
    ) -> Session[Any]:
        """Create a session that goes on from a head of another, by default the current one.

        With `step` it goes on from right before that step was asked, its turn open: `resume`
        drives it. `model` and `agent` are what it is driven with instead.
        """
        new_id = new_session_id() if session_id is None else check_id(session_id)
        if step is not None and head is not None:
            raise InvalidInput("a fork goes on from a head or from a step; name one of them")
        if model is not None:
            self.engine.model(model)
        wanted = None if agent is None else self._agent(agent)

        async def change(
            plan: Blueprint, started: SessionStarted
        ) -> tuple[Blueprint, SessionStarted]:
            if wanted is not None:
                given = plan.settings.to_record() | {"instructions": ""} | wanted.given()
                settings = resolve(given, environment={}).settings
                card = ""
                if settings.harness == "code":
                    card = (await self.engine.kernels.choose(settings.kernel, None)).card
                plan = blueprints.draft(
                    settings,
                    wanted,
                    kernel_card=card,
                    capability=None,
                    seed=plan.seed,
                    store=self.store,
                )
                started = replace(started, agent=wanted.name, agent_version=wanted.version)
            if model is not None:
                plan = replace(plan, settings=replace(plan.settings, model=model))
            return plan, started

        await fork_session(self.store, id_of(session), head, new_id, step=step, change=change)
        return Session(self, new_id)

    async def state(self, session: AnySession) -> State:
        """Return the state at the tip of a session's log."""
        return await self.store.load_state(id_of(session))

    async def sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest first."""
        return await self.store.list_sessions(where, limit=limit, cursor=cursor)

    def subscribe(self, session: AnySession, *, after: int = 0) -> Subscription:
        """Follow a session: stored events, then live ones and token deltas."""
        return self.store.subscribe(id_of(session), after=after)

    async def recover(self) -> list[str]:
        """Take up, in the background, what was interrupted or waits in an inbox.

        That is every session whose agent is here, but for copies that nobody has taken over.
        """
        self._keep_time()
        taken: list[str] = []
        for due in (
            SessionFilter(status="interrupted"),
            SessionFilter(status="idle", waiting=True),
            SessionFilter(status="suspended", waiting=True),
        ):
            cursor = None
            while True:
                page = await self.store.list_sessions(due, limit=RECOVER_PAGE, cursor=cursor)
                for info in page.sessions:
                    if self.engine.drives(info.kind, info.agent) and not info.imported:
                        taken.append(info.id)
                        self._claims.spawn(self._claims.resume(info.id))
                cursor = page.cursor
                if cursor is None:
                    break
        return taken

    async def answer(
        self,
        session: AnySession,
        call_id: str,
        said: Any,
        *,
        wait: int | None = None,
        by: str | None = None,
        scope: Any = None,
    ) -> InboxItem:
        """Answer a call that waits: a value, `Approve()`, `Deny(reason)` or `Fail(error)`.

        It is durable on return. The session goes on in the background where its agent is here and
        nobody drives it; otherwise with the next `resume`. An approved call acts for its approver:
        the reference of `scope` is stored with the approval. For the rest of the turn the scope
        counts where the message left no reference.
        """
        acts_for = scope_of(scope)
        self._keep_time()
        item = await answers.answer(
            self.store,
            id_of(session),
            call_id,
            said,
            wait=wait,
            by=by,
            scope=acts_for,
            redact=self.engine.guards.redacted,
        )
        await self._wake(id_of(session), acts_for)
        return item

    async def extend(
        self, session: AnySession, call_id: str, deadline: datetime, *, by: str | None = None
    ) -> InboxItem:
        """Move the deadline of a call that waits."""
        item = await answers.extend(self.store, id_of(session), call_id, deadline, by)
        await self._wake(id_of(session))
        return item

    async def cancel(
        self, session: AnySession, call_id: str, *, by: str | None = None
    ) -> InboxItem:
        """Call off a call that waits; its outcome is `cancelled`."""
        item = await answers.cancel(self.store, id_of(session), call_id, by)
        await self._wake(id_of(session))
        return item

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls of all sessions that wait for someone, oldest first.

        Calls that wait for a child are listed where `where` asks for kind "child".
        """
        return await answers.waiting(self.store, where, limit=limit, cursor=cursor)

    async def audit(
        self, session: AnySession, *, after: int = 0, limit: int = 100
    ) -> list[AuditRow]:
        """Return the audit of a session's model calls, where it keeps one."""
        return await self.store.list_audit(id_of(session), after=after, limit=limit)

    async def erase(self, session: AnySession, payload_id: str, rule: str) -> Erasure:
        """Erase a value of a session for good; an input goes with all copies of it.

        Digests and heads still verify. A session whose last checkpoint shows the input cannot be
        driven from there: fork it at an earlier head. SessionBusy while a turn is in flight here.
        """
        # A worker that holds the value would write it into the next checkpoint again.
        await self._claims.forget(id_of(session))
        return await erase(self.store, id_of(session), payload_id, rule)

    async def delete_tenant(self, tenant: str) -> dict[str, Any]:
        """Delete all sessions of a tenant with payloads and audit; return a certificate of it."""
        return await delete_tenant(self.store, tenant)

    def _keep_time(self) -> None:
        """Apply deadlines by this runtime's own timer, from the first drive on until it closes."""
        if self._timer is None:
            self._timer = asyncio.ensure_future(self._tick_on())

    async def _tick_on(self) -> None:
        loop, took = asyncio.get_running_loop(), 0.0
        while True:
            # A store that takes long to look through is looked through less often.
            await asyncio.sleep(max(TICK_SECONDS, 20 * took))
            began = loop.time()
            try:
                await self.tick()
            except HoldfastError:
                logger.warning("deadlines were not applied", exc_info=True)
            took = loop.time() - began

    async def tick(self) -> list[str]:
        """Apply every deadline that has passed; return the sessions that it concerned."""
        found = await answers.expire_due(self.store)
        for session_id in found:
            await self._wake(session_id)
        return found

    async def _wake(self, session_id: str, scope: Scope | None = None) -> None:
        """Let a session take up what arrived in its inbox, here if it can be driven here."""
        self._claims.take_up(await self.store.load_state(session_id), scope)

    async def settled(self) -> None:
        """Wait until nothing is driven in the background."""
        await self._claims.settled()

    async def close(self) -> None:
        """Break off what is driven here, recording it, and let go of everything."""
        timer, self._timer = self._timer, None
        if timer is not None:
            await ended(timer)
        await self._claims.close()
        await self.engine.close()
        if self._owns_store:
            await self.store.close()

    async def _put(self, session_id: str, work: Work) -> TurnResult:
        """Put a message into the inbox; return what came of it if it was worked before."""
        name = work.key or _new_key()
        item = await self.store.put_inbox(session_id, work.draft(name))
        if item.consumed_seq is not None:
            return await self.result(session_id, name)
        return Queued(session=session_id, key=name)

    async def _queue(self, session_id: str, work: Work) -> TurnResult:
        name = work.key or _new_key()
        item = await self.store.put_inbox(session_id, work.draft(name))
        if item.consumed_seq is not None:
            agent = (await self.store.load_state(session_id)).agent
            return self._typed(agent, await results.of_key(self.store, session_id, name))
        queued = Queued(session=session_id, key=name)
        try:
            # Its driver may have let go before the message was there; then it is worked here.
            async with self._claims.driving(session_id) as driver:
                result = await driver.resume(force=False)
                if result is None or driver.state.turn is not None:
                    return queued
                return self._typed(driver.state.agent, result)
        except (SessionBusy, LeaseHeld):
            return queued

    def _agent(self, given: str | Agent[Any] | None) -> Agent[Any]:
        """Return the agent that is meant: by default the only one, or that of the usual name."""
        if isinstance(given, Agent):
            self.engine.add_agent(given)
            return given
        if given is None:
            own = [name for name in self.agents if name not in self.engine.helpers]
            given = own[0] if len(own) == 1 else DEFAULT_AGENT
        return self.engine.agent(check_id(given, "agent name"))

    async def _check_same(self, session_id: str, agent: Agent[Any]) -> None:
        """Refuse a session that belongs to another agent."""
        state = await self.store.load_state(session_id)
        if state.agent != agent.name:
            raise SettingsConflict(
                f"session {session_id!r} has agent {state.agent!r}, not {agent.name!r}; choose "
                "another id, or register that agent"
            )

    def _typed(self, agent: str, result: TurnResult) -> TurnResult:
        """Return a result whose value has the output type of the session's agent."""
        known = self.agents.get(agent)
        if known is None or known.output_type is None or not isinstance(result, Final):
            return result
        value = schemas.convert(known.output_type, result.value, "the final value")
        return replace(result, value=value)


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Log what went wrong in a drive that nobody waits for any more."""
    if not task.cancelled() and task.exception() is not None:
        logger.warning("a turn in the background failed", exc_info=task.exception())


def _new_key() -> str:
    return f"message-{secrets.token_hex(8)}"


class Opening:
    """A runtime that is being opened: `await` it, or enter it with `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, Runtime]) -> None:
        self._opening = opening
        self._runtime: Runtime | None = None

    def __await__(self) -> Generator[Any, None, Runtime]:
        return self._opening.__await__()

    async def __aenter__(self) -> Runtime:
        self._runtime = await self._opening
        return self._runtime

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runtime is not None:
            await self._runtime.close()


def open_runtime(
    store: str | Path | SessionStore | None = None,
    *,
    model: str | Model | None = None,
    leaf_model: str | Model | None = None,
    agents: Iterable[Agent[Any]] = (),
    recover: bool = False,
    allow_unconfined: bool = False,
    packages_from: str | Path | None = None,
    scopes: Callable[[str], Any] | None = None,
    secrets: Callable[[str], Any] | None = None,
    redact: Callable[[str, Any], Any] | None = None,
    **settings: Unpack[SettingsOptions],
) -> Opening:
    """Open a runtime on a store (by default the nearest `.holdfast`), ready to drive sessions.

    Use it as `async with holdfast.open(…) as runtime`, or await it and close the runtime later.
    `scopes` turns the stored reference of a scope into a scope, `secrets` a name into a secret, and
    `redact(kind, value)` returns what is stored instead of a value. Packages that cells may import
    are those of `packages_from`, a `site-packages` of the same Python, or else of this process.
    """
    given: dict[str, Any] = {**settings, "model": model, "leaf_model": leaf_model}
    guards = Guards(scopes, secrets, redact)
    place = None if packages_from is None else str(packages_from)
    kernels = Kernels(allow_unconfined=allow_unconfined, environment=place)
    return Opening(_open(store, given, agents, recover, kernels, guards))


async def _open(
    store: str | Path | SessionStore | None,
    settings: dict[str, Any],
    agents: Iterable[Agent[Any]],
    recover: bool,
    kernels: Kernels,
    guards: Guards,
) -> Runtime:
    models: list[Model] = []
    for name in ("model", "leaf_model"):
        given = check_model_of(name, settings[name])
        if given is not None and not isinstance(given, str):
            models.append(given)
            settings[name] = given.name
    known = by_name(agents)
    if store is not None and not isinstance(store, str | Path) and not hasattr(store, "load_state"):
        raise InvalidSettings(f"{ascii(store)[:80]} is not a store; pass a path or an open one")
    # First, so that settings which are refused leave no new store behind.
    folder = await asyncio.to_thread(find_folder, Path.cwd())
    resolved = resolve(settings, folder=folder)
    owns = store is None or isinstance(store, str | Path)
    opened = await open_store(store) if store is None or isinstance(store, str | Path) else store
    try:
        runtime = Runtime(
            opened,
            resolved=resolved,
            agents=known.values(),
            models=models,
            kernels=kernels,
            owns_store=owns,
            guards=guards,
        )
        if recover:
            await runtime.recover()
    except BaseException:
        if owns:
            await opened.close()
        raise
    return runtime
