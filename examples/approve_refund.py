"""A payment that needs a person: the process ends, and the answer comes to another one later."""

import asyncio
import sys

import holdfast

REPLY = "```python\nFINAL(refund('A-17', 40))\n```"


@holdfast.tool(effect="once", approval=lambda arguments: arguments["euros"] > 25)
def refund(order: str, euros: int) -> str:
    """Pay an order back."""
    return f"{order}: {euros} euros paid back"


AGENT = holdfast.Agent("desk", model=holdfast.ScriptedModel(lambda _: REPLY), tools=[refund])


async def ask(store: str) -> None:
    async with holdfast.open(store, agents=[AGENT]) as runtime:
        session = runtime.session("desk-1", agent=AGENT, create=True)
        print((await session.send("Refund A-17.")).status)


async def approve(store: str) -> None:
    async with holdfast.open(store, agents=[AGENT]) as runtime:
        (wait,) = (await runtime.pending()).waits
        await runtime.answer(wait.session, wait.call_id, holdfast.Approve(), by="ann")
        result = await runtime.resume(wait.session)
        print(result and result.unwrap())


asyncio.run(ask(sys.argv[1]))
asyncio.run(approve(sys.argv[1]))  # days later, on any machine that sees the store
