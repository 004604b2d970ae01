"""A process that is killed in the middle of a turn; the next one goes on where it stood."""

import asyncio
import os
import sys
from collections.abc import Callable

import holdfast

STEPS = ["```python\nx = 41\n```", "```python\nFINAL(x + 1)\n```"]


def model(step: Callable[[int], str]) -> holdfast.ScriptedModel:
    return holdfast.ScriptedModel(lambda request: step(request.ordinal))


def killed_at_the_second_step(ordinal: int) -> str:
    return STEPS[0] if ordinal == 0 else os._exit(9)


async def first(store: str) -> None:
    async with holdfast.open(store, model=model(killed_at_the_second_step)) as runtime:
        await runtime.session("work", create=True).ask("Add one to 41.")


async def second(store: str) -> None:
    async with holdfast.open(store, model=model(lambda ordinal: STEPS[ordinal])) as runtime:
        result = await runtime.session("work").resume()
        print(None if result is None else result.unwrap())


if __name__ == "__main__":
    if os.fork() == 0:
        asyncio.run(first(sys.argv[1]))
    os.wait()
    asyncio.run(second(sys.argv[1]))
