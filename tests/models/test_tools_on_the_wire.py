"""Whole turns of the tools harness over wire formats of real SDKs, from a local server."""

from __future__ import annotations

import pytest
from test_native_tool_calls import WIRES, results_in
from test_provider_messages import provider
from wire_formats import anthropic_events, openai_chat_events, openai_response_events
from wire_server import stream

import holdfast
from holdfast import Agent, tool
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

TEXTS = {
    "openai-chat": openai_chat_events,
    "openai-responses": openai_response_events,
    "anthropic": anthropic_events,
}


@tool(effect="pure")
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"rain in {city}"


@tool(effect="pure")
def time() -> str:
    """Say what time it is."""
    return "noon"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"city": "Graz"}', "rain in Graz"),
        ('{"city": ', "the arguments are not JSON"),
        ('["Graz"]', "the arguments are not a JSON object"),
        ('{"town": "Graz"}', "unknown field `town`"),
    ],
    ids=["good", "cut off", "a list", "another name"],
)
@pytest.mark.parametrize("wire", WIRES)
async def test_parallel_calls_are_streamed_run_and_answered_whatever_their_arguments(
    wire: str, arguments: str, told: str
) -> None:
    name, _, streaming = WIRES[wire]
    asked = [("c1", "weather", arguments), ("c2", "time", "{}")]
    plays = (stream(*streaming(asked)), stream(*TEXTS[wire]("All ", "done.")))
    async with provider(name, *plays) as (server, model):
        agent = Agent(harness="tools", model=model, tools=[weather, time])
        store = MemorySessionStore()
        async with holdfast.open(store, agents=[agent]) as runtime:
            session = await runtime.start(agent=agent)
            assert (await session.send("weather and time?")).unwrap() == "All done."
            first, second = await session.calls()
            said = [await session.value(call.result or call.error) for call in (first, second)]
            assert told in said[0]
            assert said[1] == "noon"
            assert (await verify(store, session.id)).ok
        assert [found for _, found in results_in(server.requests[1].body)] == [
            *("c1", "c2", "c1", "c2")
        ]
