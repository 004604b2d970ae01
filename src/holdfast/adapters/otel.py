"""OpenTelemetry: spans and metrics of turns, steps, leaves, calls, children and nodes of the log.

Spans follow the GenAI conventions. Their ids follow from session and position, so a turn is one
trace over suspension, kill and resume, whoever drives it: each stretch in which it was driven is a
span that links to the one before. Spans are made of durable events; nothing is added to a session.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

import holdfast
from holdfast.errors import HoldfastError, needing

with needing("otel", "telemetry", "opentelemetry-sdk>=1.40,<2"):
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

__all__ = ["Telemetry"]

logger = logging.getLogger("holdfast.adapters.otel")

PAGE = 500
KEPT_SESSIONS = 1000
KILLED = "the process that drove it ended"
STARTS = ("turn.started", "run.started")


@dataclass(slots=True)
class _Open:
    """A span that has begun."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    start: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: dict[str, Any] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)


@dataclass(slots=True)
class _Trace:
    """What is open in one session."""

    session: str
    agent: str
    parent: SpanContext | None = None
    seq: int = 0
    at: int = 0
    number: int = 0  # of the event that began the turn or run
    turn: Any = None
    first: SpanContext | None = None
    segment: _Open | None = None
    last: SpanContext | None = None
    steps: dict[Any, _Open] = field(default_factory=dict)
    calls: dict[str, _Open] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)


