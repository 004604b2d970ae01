"""The Runtime: sessions of one store, driven here.

It owns the store handle, the kernel and the models, and takes a session's lease only while it
drives it. Recovery happens when someone asks for it (`send`, `resume`, `open(recover=True)`),
never as a side effect of reading.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.core import values
from holdfast.core.capability import Capability
from holdfast.core.errors import (
    InvalidInput,
    InvalidSettings,
    LeaseHeld,
    SessionBusy,
    check_kind,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import check_id, check_key, new_session_id
from holdfast.core.messages import Message, user
from holdfast.core.state import State
from holdfast.kernels.choose import Kernels
from holdfast.models.port import Model
from holdfast.runtime import answers, results
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.agent import Agent, by_name
from holdfast.runtime.children import OWN_KEYS, STOP_KEY
from holdfast.runtime.claims import Claims
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.driver import Warm, Work
from holdfast.runtime.engine import Engine
from holdfast.runtime.forks import fork_session
from holdfast.runtime.results import Queued, Stopped, TurnResult
from holdfast.runtime.settings import Resolved, check_model, resolve
from holdfast.runtime.transcript import Transcript
from holdfast.stores.choose import find_folder, open_store
from holdfast.stores.port import (
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
from holdfast.views.reads import Reads

RECOVER_PAGE = 1000
MODEL_NEEDS = ("name", "ceiling_usd", "request", "close")
WHEN_BUSY = ("error", "queue", "steer", "interrupt")


class Session:
    """A session of a runtime, by its id."""

    def __init__(self, runtime: Runtime, session_id: str) -> None:
        self.runtime = runtime
        self.id = session_id

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    async def send(self, message: str | Message, **options: Any) -> TurnResult:
        """Send a message; see `Runtime.send`."""
        return await self.runtime.send(self.id, message, **options)

    async def resume(self, **options: Any) -> TurnResult | None:
        """Go on with what is open; see `Runtime.resume`."""
        return await self.runtime.resume(self.id, **options)

    async def stop(self) -> TurnResult | None:
        """End the session; see `Runtime.stop`."""
        return await self.runtime.stop(self.id)

    async def fork(self, head: str | None = None, **options: Any) -> Session:
        """Fork the session; see `Runtime.fork`."""
        return await self.runtime.fork(self.id, head, **options)

    async def state(self) -> State:
        """Return the state at the tip."""
        return await self.runtime.state(self.id)


class Runtime(Reads):
    """Drives sessions whose agents it has, and reads every session of its store."""

    def __init__(
        self,
        store: SessionStore,
        *,
        resolved: Resolved,
        agents: Iterable[Agent] = (),
        models: Mapping[str, Model] | None = None,
        kernels: Kernels | None = None,
        owns_store: bool = False,
    ) -> None:
        super().__init__(store)
        self.store = store
        known = {agent.name: agent for agent in agents or (Agent(),)}
        self.engine = Engine(
            store,
            resolved=resolved,
            agents=known,
            models=models or {},
            kernels=kernels or Kernels(),
        )
        self._claims = Claims(self.engine)
        self._owns_store = owns_store

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Return the agents that this runtime can drive, by name."""
        return self.engine.agents

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

    async def start(
        self,
        *,
        session_id: str | None = None,
        agent: str = "default",
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
        **settings: Any,
    ) -> Session:
        """Create a session; the same id with the same settings returns the one that exists."""
        found = self.engine.agent(check_id(agent, "agent name"))
        if labels is not None:
            check_kind(labels, Mapping, "set of labels")
        if capability is not None:
            check_kind(capability, Capability, "capability")
        given = self.resolved.settings.to_record()
        for layer in (found.settings, settings):
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
        session: str | Session,
        message: str | Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: str = "error",
        key: str | None = None,
        takeover: bool = False,
    ) -> TurnResult:
        """Work one message until a terminal outcome, reviving the session if it must be.

        A session with a turn in flight is SessionBusy, in another process LeaseHeld; with
        `when_busy="queue"` the message waits durably in the inbox instead, with `"steer"` it is
        shown before the next model call of the turn, and `"interrupt"` also calls off what the turn
        waits for. A `key` makes sending
        again harmless: the message is worked once, and its result returned each time; while there
        is none yet, InboxConsumed says so. Another message with the same key is InboxConflict.
        """
        session_id = _id(session)
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
        busy = "queue" if when_busy == "error" else when_busy
        work = Work(content, dict(inputs or {}), key, when_busy=busy)
        try:
            async with self._claims.driving(session_id, takeover=takeover) as driver:
                return await driver.send(work)
        except (SessionBusy, LeaseHeld):
            if when_busy == "error":
                raise
        return await self._queue(session_id, work)

    async def resume(
        self, session: str | Session, *, force: bool = False, takeover: bool = False
    ) -> TurnResult | None:
        """Go on with an interrupted turn and with queued messages; None if nothing was open."""
        async with self._claims.driving(_id(session), takeover=takeover) as driver:
            return await driver.resume(force=force)

    async def compact(
        self, session: str | Session, *strategies: str, takeover: bool = False
    ) -> Compaction | None:
        """Shorten a session's transcript now; None where nothing would be gained.

        `strategies` (`evict`, `summary`, `window`) are tried in order, by default those of the
        session's settings. The log keeps everything.
        """
        async with self._claims.driving(_id(session), takeover=takeover) as driver:
            return await driver.compact(strategies)

    async def stop(self, session: str | Session) -> TurnResult | None:
        """Ask a session to end. Settles here if nobody drives it, else its driver does."""
        session_id = _id(session)
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
        self, session: str | Session, head: str | None = None, *, session_id: str | None = None
    ) -> Session:
        """Create a session that goes on from a head of another, by default the current one."""
        new_id = new_session_id() if session_id is None else check_id(session_id)
        await fork_session(self.store, _id(session), head, new_id, cache_id=new_id)
        return Session(self, new_id)

    async def state(self, session: str | Session) -> State:
        """Return the state at the tip of a session's log."""
        return await self.store.load_state(_id(session))

    async def sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest first."""
        return await self.store.list_sessions(where, limit=limit, cursor=cursor)

    def subscribe(self, session: str | Session, *, after: int = 0) -> Subscription:
        """Follow a session: stored events, then live ones and token deltas."""
        return self.store.subscribe(_id(session), after=after)

    async def recover(self) -> list[str]:
        """Take up, in the background, what was interrupted or waits in an inbox.

        That is every session whose agent is here, but for copies that nobody has taken over.
        """
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
                    if info.agent in self.agents and not info.imported:
                        taken.append(info.id)
                        self._claims.spawn(self._claims.resume(info.id))
                cursor = page.cursor
                if cursor is None:
                    break
        return taken

    async def answer(
        self,
        session: str | Session,
        call_id: str,
        said: Any,
        *,
        wait: int | None = None,
        by: str | None = None,
    ) -> InboxItem:
        """Answer a call that waits: a value, `Approve()`, `Deny(reason)` or `Fail(error)`.

        It is durable on return. The session goes on in the background where its agent is here and
        nobody drives it; otherwise with the next `resume`.
        """
        item = await answers.answer(self.store, _id(session), call_id, said, wait=wait, by=by)
        await self._wake(_id(session))
        return item

    async def extend(
        self, session: str | Session, call_id: str, deadline: datetime, *, by: str | None = None
    ) -> InboxItem:
        """Move the deadline of a call that waits."""
        item = await answers.extend(self.store, _id(session), call_id, deadline, by)
        await self._wake(_id(session))
        return item

    async def cancel(
        self, session: str | Session, call_id: str, *, by: str | None = None
    ) -> InboxItem:
        """Call off a call that waits; its outcome is `cancelled`."""
        item = await answers.cancel(self.store, _id(session), call_id, by)
        await self._wake(_id(session))
        return item

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls of all sessions that wait for someone, oldest first."""
        return await self.store.pending(where, limit=limit, cursor=cursor)

    async def tick(self) -> list[str]:
        """Apply every deadline that has passed; return the sessions that it concerned."""
        found = await answers.expire_due(self.store)
        for session_id in found:
            await self._wake(session_id)
        return found

    async def _wake(self, session_id: str) -> None:
        """Let a session take up what arrived in its inbox, here if it can be driven here."""
        state = await self.store.load_state(session_id)
        if state.agent in self.agents:
            self._claims.spawn(self._claims.resume(session_id))
        else:
            self._claims.spawn(self._claims.admit(session_id))

    async def settled(self) -> None:
        """Wait until nothing is driven in the background."""
        await self._claims.settled()

    async def close(self) -> None:
        """Break off what is driven here, recording it, and let go of everything."""
        await self._claims.close()
        await self.engine.close()
        if self._owns_store:
            await self.store.close()

    async def _queue(self, session_id: str, work: Work) -> TurnResult:
        name = work.key or f"message-{secrets.token_hex(8)}"
        item = await self.store.put_inbox(session_id, work.draft(name))
        if item.consumed_seq is not None:
            return await results.of_key(self.store, session_id, name)
        queued = Queued(session=session_id, key=name)
        try:
            # Its driver may have let go before the message was there; then it is worked here.
            async with self._claims.driving(session_id) as driver:
                result = await driver.resume(force=False)
                return queued if result is None or driver.state.turn is not None else result
        except (SessionBusy, LeaseHeld):
            return queued


