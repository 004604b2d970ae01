"""`HoldfastAgent`: an agent of pydantic-ai whose runs survive a kill, in sessions of a store.

A conversation is a session, named by `conversation_id`; its earlier runs are the history. A run is
known by its `run_id`: the same one again goes on with it, or returns what it came to.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.agent import AbstractAgent, AgentRun, WrapperAgent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_core import to_jsonable_python

import holdfast
from holdfast.adapters import naming
from holdfast.adapters.pydantic_ai.durability import Durability
from holdfast.adapters.pydantic_ai.source import Effect
from holdfast.errors import InvalidInput, RecordConflict

AGENT = holdfast.Agent("pydantic-ai", external=True)
BEGUN, ENDED = "pydantic.run", "pydantic.messages"
PAGE = 500


class HoldfastAgent(WrapperAgent[Any, Any]):
    """An agent whose runs are recorded; everything else is the wrapped agent's.

    `effects` says what repeating a tool does, by its name; a tool may say it itself with
    `metadata={"effect": "pure"}`. Any other is `once`: never done again after a kill.
    """

    def __init__(
        self,
        wrapped: AbstractAgent[Any, Any],
        runtime: holdfast.Runtime,
        *,
        effects: Mapping[str, Effect] | None = None,
    ) -> None:
        super().__init__(wrapped)
        self._runtime = runtime
        self._effects = dict(effects or {})

    def session(self, conversation_id: str) -> holdfast.Session[Any]:
        """Return the session that holds a conversation, for `show`, `answer`, `verify`, `fork`."""
        return self._runtime.session(
            naming.session_id("pydantic", conversation_id), agent=AGENT, create=True
        )

    async def messages(self, conversation_id: str) -> list[ModelMessage]:
        """Return the messages of all runs of a conversation that have ended."""
        return await self._history(self.session(conversation_id), None)

    async def unfinished(self, conversation_id: str) -> list[tuple[str, Any]]:
        """Return id and prompt of the runs that were begun and have not ended, oldest first."""
        session = self.session(conversation_id)
        begun = await _all(session, BEGUN)
        ended = {view.key for view in await _all(session, ENDED)}
        return [(str(view.key), view.value["prompt"]) for view in begun if view.key not in ended]

    async def resume(self, conversation_id: str, **options: Any) -> Any:
        """Go on with the oldest run that has not ended; None where there is none.

        `options` are those of `run`, such as `deps`.
        """
        for run_id, prompt in await self.unfinished(conversation_id):
            return await self.run(prompt, conversation_id=conversation_id, run_id=run_id, **options)
        return None

    @asynccontextmanager
    async def iter(
        self,
        user_prompt: Any = None,
        *,
        conversation_id: str | None = None,
        run_id: str | None = None,
        message_history: Sequence[ModelMessage] | None = None,
        capabilities: Sequence[Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[AgentRun[Any, Any]]:
        """Run the wrapped agent, recording each request and call in the conversation's session."""
        if conversation_id is None:
            raise InvalidInput("a durable run needs a conversation: pass conversation_id=…")
        session = self.session(conversation_id)
        run_id = run_id or uuid.uuid4().hex
        upto = await self._begin(session, run_id, user_prompt)
        if message_history is None:
            message_history = await self._history(session, upto)
        async with self.wrapped.iter(
            user_prompt,
            conversation_id=conversation_id,
            run_id=run_id,
            message_history=message_history or None,
            capabilities=[*(capabilities or ()), Durability(session, run_id, self._effects)],
            **options,
        ) as run:
            yield run
            if run.result is not None:
                await self._end(session, run_id, run.result.new_messages())

    async def _begin(self, session: holdfast.Session[Any], run_id: str, prompt: Any) -> int:
        """Record that a run begins; return up to where the session is its history."""
        given = to_jsonable_python(prompt)
        known = await session.latest(BEGUN, run_id)
        if known is None:
            last = await session.latest(ENDED)
            upto = 0 if last is None else last.number
            try:
                await session.record(BEGUN, {"prompt": given, "upto": upto}, key=run_id, expected=0)
                return upto
            except RecordConflict:
                known = await session.latest(BEGUN, run_id)
                assert known is not None
        if known.value["prompt"] != given:
            raise InvalidInput(
                f"run {run_id!r} of session {session.id!r} was begun with another prompt; give "
                "this one a run_id of its own"
            )
        return int(known.value["upto"])

    async def _end(
        self, session: holdfast.Session[Any], run_id: str, messages: Sequence[ModelMessage]
    ) -> None:
        if await session.latest(ENDED, run_id) is None:
            told = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
            try:
                await session.record(ENDED, told, key=run_id, expected=0)
            except RecordConflict:
                return  # another process has ended the same run with the same records

    async def _history(
        self, session: holdfast.Session[Any], upto: int | None
    ) -> list[ModelMessage]:
        found: list[ModelMessage] = []
        for view in await _all(session, ENDED):
            if upto is None or view.number <= upto:
                found += ModelMessagesTypeAdapter.validate_python(view.value)
        return found


async def _all(session: holdfast.Session[Any], kind: str) -> list[holdfast.RecordView]:
    found: list[holdfast.RecordView] = []
    while page := await session.records(kind, after=found[-1].seq if found else 0, limit=PAGE):
        found += page
    return found
