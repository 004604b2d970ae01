"""A service with twenty sessions at once, each with its own log, limits and values."""

import asyncio
import sys
from decimal import Decimal

import holdfast

REPLY = "```python\nFINAL(number * number)\n```"


async def main(store: str) -> None:
    model = holdfast.ScriptedModel(lambda request: REPLY)
    limits = holdfast.Limits(max_usd=Decimal("0.50"), max_steps=3)
    agent = holdfast.Agent("square", model=model, output_type=int, limits=limits)
    async with holdfast.open(store, agents=[agent]) as runtime:

        async def serve(number: int) -> int:
            session = runtime.session(f"customer-{number}", agent=agent, create=True)
            return await session.ask("Square it.", inputs={"number": number})

        squares = await asyncio.gather(*map(serve, range(20)))
        page = await runtime.sessions()
        print(sum(squares), len(page.sessions))


asyncio.run(main(sys.argv[1]))
