"""What if another model had gone on from here: a fork before a step, compared with its source."""

import asyncio
import sys

import holdfast
from holdfast.models.port import ModelRequest


def model(name: str, answer: str) -> holdfast.ScriptedModel:
    def reply(request: ModelRequest) -> str:
        code = "prices = [9, 7, 8]" if request.ordinal == 0 else f"FINAL({answer})"
        return f"```python\n{code}\n```"

    return holdfast.ScriptedModel(reply, name=name)


async def main(store: str) -> None:
    careful = holdfast.Agent("careful", model=model("small", "sorted(prices)[1]"))
    bold = holdfast.Agent("bold", model=model("large", "max(prices)"))
    async with holdfast.open(store, agents=[careful, bold]) as runtime:
        session = runtime.session("bid", agent=careful, create=True)
        print(await session.ask("What do we bid?"))
        other = await runtime.fork("bid", step=2, agent="bold", session_id="bid-bold")
        result = await other.resume()
        print(result and result.unwrap())
        (edge,) = await runtime.edges("bid-bold")
        print(edge.type, "of", edge.from_session)


asyncio.run(main(sys.argv[1]))
