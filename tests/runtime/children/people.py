"""A process that works turns with tools of every effect class and with people, to its end.

What the tools do is noted in a file outside of the store, the witness. The people are this process
itself: it answers whatever waits. It may be killed after any durable write, and started again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import workload

import holdfast
from holdfast.core.errors import AnswerStale, CallNotFound
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.answers import Approve
from holdfast.runtime.tools import CallContext, make_tool

TOOLS, CODE = "with-tools", "with-code"
CELL = (
    "```python\nfound = look('tar')\nport = ask('Which port?')\nonce(port + found)\n"
    "same(port)\nFINAL([port, gated(port)])\n```"
)


def agent(witness: Path, harness: str) -> holdfast.Agent:
    def note(tool: str, context: CallContext) -> None:
        with witness.open("ab", buffering=0) as file:
            file.write(json.dumps([tool, context.session, context.call_id]).encode() + b"\n")

    def once(to: str, context: CallContext) -> str:
        note("once", context)
        return f"once {to}"

    def same(to: str, context: CallContext) -> str:
        note("same", context)
        return f"same {to}"

    def look(to: str, context: CallContext) -> str:
        note("look", context)
        return f"look {to}"

    def gated(to: str, context: CallContext) -> str:
        note("gated", context)
        return f"gated {to}"

    def client(to: str) -> str:
        raise AssertionError("a client runs this")

    return holdfast.Agent(
        name=harness,
        tools=[
            make_tool(once),
            make_tool(same, effect="idempotent"),
            make_tool(look, effect="pure"),
            make_tool(gated, approval=True),
            make_tool(client, executor="client"),
        ],
        settings={"harness": harness},
    )


def respond(request: ModelRequest) -> Any:
    """Return what the model says: one reply with every tool, then the answer."""
    if not request.tools:
        return CELL
    if request.ordinal == 0:
        names = ("once", "same", "look", "gated", "client")
        return assistant(*(ToolCall(f"call_{n}", n, json.dumps({"to": "ann"})) for n in names))
    return "done"


async def people(runtime: holdfast.Runtime, session: str) -> None:
    """Answer what waits, as if nobody knew what was answered before."""
    for wait in (await runtime.pending()).waits:
        said = Approve() if wait.kind == "approval" else f"answer to {wait.kind}"
        if wait.session == session:
            try:
                await runtime.answer(session, wait.call_id, said)
            except (AnswerStale, CallNotFound):
                continue


async def main(url: str, folder: Path, at: int) -> None:
    store: Any = await workload.open_place(url)
    store = workload.KillingStore(store, at, "after", folder / "acknowledged")
    agents = [agent(folder / "witness", harness) for harness in ("tools", "code")]
    model = ScriptedModel(respond, name="scripted")
    async with await holdfast.open(store, model=model, agents=agents) as runtime:
        for session, harness in ((TOOLS, "tools"), (CODE, "code")):
            await runtime.start(session_id=session, agent=harness)
            if not await runtime.turns(session):
                await runtime.send(session, "go")
            while (await runtime.turns(session))[-1].status != "final":
                await people(runtime, session)
                await runtime.settled()
                await runtime.resume(session)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
