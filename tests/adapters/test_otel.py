"""OpenTelemetry: spans and metrics with the real SDK, over suspension, kill and children."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast.adapters.otel import Telemetry
from holdfast.core.messages import ToolCall, assistant
from holdfast.runs import Runs, registry
from holdfast.workflows.reading import read_text


def named(exporter: InMemorySpanExporter) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def pay(cents: int) -> int:
    """Pay."""
    return cents


def agent() -> holdfast.Agent[Any]:
    def respond(request: Any) -> Any:
        if request.ordinal == 0:
            return assistant(ToolCall("1", "pay", '{"cents": 5}'))
        return "a secret answer"

    gated = holdfast.tool(approval=True)(pay)
    return holdfast.Agent(
        "clerk", tools=[gated], model=holdfast.ScriptedModel(respond), harness="tools"
    )


async def test_a_turn_is_one_trace_over_its_suspension() -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    meters = MeterProvider([reader])
    async with holdfast.open("memory://", agents=[agent()]) as runtime:
        async with Telemetry(runtime, exporter, meter_provider=meters):
            session = await runtime.start()
            await session.send("go")
            (call,) = await session.open_calls()
            await session.answer(call.call_id, holdfast.Approve())
            await runtime.settled()
    spans = named(exporter)
    first, second = spans["invoke_agent clerk"]
    assert first.attributes["holdfast.suspended"]
    assert first.attributes["gen_ai.conversation.id"] == session.id
    assert second.links[0].context.span_id == first.context.span_id
    assert second.attributes["holdfast.status"] == "final"
    assert second.attributes["gen_ai.aggregated_usage.output_tokens"] > 0
    (tool,) = spans["execute_tool pay"]
    assert tool.attributes["holdfast.outcome"] == "ok"
    assert "gen_ai.tool.call.arguments" not in tool.attributes
    chats = spans["chat scripted"]
    assert len(chats) == 2
    assert all(chat.kind == SpanKind.CLIENT for chat in chats)
    assert chats[0].parent.span_id == first.context.span_id
    assert chats[1].parent.span_id == second.context.span_id
    assert chats[0].attributes["gen_ai.usage.input_tokens"] > 0
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())
    metrics = {
        metric.name: metric
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert set(metrics) == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}
    assert metrics["gen_ai.client.operation.duration"].data.data_points[0].count == 2


async def test_content_is_there_when_it_is_asked_for() -> None:
    exporter = InMemorySpanExporter()
    async with holdfast.open("memory://", agents=[agent()]) as runtime:
        async with Telemetry(runtime, exporter, content=True):
            session = await runtime.start()
            await session.send("go")
            (call,) = await session.open_calls()
            await session.answer(call.call_id, holdfast.Approve())
            await runtime.settled()
    spans = named(exporter)
    assert "5" in spans["execute_tool pay"][0].attributes["gen_ai.tool.call.arguments"]
    last = spans["invoke_agent clerk"][-1]
    assert "secret" in last.attributes["gen_ai.output.messages"]


KILLED = """
import asyncio, os, signal, sys
import holdfast

def respond(request):
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return "```python\\nFINAL(1)\\n```"

async def main():
    model = holdfast.ScriptedModel(respond)
    async with holdfast.open(sys.argv[1], model=model) as runtime:
        await (await runtime.start(session_id="s")).send("go")

asyncio.run(main())
"""


async def test_a_killed_turn_goes_on_in_the_same_trace(tmp_path) -> None:
    store = str(tmp_path / "store")
    run = [sys.executable, "-c", KILLED, store, "die"]
    done = await asyncio.to_thread(subprocess.run, run)
    assert done.returncode < 0
    exporter = InMemorySpanExporter()
    model = holdfast.ScriptedModel(lambda request: "```python\nFINAL(1)\n```")
    async with holdfast.open(store, model=model) as runtime:
        async with Telemetry(runtime, exporter):
            await runtime.resume("s")
    killed, resumed = named(exporter)["invoke_agent default"]
    assert killed.status.status_code == StatusCode.ERROR
    assert resumed.status.status_code == StatusCode.OK
    assert resumed.links[0].context.span_id == killed.context.span_id
    assert resumed.context.trace_id == killed.context.trace_id


async def test_children_and_leaves_stand_in_the_trace_of_their_parent() -> None:
    exporter = InMemorySpanExporter()

    def respond(request: Any) -> str:
        if request.purpose == "leaf":
            return "leaf"
        if "small" in str(request.messages):
            return "```python\nFINAL(lm('x'))\n```"
        return "```python\nFINAL(rlm('a tiny task'.replace('tiny', 'small')))\n```"

    model = holdfast.ScriptedModel(respond)
    async with holdfast.open("memory://", model=model) as runtime:
        async with Telemetry(runtime, exporter):
            await (await runtime.start()).ask("go")
            await runtime.settled()
    spans = exporter.get_finished_spans()
    assert any(span.attributes.get("holdfast.leaf") == "lm" for span in spans)
    calls = [span for span in spans if span.name == "invoke_agent rlm"]
    assert len(calls) == 1
    assert len([span for span in spans if span.name == "invoke_agent default"]) == 2
    assert len({span.context.trace_id for span in spans}) == 1


FLOW = "workflow: sums\nvars: {n: integer}\nnodes:\n  twice: {compute: {n: vars.n}, next: done}"


async def test_nodes_of_a_workflow_run_are_spans_below_it() -> None:
    exporter = InMemorySpanExporter()
    flow, _ = read_text(FLOW, "")
    async with holdfast.open("memory://", agents=[holdfast.Agent()]) as runtime:
        async with Telemetry(runtime, exporter):
            runs = Runs(runtime, registry())
            await runs.create(flow, {"n": 2}, run_id="r-1")
            await runs.drive("r-1")
    spans = named(exporter)
    (run,) = spans["invoke_workflow sums"]
    (node,) = spans["node twice"]
    assert node.parent.span_id == run.context.span_id
    assert node.attributes["holdfast.node.kind"] == "compute"


async def test_an_exporter_that_fails_harms_nothing(caplog) -> None:
    class Broken(SpanExporter):
        def export(self, spans: Any) -> Any:
            raise OSError("collector is away")

    model = holdfast.ScriptedModel(lambda request: "```python\nFINAL(1)\n```")
    async with holdfast.open("memory://", model=model) as runtime:
        async with Telemetry(runtime, Broken()):
            assert await (await runtime.start()).ask("go") == 1
    assert "were not exported" in caplog.text
