"""Replay: a recorded session is executed again, from its log alone, and compared with it.

The replay runs in a memory store, beside a copy of the recording, as an ordinary session: same
settings, seed, prompt and limits. Replies, summaries, answers of calls and the clock of every cell
come from the recording; no provider is asked and nothing is dispatched. Compared are the digests of
requests, the messages, every cell with its output and value, the outcome of every turn, and the
variables in the end. Not compared: time, usage, retries, lost calls, ids. A turn that ended by
time, by a stop or by what it spent is cut there: a second run need not end so.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.facts import SessionStarted, StepPut, StepStarted
from holdfast.core.ids import new_session_id
from holdfast.kernels.choose import Kernels
from holdfast.models.recorded import RecordedModel
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.calls import pages
from holdfast.runtime.claims import Claims
from holdfast.runtime.driver import Warm, Work
from holdfast.runtime.engine import Engine
from holdfast.runtime.hooks import Hook
from holdfast.runtime.recordings import (
    RecordedTurn,
    SessionRecording,
    load_recording,
    load_tree,
    subtree,
)
from holdfast.runtime.scope import Guards
from holdfast.runtime.settings import resolve
from holdfast.runtime.tools import Tool, Toolset
from holdfast.runtime.transcript import load_transcript
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.views.divergence import Divergence, Moment, divergence
from holdfast.views.values import hydrate
from holdfast.views.variables import read_variables

CUT = {
    "timed_out": "the turn ran out of time",
    "stopped": "the session was stopped",
    "open": "the turn was not finished",
    "failed": "the turn failed outside of a model call",
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object stands in memory, which is another place in every process."""
NOT_COMPARED = frozenset({"leaf", "call"})
"""Calls are answered from the recording: one that differs is found where its cell makes it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which a replay differs from its recording."""

    kind: str
    """request, call, pure_call, variables; or what happened: message, reply, cell, outcome, …"""
    turn: int | None
    seq: int | None  # the event of the recording, where there is one
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay came to; `cut` says where and why it ended before its recording."""

    session: str
    turns: int
    cells: int
    steps: int
    cut: str | None
    difference: Difference | None


async def replay_export(path: str | Path, session: str | None = None) -> list[ReplayReport]:
    """Replay one session of an export, or every one of it."""
    store = MemorySessionStore()
    outcomes = await import_sessions(store, path)
    named = [outcome.session for outcome in outcomes]
    if session is not None and session not in named:
        raise InvalidInput(
            f"{str(path)!r} does not hold session {session!r}; it holds {', '.join(named)}"
        )
    return [await _replay(store, item) for item in ([session] if session else named)]


async def replay_session(
    store: SessionStore,
    session: str,
    *,
    hooks: Sequence[Hook] = (),
    redact: Callable[[str, Any], Any] | None = None,
) -> ReplayReport:
    """Replay a session of any store; the store is only read. Hooks are asked again.

    A session whose values were redacted needs the same `redact`: its cells print what they
    printed.
    """
    copy = await _copied(store, [session])
    return await _replay(copy, session, hooks, redact)


async def replay_tree(store: SessionStore, session: str) -> list[ReplayReport]:
    """Replay a session and every child below it, each against its own log.

    Children come in the order of their parents' calls; those that are not in the store any more,
    or never began, are left out.
    """
    tree = await subtree(store, session)
    copy = await _copied(store, tree)
    return [await _replay(copy, one) for one in tree]


async def recorded_model(
    store: SessionStore, session: str, *, name: str = "recorded"
) -> RecordedModel:
    """Return a model that says what the models of a session and of its children said.

    An ordinary run with it needs no key: the same message, code and tools get the same replies.
    """
    return RecordedModel(await load_tree(store, session), name=name)


async def _copied(store: SessionStore, sessions: list[str]) -> SessionStore:
    """Return a memory store with a copy of sessions."""
    copy = MemorySessionStore()
    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as folder:
        path = Path(folder) / "recording"
        await export_sessions(store, sessions, path)
        await import_sessions(copy, path)
    return copy


async def _replay(
    store: SessionStore,
    session: str,
    hooks: Sequence[Hook] = (),
    redact: Callable[[str, Any], Any] | None = None,
) -> ReplayReport:
    recording = await load_recording(store, session)
    plan = await blueprints.load(store, session)
    fresh = new_session_id()
    state = await store.load_state(session)
    found, claimed = recording.recording(), {fresh: session}
    names: set[str] = set()
    for seq in {1, *(turn.configured for turn in recording.turns)}:
        used = (await blueprints.load(store, session, seq)).settings
        names |= {used.model, used.leaf_model or used.model}
    models = [RecordedModel(found, name=name, claims=claimed) for name in sorted(names)]
    engine = Engine(
        store,
        resolved=resolve({}, environment={}),
        agents=[Agent(name=state.agent, output_type=recording.output_schema, hooks=hooks)],
        models=models,
        kernels=Kernels(),
        guards=Guards(redact=redact),
    )
    engine.replay = recording
    claims = Claims(engine)
    cut = None
    configured = 1
    try:
        claims.keep(fresh, await _begin(store, session, fresh, plan, recording))
        for turn in recording.turns:
            if turn.message is None and not turn.inherited:
                cut = f"turn {turn.turn}: its message is not in the log"
                break
            if turn.configured != configured:
                configured = turn.configured
                plan = await blueprints.load(store, session, configured)
                await claims.replace(fresh, await _warm(store, fresh, plan, recording))
            async with claims.driving(fresh) as driver:
                if turn.message is None:
                    await driver.resume(force=False)
                else:
                    await driver.send(Work(turn.message, turn.inputs, files=turn.files))
            cut = _cut(turn)
            if cut is not None or recording.unrecorded:
                break
        else:
            await _last_compaction(claims, store, fresh, recording)
    finally:
        await claims.close()
        await engine.close()
    return await _report(store, recording, fresh, cut, plan)


async def _begin(
    store: SessionStore,
    session: str,
    fresh: str,
    plan: Blueprint,
    recording: SessionRecording,
) -> Warm:
    """Create the session that replays another; return what it is driven with."""
    first = (await store.read_events(session, limit=1))[0].fact()
    assert isinstance(first, SessionStarted)
    settings = None if first.settings is None else await hydrate(store, session, first.settings)
    started = replace(
        first,
        kind="fork" if first.transcript is not None else "root",
        parent=None,
        settings=settings,
        cache_id=fresh,
    )
    await store.create_session(fresh, started, adopt_from=session)
    return await _warm(store, fresh, plan, recording)


async def _warm(
    store: SessionStore, fresh: str, plan: Blueprint, recording: SessionRecording
) -> Warm:
    state = await store.load_state(fresh)
    toolsets = tuple(_toolset(stamp) for stamp in plan.stamps)
    transcript = await load_transcript(store, state)
    # A replay keeps what was recorded, whatever agent is here.
    return Warm(plan, toolsets, transcript, state, compared=True)


async def _last_compaction(
    claims: Claims, store: SessionStore, fresh: str, recording: SessionRecording
) -> None:
    """Compact after the last turn, where the recording did."""
    if (await store.load_state(fresh)).next("message") in recording.compactions:
        async with claims.driving(fresh) as driver:
            await driver.compact(())


def _toolset(stamp: dict[str, Any]) -> Toolset:
    """Return a toolset as the recording describes it; calls of it are taken from there."""
    return Toolset(
        stamp["name"],
        version=stamp["version"],
        tools=tuple(
            Tool(
                name=item["name"],
                call=_not_called,
                signature=item["signature"],
                effect=item["effect"],
            )
            for item in stamp["tools"]
        ),
    )


async def _not_called(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a replay takes the outcome of every call from its recording")


def _cut(turn: RecordedTurn) -> str | None:
    """Return why a replay ends with this turn, if it does."""
    if turn.broken:
        return f"turn {turn.turn}: {turn.broken}"
    code = turn.error.get("code") if isinstance(turn.error, dict) else None
    if turn.status == "budget_exceeded":
        message = str(turn.error.get("message", "")) if isinstance(turn.error, dict) else ""
        if message.startswith(("max_usd", "max_tokens", "max_calls", "max_seconds")):
            return f"turn {turn.turn}: {message}"
        return None
    if turn.status in ("final", "failed") and not (turn.status == "failed" and code == "lost"):
        return None
    return f"turn {turn.turn}: {CUT.get(turn.status, turn.status)}"


async def _report(
    store: SessionStore,
    recording: SessionRecording,
    fresh: str,
    cut: str | None,
    plan: Blueprint,
) -> ReplayReport:
    session = recording.session
    difference = await _first_difference(store, recording, fresh, cut, plan)
    counters = (await store.load_state(fresh)).counters
    return ReplayReport(
        session=session,
        turns=counters.get("turn", 0),
        cells=counters.get("eval", 0),
        steps=counters.get("answered", 0),
        cut=cut,
        difference=difference,
    )


async def _first_difference(
    store: SessionStore,
    recording: SessionRecording,
    fresh: str,
    cut: str | None,
    plan: Blueprint,
) -> Difference | None:
    for number, function in recording.unrecorded:
        cell = recording.cells.get(number)
        known = cell is not None and function in cell.functions
        kind = "call" if known or function not in _pure(plan) else "pure_call"
        return Difference(kind, None, None, None, f"cell {number} calls {function}")
    found = await divergence(store, recording.session, fresh, without=NOT_COMPARED)
    requests = await _requests(store, fresh)
    whole = cut is None and not (plan.settings.harness == "tools" and plan.stamps)
    pairs = zip(recording.requests, requests, strict=False) if whole else ()
    for index, (one, other) in enumerate(pairs):
        if one is not None and one != other:
            told = _of(found, cut)
            return told or Difference("request", None, None, one, f"step {index + 1}: {other}")
    difference = _of(found, cut)
    if difference is not None or cut is not None:
        return difference
    left, right = await _variables(store, recording.session), await _variables(store, fresh)
    if left != right:
        names = left.keys() | right.keys()
        changed = {name for name in names if left.get(name) != right.get(name)}
        return Difference(
            "variables",
            None,
            None,
            {name: left.get(name) for name in sorted(changed)},
            {name: right.get(name) for name in sorted(changed)},
        )
    return None


def _pure(plan: Blueprint) -> set[str]:
    """Return the tools whose calls are not recorded unless a call before them was."""
    return {
        f"{stamp['name']}.{item['name']}" if stamp["name"] else item["name"]
        for stamp in plan.stamps
        for item in stamp["tools"]
        if item["effect"] == "pure"
    }


def _of(found: Divergence, cut: str | None) -> Difference | None:
    if found.one is None or found.other is None:
        return None
    one, other = found.one.moment, found.other.moment
    moment = one or other
    assert moment is not None
    # Only the turn that is cut may end otherwise: what differs before it is a divergence.
    in_cut = cut is not None and cut.startswith(f"turn {moment.turn}:")
    if (cut is not None and other is None) or (in_cut and _ends(one, other)):
        return None
    seq = None if one is None else one.seq
    return Difference(moment.kind, moment.turn, seq, found.one.values, found.other.values)


def _ends(one: Moment | None, other: Moment | None) -> bool:
    """Tell whether two histories differ only in how the turn that is cut ends."""
    if one is None or other is None:
        return True
    if one is not None and one.kind in ("outcome", "message", "cell"):
        return True
    return other.kind in ("outcome", "step")


async def _requests(store: SessionStore, session: str) -> list[str | None]:
    found: list[str | None] = []
    last: str | None = None
    async for event in pages(store, session, 0, [StepStarted.TYPE, StepPut.TYPE]):
        fact = event.fact()
        if isinstance(fact, StepStarted):
            last = fact.request
        elif isinstance(fact, StepPut) and fact.status != "unknown":
            found.append(last)
    return found


async def _variables(store: SessionStore, session: str) -> dict[str, tuple[str, str]]:
    view = await read_variables(store, session)
    return {
        item.name: (item.type, _ADDRESS.sub("", item.preview))
        for item in view.variables
        if item.kept
    }
