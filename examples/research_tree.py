"""A task given out to three child sessions, each with its own log, a schema and a spend limit."""

import asyncio
import sys
from decimal import Decimal

import holdfast
from holdfast.models.port import ModelRequest

PARENT = """```python
schema = {"type": "object", "required": ["port", "ships"]}
ports = ["Brest", "Cork", "Faro"]
inputs = [{"port": port} for port in ports]
found = map_rlm(["Count the ships in your port."] * 3, inputs=inputs, output=schema)
FINAL({one["value"]["port"]: one["value"]["ships"] for one in found})
```"""
CHILD = "```python\nFINAL({'port': port, 'ships': len(port)})\n```"


def model(request: ModelRequest) -> str:
    return CHILD if request.first_user_text.startswith("Count") else PARENT


async def main(store: str) -> None:
    limits = holdfast.Limits(max_usd=Decimal("1.00"))
    agent = holdfast.Agent("ports", model=holdfast.ScriptedModel(model), limits=limits)
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = runtime.session("ports", agent=agent, create=True)
        print(await session.ask("How many ships are there?"))
        print(len((await runtime.sessions()).sessions), "sessions")


asyncio.run(main(sys.argv[1]))