def _id(session: str | Session) -> str:
    return session.id if isinstance(session, Session) else check_id(session)


async def open_runtime(
    store: str | Path | SessionStore | None = None,
    *,
    model: str | Model | None = None,
    leaf_model: str | Model | None = None,
    agents: Iterable[Agent] = (),
    recover: bool = False,
    allow_unconfined: bool = False,
    **settings: Any,
) -> Runtime:
    """Open a runtime on a store (by default the nearest `.holdfast`), ready to drive sessions."""
    models: dict[str, Model] = {}
    for name, given in (("model", model), ("leaf_model", leaf_model)):
        if given is not None and not isinstance(given, str):
            if not isinstance(given, Model):
                lacking = [need for need in MODEL_NEEDS if not hasattr(given, need)]
                raise InvalidSettings(
                    f"{name} is a {type(given).__name__}, no name and no model: it lacks "
                    f"{', '.join(lacking)}"
                )
            if models.get(given.name, given) is not given:
                raise InvalidSettings(
                    f"model and leaf_model are two models of the one name {given.name!r}, by which "
                    "a session finds them again; give each its own, as in ScriptedModel(…, name=…)"
                )
            models[given.name] = given
            settings[name] = given.name
        else:
            settings[name] = given
    known = by_name(agents)
    if store is not None and not isinstance(store, str | Path) and not hasattr(store, "load_state"):
        raise InvalidSettings(f"{ascii(store)[:80]} is no store; pass a path, a URL or an open one")
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
            kernels=Kernels(allow_unconfined=allow_unconfined),
            owns_store=owns,
        )
        if recover:
            await runtime.recover()
    except BaseException:
        if owns:
            await opened.close()
        raise
    return runtime
