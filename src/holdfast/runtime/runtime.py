"""The Runtime: sessions of one store, driven here.

It owns the store handle, the kernel and the models, and takes a session's lease only while it
drives it. Recovery happens when someone asks for it (`send`, `resume`, `open(recover=True)`),
never as a side effect of reading.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.core import values
from holdfast.core.capability import Capability
from holdfast.core.errors import (
    AgentMissing,
    InvalidInput,
    InvalidSettings,
    LeaseHeld,
    Refused,
    SessionBusy,
    StoreFailed,
    check_kind,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import check_id, check_key, new_session_id
from holdfast.core.messages import Message, user
from holdfast.core.state import State
from holdfast.kernels.choose import Kernels
from holdfast.models.choose import model_from_name
from holdfast.models.port import Model
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.agent import Agent, by_name
from holdfast.runtime.driver import Driver, Warm, Work
from holdfast.runtime.forks import fork_session
from holdfast.runtime.gate import LeafGate
from holdfast.runtime.repeats import result_of
from holdfast.runtime.results import Queued, Stopped, TurnResult
from holdfast.runtime.settings import Resolved, check_model, resolve
from holdfast.runtime.shelter import carried_through
from holdfast.runtime.stops import Stops
from holdfast.stores.choose import find_folder, open_store
from holdfast.stores.port import (
    InboxDraft,
    SessionFilter,
    SessionPage,
    SessionStore,
    Subscription,
)
from holdfast.stores.rows import imported_error
from holdfast.views.reads import Reads

logger = logging.getLogger("holdfast.runtime")


WARM_SESSIONS = 256
RECOVER_PAGE = 1000
MODEL_NEEDS = ("name", "ceiling_usd", "request", "close")
REPLIES_AT_ONCE = 4
OWN_KEYS = "holdfast:"
STOP_KEY = OWN_KEYS + "stop"
"""Replies that arrive together are stored this many at a time: those in front go on to their next
question while the others wait, instead of all sessions moving, and then idling, in step."""


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


class _Claim:
    """One drive of a session in this process: the task it runs in, and its end."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.over = asyncio.Event()
        self.knocked = False


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
        self.resolved = resolved
        self.agents = {agent.name: agent for agent in agents or (Agent(),)}
        self._models: dict[str, Model] = dict(models or {})
        self._kernels = kernels or Kernels()
        self._leaf_gate = LeafGate(resolved.settings.leaf_concurrency)
        self._reply_gate = asyncio.Semaphore(REPLIES_AT_ONCE)
        self._stops = Stops(store)
        self._owns_store = owns_store
        self._closed = False
        self._claims: dict[str, _Claim] = {}
        self._warm: OrderedDict[str, Warm] = OrderedDict()
        self._background: set[asyncio.Task[Any]] = set()

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
        tenant: str = "default",
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
        **settings: Any,
    ) -> Session:
        """Create a session; the same id with the same settings returns the one that exists."""
        found = self._agent(check_id(agent, "agent name"))
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
        self._model(merged.model)
        if merged.leaf_model:
            self._model(merged.leaf_model)
        kernel = await self._kernels.choose(merged.kernel, capability)
        session_id = new_session_id() if session_id is None else check_id(session_id)
        seed = int.from_bytes(values.encode(session_id)[1][-6:], "big")
        plan = blueprints.draft(
            merged,
            found,
            kernel_card=kernel.card,
            capability=capability,
            seed=seed,
            store=self.store,
        )
        item, payloads = plan.slots()
        started = SessionStarted(
            tenant=tenant,
            agent=found.name,
            agent_version=found.version,
            settings=item,
            cache_id=session_id,
            labels=dict(labels or {}),
        )
        await self.store.create_session(session_id, started, payloads=payloads)
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
        `when_busy="queue"` the message waits durably in the inbox instead. A `key` makes sending
        again harmless: the message is worked once, and its result returned each time; while there
        is none yet, InboxConsumed says so. Another message with the same key is InboxConflict.
        """
        session_id = _id(session)
        if when_busy not in ("error", "queue"):
            raise InvalidSettings(f"when_busy is {when_busy!r}; use 'error' or 'queue'")
        if key is not None and check_key(key, "key of a message").startswith(OWN_KEYS):
            raise InvalidInput(f"keys that begin with {OWN_KEYS!r} are reserved; choose another")
        if inputs is not None:
            check_kind(inputs, Mapping, "set of inputs")
        content = message if isinstance(message, Message) else user(message)
        if content.role != "user":
            # The log has it as the user's: the model would see another role after a restart.
            raise InvalidInput(f"a message to send has the role 'user', not {content.role!r}")
        work = Work(content, dict(inputs or {}), key)
        try:
            async with self._driving(session_id, takeover=takeover) as driver:
                return await driver.send(work)
        except (SessionBusy, LeaseHeld):
            if when_busy == "error":
                raise
        return await self._queue(session_id, work)

    async def resume(
        self, session: str | Session, *, force: bool = False, takeover: bool = False
    ) -> TurnResult | None:
        """Go on with an interrupted turn and with queued messages; None if nothing was open."""
        async with self._driving(_id(session), takeover=takeover) as driver:
            return await driver.resume(force=force)

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
            async with self._driving(session_id, needs_agent=False) as driver:
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
        ):
            cursor = None
            while True:
                page = await self.store.list_sessions(due, limit=RECOVER_PAGE, cursor=cursor)
                for info in page.sessions:
                    if info.agent in self.agents and not info.imported:
                        taken.append(info.id)
                        self._spawn(self._recover_one(info.id))
                cursor = page.cursor
                if cursor is None:
                    break
        return taken

    async def settled(self) -> None:
        """Wait until nothing is driven in the background."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def close(self) -> None:
        """Break off what is driven here, recording it, and let go of everything."""
        self._closed = True
        mine = asyncio.current_task()
        claims = [claim for claim in self._claims.values() if claim.task is not mine]
        for task in {*self._background, *(claim.task for claim in claims)}:
            task.cancel()
        for claim in claims:
            await claim.over.wait()
        await self.settled()
        await self._stops.close()
        await self._kernels.close()
        self._warm.clear()
        for name, model in self._models.items():
            try:
                await model.close()
            except Exception:
                logger.warning("model %r did not close", name, exc_info=True)
        if self._owns_store:
            await self.store.close()

    async def _recover_one(self, session_id: str) -> None:
        try:
            await self.resume(session_id)
        except (SessionBusy, LeaseHeld):
            logger.debug("session %s is driven by someone else", session_id)
        except Exception:
            logger.warning("session %s was not recovered", session_id, exc_info=True)

    async def _queue(self, session_id: str, work: Work) -> TurnResult:
        name = work.key or f"message-{secrets.token_hex(8)}"
        item = await self.store.put_inbox(session_id, work.draft(name))
        if item.consumed_seq is not None:
            return await result_of(self.store, session_id, name)
        queued = Queued(session=session_id, key=name)
        try:
            # Its driver may have let go before the message was there; then it is worked here.
            async with self._driving(session_id) as driver:
                result = await driver.resume(force=False)
                return queued if result is None or driver.state.turn is not None else result
        except (SessionBusy, LeaseHeld):
            return queued

    @asynccontextmanager
    async def _driving(
        self, session_id: str, *, takeover: bool = False, needs_agent: bool = True
    ) -> AsyncIterator[Driver]:
        """Hold a session's lease while it is driven, and take up what queued meanwhile."""
        if self._closed:
            raise Refused("this runtime is closed; open another to drive sessions")
        if check_id(session_id) in self._claims:
            self._claims[session_id].knocked = True
            raise SessionBusy(
                f"session {session_id!r} has a turn in flight here; wait for it, or send with "
                "when_busy='queue'"
            )
        claim = self._claims[session_id] = _Claim()
        driver: Driver | None = None
        failed, interrupted = True, False
        try:
            with self._stops.watching(session_id) as watch:
                driver = await self._driver(session_id, takeover, needs_agent, watch.asked)
                yield driver
            failed = False
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:
            try:
                if driver is not None:
                    await carried_through(driver.close(failed=failed, interrupted=interrupted))
            finally:
                del self._claims[session_id]
                claim.over.set()
                if driver is not None and driver.warm is not None:
                    self._warm[session_id] = driver.warm
            while len(self._warm) > WARM_SESSIONS:
                await self._warm.popitem(last=False)[1].kernel.close()
        # Looked for as the lease became free or after it: who asked while it was held is seen here,
        # and who comes later can take it, but for those who found this claim in their way.
        nothing = driver.journal.waiting == 0 and not claim.knocked
        if driver.state.status == "idle" and not nothing and await self._has_work(session_id):
            self._spawn(self._recover_one(session_id))

    async def _driver(
        self, session_id: str, takeover: bool, needs_agent: bool, stop_asked: asyncio.Future[None]
    ) -> Driver:
        """Take a session's lease and what is needed to drive it."""
        if needs_agent and session_id not in self._warm:
            await self._check_agent(session_id)
        lease = await self.store.acquire(session_id, takeover=takeover)
        warm = self._warm.get(session_id)
        state = None if warm is None else warm.state
        if state is None or state.seq != lease.seq:
            try:
                # Read under the lease: before it was ours the log may have moved.
                state = await self.store.load_state(session_id)
            except BaseException:
                await carried_through(self.store.release(lease))
                raise
        return Driver(
            store=self.store,
            lease=lease,
            state=state,
            agent=self.agents.get(state.agent),
            model=self._model,
            kernels=self._kernels,
            leaf_gate=self._leaf_gate,
            reply_gate=self._reply_gate,
            stop_asked=stop_asked,
            warm=self._warm.pop(session_id, None),
        )

    async def _check_agent(self, session_id: str) -> None:
        state = await self.store.load_state(session_id)
        if state.agent not in self.agents:
            raise AgentMissing(
                f"session {session_id!r} is driven by agent {state.agent!r}, which is not "
                f"registered here; open the runtime with it (here: {', '.join(self.agents)})"
            )

    async def _has_work(self, session_id: str) -> bool:
        try:
            items = await self.store.list_inbox(session_id)
        except StoreFailed:
            # The turn that was just worked must not be lost for this: the inbox is durable.
            logger.warning("the inbox of session %s was not read", session_id, exc_info=True)
            return False
        return any(item.kind in ("message", "stop") for item in items)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _agent(self, name: str) -> Agent:
        found = self.agents.get(name)
        if found is None:
            raise AgentMissing(
                f"agent {name!r} is not registered here; known are {', '.join(self.agents)}"
            )
        return found

    def _model(self, name: str) -> Model:
        if name not in self._models:
            self._models[name] = model_from_name(name)
        return self._models[name]


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
