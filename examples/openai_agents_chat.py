"""An OpenAI Agents run whose conversation is kept by Holdfast; the model is a local one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

import holdfast
from holdfast.adapters.openai_agents import AGENT, HoldfastSession


class Counting(Model):
    """A model that says how many items it was shown."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **named: Any
    ) -> ModelResponse:
        text = ResponseOutputText(text=f"saw {len(input)}", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def main(store: str) -> None:
    agent = Agent("helper", model=Counting())
    for text in ("hello", "again"):  # each with a runtime of its own, as after a restart
        async with holdfast.open(store, agents=[AGENT]) as runtime:
            session, quiet = HoldfastSession("user 7", runtime), RunConfig(tracing_disabled=True)
            print((await Runner.run(agent, text, session=session, run_config=quiet)).final_output)


asyncio.run(main(sys.argv[1]))
