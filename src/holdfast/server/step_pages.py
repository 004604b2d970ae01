"""What the model saw at a step: the request derived from the log, and how sure that is.

The log keeps a digest of every request, the audit, where there is one, of what was sent with the
texts that were added to that call alone. The request is derived from the log as it stood before the
step and compared with both, so that a page says whether it is what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import HoldfastError, NotFound
from holdfast.core.facts import StepStarted
from holdfast.core.messages import observation
from holdfast.models.port import ToolSpec
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.harness.tools import spec_name
from holdfast.runtime.requests import START, chained, request_digest
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.transcript import load_transcript
from holdfast.server.as_of import States
from holdfast.stores.port import AuditRow, SessionStore
from holdfast.views.context import ContextPart, ContextView, read_context
from holdfast.views.turns import StepView
from holdfast.views.values import value_or_erased

PAGE = 500
MOST_AUDIT = 20_000


@dataclass(frozen=True, slots=True)
class Sight:
    """What the model was sent at a step, and how sure that is."""

    step: StepView
    verdict: str  # kept, equal, different, unproven
    why: str
    context: ContextView
    added: str | None
    digest: str | None
    reply: str
    attempts: Any
    options: dict[str, Any]
    audit: dict[str, Any] | None

    @property
    def left_out(self) -> int:
        """Return a rough count of the tokens that the model was not sent."""
        return sum(part.tokens for part in self.context.parts if not part.included)

    @property
    def window(self) -> list[tuple[float, float, str, str, int]]:
        """Return the parts that were sent as (place, width, class, name, tokens) of 1000."""
        sums: dict[tuple[str, str], int] = {}
        for part in self.context.parts:
            if part.included:
                sums[_tone(part)] = sums.get(_tone(part), 0) + part.tokens
        total, at, found = max(1, sum(sums.values())), 0.0, []
        for (tone, name), tokens in sums.items():
            width = tokens * 1000 / total
            found.append((round(at, 1), round(max(width - 1, 0.5), 1), tone, name, tokens))
            at += width
        return found


def _tone(part: ContextPart) -> tuple[str, str]:
    if part.part in ("frame", "inherited"):
        return "w-sum", "briefing" if part.part == "frame" else "inherited"
    names = {"system": "w-sys", "user": "w-user", "assistant": "w-asst"}
    return names.get(part.role, "w-obs"), part.role


async def find_step(runtime: Runtime, session_id: str, number: int) -> StepView:
    """Return a step; NotFound where the session has none of this number."""
    state = await runtime.state(session_id)
    after = 0
    while found := await runtime.steps(session_id, after=after, limit=PAGE):
        for step in found:
            if step.step == number:
                return step
        after = found[-1].seq
    last = state.counters.get("step", 0)
    raise NotFound(f"session {session_id!r} has no step {number}; it has {last}")


async def sight(runtime: Runtime, states: States, session_id: str, number: int) -> Sight:
    """Return what the model was sent at a step."""
    step = await find_step(runtime, session_id, number)
    store = await states.store_at(runtime.store, session_id, step.seq - 1)
    state = await store.load_state(session_id)
    context = await read_context(store, session_id)
    transcript = await load_transcript(store, state)
    row = await _audited(runtime.store, session_id, number)
    record = None if row is None else row.record
    added = None if record is None else record["sent"].get("last")
    digest, problem, options = None, "", {}
    try:
        plan = await blueprints.load(store, session_id, state.configured)
        options = plan.settings.options()
        digest = request_digest(
            transcript.digest,
            system=plan.prompt,
            options=options,
            max_output_tokens=plan.settings.max_output_tokens,
            tools=_tools(runtime, store, plan, state.agent),
        )
    except HoldfastError as error:
        problem = str(error)
    verdict, why = _judged(step.started, digest, problem)
    if verdict == "equal" and record is not None:
        sent = chained(START, transcript.messages)
        with_added = chained(START, [*transcript.messages, observation(added or "")])
        if record["sent"]["digest"] in (sent, with_added):
            verdict, why = "kept", "The audit kept this request, and its digest is the one below."
    put = step.put
    return Sight(
        step=step,
        verdict=verdict,
        why=why,
        context=context,
        added=added,
        digest=digest,
        reply=await _reply(runtime, session_id, step),
        attempts=None
        if put is None or put.attempts is None
        else await value_or_erased(runtime.store, session_id, put.attempts),
        options=options,
        audit=record,
    )


def _judged(started: StepStarted, digest: str | None, problem: str) -> tuple[str, str]:
    if started.request is None:
        return "unproven", "The log has no digest of this request, so nothing proves it."
    if digest == started.request:
        return "equal", "Derived from the log; its digest is the one that the log kept."
    if problem:
        return "different", f"It could not be derived whole: {problem}"
    return "different", (
        "Derived from the log, but its digest is not the one that the log kept: something of it "
        "was erased, or tools of the agent are not registered here. It is close, not the same."
    )


def _tools(runtime: Runtime, store: SessionStore, plan: Blueprint, agent: str) -> Any:
    known = runtime.agents.get(agent)
    if plan.settings.harness != "tools" or known is None:
        return ()
    return tuple(
        ToolSpec(spec_name(group, tool), tool.doc, dict(tool.parameters))
        for group in blueprints.match_tools(store, plan, known)
        for tool in group.tools
    )


async def _audited(store: SessionStore, session_id: str, number: int) -> AuditRow | None:
    """Return the row that the audit has of a step, if it has one."""
    after, found = 0, None
    while after < MOST_AUDIT and (
        rows := await store.list_audit(session_id, after=after, limit=PAGE)
    ):
        for row in rows:
            if row.record.get("purpose") == "step" and row.record.get("step") == number:
                found = row
        after = rows[-1].number
    return found


async def _reply(runtime: Runtime, session_id: str, step: StepView) -> str:
    for message in await runtime.messages(session_id, after=step.seq, limit=1):
        if message.message.role == "assistant":
            return message.message.text
    return ""
