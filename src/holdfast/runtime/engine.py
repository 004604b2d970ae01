"""The engine: the one object that every drive gets, with all that a process drives sessions with.

Store, kernels, models, agents and gates are of the process; what belongs to one session stands in
its log and in the driver that holds its lease.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import AgentMissing, InvalidSettings
from holdfast.core.state import State
from holdfast.kernels.choose import Kernels
from holdfast.models.choose import model_from_name
from holdfast.models.port import Model
from holdfast.models.prices import declared_prices, priced
from holdfast.runtime.agent import Agent
from holdfast.runtime.audit import AuditedModel
from holdfast.runtime.children import Driving
from holdfast.runtime.inbox import InboxWatcher
from holdfast.runtime.leaf_gate import LeafGate
from holdfast.runtime.scope import Guards, RedactedModel
from holdfast.runtime.settings import Resolved, Settings
from holdfast.runtime.tools import delegates
from holdfast.stores.port import SessionStore

if TYPE_CHECKING:
    from holdfast.runtime.recordings import SessionRecording

logger = logging.getLogger("holdfast.runtime")


class Engine:
    """What sessions are driven with in this process."""

    def __init__(
        self,
        store: SessionStore,
        *,
        resolved: Resolved,
        agents: Iterable[Agent[Any]],
        models: Iterable[Model],
        kernels: Kernels,
        guards: Guards | None = None,
    ) -> None:
        self.store = store
        self.resolved = resolved
        self.agents: dict[str, Agent[Any]] = {}
        self.helpers: set[str] = set()
        """Agents that are here only because others have them as tools."""
        self.kernels = kernels
        self.guards = guards or Guards()
        self.leaf_gate = LeafGate(resolved.settings.process_leaf_concurrency)
        self.inboxes = InboxWatcher(store)
        self.driving: Driving | None = None
        """What drives other sessions of this process: the children of the one at hand."""
        self.replay: SessionRecording | None = None
        """The recording that calls and clocks are taken from, where a session is replayed."""
        self.runs: Callable[[str], Awaitable[None]] | None = None
        """What drives workflow runs here, if anything does."""
        self._models: dict[str, Model] = {}
        for model in models:
            self.add_model(model)
        for agent in agents:
            self.add_agent(agent)

    def add_agent(self, agent: Agent[Any]) -> None:
        """Register an agent, with the model that it brings and the agents among its tools."""
        known = self.agents.setdefault(agent.name, agent)
        if known != agent:
            raise InvalidSettings(
                f"agent {agent.name!r} is registered here in another form; give each its own name"
            )
        if agent.model is not None and not isinstance(agent.model, str):
            self.add_model(agent.model)
        for tool in delegates(agent.toolsets).values():
            assert tool.delegate is not None
            below = tool.delegate.agent
            if below.name not in self.agents:
                self.helpers.add(below.name)
            self.add_agent(below)

    def add_model(self, model: Model) -> None:
        """Register a model of the program's own."""
        if self._models.setdefault(model.name, model) is not model:
            raise InvalidSettings(
                f"two models have the one name {model.name!r}, by which a session finds them "
                "again; give each its own, as in ScriptedModel(…, name=…)"
            )

    def drives(self, kind: str, agent: str) -> bool:
        """Tell whether sessions of a kind and agent can be driven here."""
        if kind == "run":
            return self.runs is not None
        found = self.agents.get(agent)
        return found is not None and not found.external

    def agent(self, name: str) -> Agent[Any]:
        """Return an agent by name; AgentMissing names those that are here."""
        found = self.agents.get(name)
        if found is None:
            raise AgentMissing(
                f"agent {name!r} is not registered here; known are {', '.join(self.agents)}"
            )
        return found

    def model(self, name: str) -> Model:
        """Return a model by its name, made when first needed."""
        if name not in self._models:
            self._models[name] = model_from_name(name)
        return self._models[name]

    def model_of(
        self, session: str, name: str, settings: Settings, state: Callable[[], State]
    ) -> Model:
        """Return a model of a session, with the price and the audit that its settings declare."""
        try:
            found = priced(self.model(name), declared_prices(settings.prices))
            if self.guards.redact is not None:
                found = RedactedModel(found, self.guards)
            if settings.audit == "off" or self.replay is not None:
                return found
            full = settings.audit == "full"
            redact = self.guards.redacted
            return AuditedModel(found, self.store, session, state, full=full, redact=redact)
        except InvalidSettings as error:
            if ":" in name:
                raise
            raise AgentMissing(
                f"session {session!r} was started with a model of the program's own, {name!r}, "
                "which is not here; open the runtime with it, as in open(model=…)"
            ) from error

    async def close(self) -> None:
        """Stop workers and let go of connections."""
        await self.inboxes.close()
        await self.kernels.close()
        for name, model in self._models.items():
            try:
                await model.close()
            except Exception:
                logger.warning("model %r did not close", name, exc_info=True)