class Telemetry:
    """Exports what happens in the sessions of a runtime's store while it is open.

    Use it as `async with Telemetry(runtime, exporter)`. What was said stays in the store unless
    `content` asks for it.
    """

    def __init__(
        self,
        runtime: holdfast.Runtime,
        exporter: SpanExporter,
        *,
        meter_provider: MeterProvider | None = None,
        resource: Resource | None = None,
        content: bool = False,
    ) -> None:
        self._runtime = runtime
        self._exporter = exporter
        self._resource = resource or Resource.create({"service.name": "holdfast"})
        self._content = content
        meter = get_meter("holdfast", holdfast.__version__, meter_provider)
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", unit="{token}")
        self._durations = meter.create_histogram("gen_ai.client.operation.duration", unit="s")
        self._traces: dict[str, _Trace] = {}
        self._ended: list[ReadableSpan] = []
        self._following: asyncio.Task[None] | None = None
        self._working = asyncio.Lock()

    async def __aenter__(self) -> Telemetry:
        self._following = asyncio.ensure_future(self._follow(self._runtime.store.subscribe_all()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.flush()
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def flush(self) -> None:
        """Export everything up to now, of all sessions that have moved."""
        for session in list(self._traces):
            await self._catch_up(session)

    async def _follow(self, hints: Any) -> None:
        async with hints:
            async for hint in hints:
                session = getattr(hint, "session", None)
                if isinstance(session, str):
                    await self._catch_up(session)

    async def _catch_up(self, session: str) -> None:
        try:
            async with self._working:
                await self._read(session)
                await self._export()
        except HoldfastError:
            logger.warning("session %s was not traced", session, exc_info=True)
        except Exception:  # an exporter that fails harms nobody
            logger.warning("spans of session %s were not exported", session, exc_info=True)

    async def _read(self, session: str) -> _Trace:
        """Take up what a session's log has got since."""
        trace = self._traces.get(session) or await self._found(session)
        while page := await self._runtime.events(session, after=trace.seq, limit=PAGE):
            for event in page:
                await self._take(trace, event)
                trace.seq = event.seq
        return trace

    async def _export(self) -> None:
        spans, self._ended = self._ended, []
        if spans:
            await asyncio.to_thread(self._exporter.export, spans)

    async def _found(self, session: str) -> _Trace:
        """Return a session's trace, from the beginning of its last turn or run."""
        first = (await self._runtime.events(session, limit=1))[0]
        trace = _Trace(session, str(first.data.get("agent", "default")))
        parent = first.data.get("parent")
        if isinstance(parent, Mapping):
            above = await self._read(str(parent.get("session")))
            call = above.calls.get(str(parent.get("call")))
            trace.parent = None if call is None else call.context
        starts = await self._runtime.events(session, limit=1, reverse=True, types=list(STARTS))
        trace.seq = starts[0].seq - 1 if starts else first.seq
        if len(self._traces) >= KEPT_SESSIONS:
            del self._traces[next(iter(self._traces))]
        self._traces[session] = trace
        return trace

    async def _take(self, trace: _Trace, event: Any) -> None:  # noqa: C901
        data: Mapping[str, Any] = event.data
        at = _nanoseconds(event.at)
        match event.type:
            case "turn.started" | "run.started":
                trace.number, trace.first, trace.last = event.seq, None, None
                trace.turn = data.get("turn")
                self._begin(trace, event, at)
            case "session.revived" | "run.resumed":
                if trace.segment is not None and event.type == "session.revived":
                    self._end_segment(trace, trace.at, KILLED)
                self._begin(trace, event, at)
            case "step.started":
                self._step(trace, event, at)
            case "step.put":
                self._step_ended(trace, data, at)
            case "leaf.called":
                self._leaf(trace, event, at)
            case "call.requested":
                await self._call(trace, event, at)
            case "call.suspended" if data.get("kind") not in ("child", "budget"):
                trace.waiting.add(str(data["call_id"]))
                if trace.waiting >= set(trace.calls) and not trace.steps:
                    self._end_segment(trace, at, suspended=True)
            case "call.approved":
                self._goes_on(trace, event, at)
            case "call.resolved":
                self._goes_on(trace, event, at)
                await self._resolved(trace, data, at)
            case "node.started":
                self._node(trace, event, at)
            case "node.finished":
                self._node_ended(trace, data, at)
            case "turn.put" | "run.finished" | "run.failed" | "run.cancelled":
                await self._turn_ended(trace, event, at)
        trace.at = at

    def _begin(self, trace: _Trace, event: Any, at: int) -> None:
        """Begin a stretch in which the session is driven."""
        if trace.segment is not None:
            return
        run = event.type.startswith("run.")
        operation = "invoke_workflow" if run else "invoke_agent"
        name = str(event.data.get("workflow", trace.agent)) if run else trace.agent
        span = _Open(
            f"{operation} {name}",
            _context(trace, event.seq),
            trace.first or trace.parent,
            at,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.agent.name": name,
                "gen_ai.conversation.id": trace.session,
                **({} if trace.turn is None else {"holdfast.turn": trace.turn}),
            },
        )
        if trace.last is not None:
            span.links.append(Link(trace.last, {"holdfast.link": "goes on from"}))
        trace.first = trace.first or span.context
        trace.segment, trace.last = span, span.context

    def _goes_on(self, trace: _Trace, event: Any, at: int) -> None:
        trace.waiting.discard(str(event.data["call_id"]))
        if trace.segment is None and trace.first is not None:
            self._begin(trace, event, at)

    def _end_segment(
        self, trace: _Trace, at: int, error: str | None = None, *, suspended: bool = False
    ) -> None:
        if trace.segment is None:
            return
        for key in list(trace.steps):
            self._end(trace.steps.pop(key), at, error)
        if suspended:
            trace.segment.attributes["holdfast.suspended"] = True
        self._end(trace.segment, at, error)
        trace.segment = None

    def _step(self, trace: _Trace, event: Any, at: int) -> None:
        model = str(event.data.get("model") or "unknown")
        trace.steps[event.data["step"]] = self._chat(trace, event.seq, model, at)

    def _chat(self, trace: _Trace, seq: int, model: str, at: int) -> _Open:
        return _Open(
            f"chat {model}",
            _context(trace, seq),
            trace.last or trace.parent,
            at,
            SpanKind.CLIENT,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": model.partition(":")[0],
                "gen_ai.request.model": model,
                "gen_ai.conversation.id": trace.session,
            },
        )

    def _step_ended(self, trace: _Trace, data: Mapping[str, Any], at: int) -> None:
        span = trace.steps.pop(data["step"], None)
        if span is not None:
            self._chat_ended(span, data, at)

    def _chat_ended(self, span: _Open, data: Mapping[str, Any], at: int) -> None:
        model = span.attributes["gen_ai.request.model"]
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        if data.get("model"):
            span.attributes["gen_ai.response.model"] = str(data["model"])
        if data.get("finish_reason"):
            span.attributes["gen_ai.response.finish_reasons"] = (str(data["finish_reason"]),)
        for kind in ("input", "output"):
            count = (data.get("usage") or {}).get(f"{kind}_tokens")
            if isinstance(count, int):
                span.attributes[f"gen_ai.usage.{kind}_tokens"] = count
                self._tokens.record(count, {**about, "gen_ai.token.type": kind})
        self._durations.record(max(0, at - span.start) / 1e9, about)
        status = str(data.get("status"))
        self._end(span, at, None if status in ("ok", "replied") else status)

    def _leaf(self, trace: _Trace, event: Any, at: int) -> None:
        data = event.data
        start = at - int(data.get("latency_ms") or 0) * 1_000_000
        span = self._chat(trace, event.seq, str(data.get("model") or "unknown"), start)
        span.attributes["holdfast.leaf"] = str(data.get("function"))
        self._chat_ended(span, data, at)

    async def _call(self, trace: _Trace, event: Any, at: int) -> None:
        data = event.data
        child = data.get("kind") == "child"
        operation = "invoke_agent" if child else "execute_tool"
        span = _Open(
            f"{operation} {data['name']}",
            _context(trace, event.seq),
            trace.last or trace.parent,
            at,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.tool.name": str(data["name"]),
                "gen_ai.tool.call.id": str(data.get("provider_id") or data["call_id"]),
                "gen_ai.conversation.id": trace.session,
                "holdfast.effect": str(data.get("effect")),
            },
        )
        if self._content:
            arguments = await self._runtime.value(trace.session, event.fact().arguments)
            span.attributes["gen_ai.tool.call.arguments"] = str(arguments)
        trace.calls[str(data["call_id"])] = span

    async def _resolved(self, trace: _Trace, data: Mapping[str, Any], at: int) -> None:
        span = trace.calls.pop(str(data["call_id"]), None)
        if span is not None:
            outcome = str(data["outcome"])
            span.attributes["holdfast.outcome"] = outcome
            self._end(span, at, None if outcome == "ok" else outcome)

    def _node(self, trace: _Trace, event: Any, at: int) -> None:
        data = event.data
        trace.steps[("node", data["execution"])] = _Open(
            f"node {data['node']}",
            _context(trace, event.seq),
            trace.last or trace.parent,
            at,
            attributes={"holdfast.node": str(data["node"]), "holdfast.node.kind": data["kind"]},
        )

    def _node_ended(self, trace: _Trace, data: Mapping[str, Any], at: int) -> None:
        span = trace.steps.pop(("node", data["execution"]), None)
        if span is not None:
            status = str(data.get("status", "ok"))
            self._end(span, at, None if status == "ok" else status)

    async def _turn_ended(self, trace: _Trace, event: Any, at: int) -> None:
        data = event.data
        status = str(data.get("status", event.type.partition(".")[2]))
        if trace.segment is not None:
            about = trace.segment.attributes
            about["holdfast.status"] = status
            for kind in ("input", "output"):
                count = (data.get("usage") or {}).get(f"{kind}_tokens")
                if isinstance(count, int):
                    about[f"gen_ai.aggregated_usage.{kind}_tokens"] = count
            final = getattr(event.fact(), "final", None)
            if self._content and final is not None:
                value = await self._runtime.value(trace.session, final)
                about["gen_ai.output.messages"] = str(value)
        fine = status in ("final", "finished")
        self._end_segment(trace, at, None if fine else status)
        trace.calls.clear()
        trace.waiting.clear()

    def _end(self, span: _Open, at: int, error: str | None) -> None:
        status = Status(StatusCode.OK) if error is None else Status(StatusCode.ERROR, error)
        self._ended.append(
            ReadableSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=span.attributes,
                links=span.links,
                kind=span.kind,
                status=status,
                start_time=span.start,
                end_time=max(at, span.start),
            )
        )


def _context(trace: _Trace, seq: int) -> SpanContext:
    """Return the context of the span that an event begins: the same whoever works it out."""
    if trace.parent is not None:
        whole = trace.parent.trace_id
    else:
        whole = _hash(f"{trace.session}:{trace.number}", 16)
    span = _hash(f"{trace.session}:{seq}:span", 8)
    return SpanContext(whole, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _hash(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


def _nanoseconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() * 1_000_000) * 1000
