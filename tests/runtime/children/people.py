"""A process that works turns with tools of every effect class and with people, to its end.

Two calls of each effect class run side by side, native and from threads of a cell; people approve,
answer and carry out; a task is worked by a child that asks. What the tools do is noted in a file
outside of the store, the witness. The people are this process itself: it answers whatever waits.
It may be killed after any durable write, and started again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.errors import AnswerStale, CallNotFound
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.answers import Approve
from holdfast.runtime.tools import CallContext, make_tool

SESSIONS = {"with-tools": "tools", "with-code": "code", "with-child": "code"}
WISHES = ("once", "once", "same", "same", "look", "look", "gated", "client")
CELL = """```python
from concurrent.futures import ThreadPoolExecutor

def sure(tool, to):
    try:
        return tool(to)
    except CallError:
        return 'unknown'

def both(tool, *to):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: sure(tool, one), to))

found = both(look, 'tar', 'rope')
port = ask('Which port?')
done = [both(once, port, 'hull'), both(same, port, 'kiel')]
FINAL([found, port, done, sure(gated, port), client(port)])
```"""
SURE = """try:
    sent = once({to})
except CallError:
    sent = 'unknown'
FINAL([{to}, sent])
```"""
PARENT = "```python\ntold = rlm('which port')['value']\n" + SURE.format(to="told")
CHILD = "```python\nport = ask('Which port, says the child?')\n" + SURE.format(to="port")
VALUES = {
    "with-tools": "done",
    "with-code": [
        ["look tar", "look rope"],
        "answer to question",
        [
            ["once answer to question", "once hull"],
            ["same answer to question", "same kiel"],
        ],
        "gated answer to question",
        "answer to client",
    ],
    "with-child": [
        ["answer to question", "once answer to question"],
        "once ['answer to question', 'once answer to question']",
    ],
}
"""What the turns come to where no outcome is unknown."""


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
    if request.first_user_text.startswith("which port"):
        return CHILD
    if not request.tools:
        return PARENT if request.first_user_text == "with-child" else CELL
    if request.ordinal == 0:
        wishes = enumerate(WISHES)
        return assistant(
            *(ToolCall(f"call_{n}", name, json.dumps({"to": f"ann {n}"})) for n, name in wishes)
        )
    return "done"


async def people(runtime: holdfast.Runtime) -> None:
    """Answer what waits, as if nobody knew what was answered before."""
    for wait in (await runtime.pending()).waits:
        said = Approve() if wait.kind == "approval" else f"answer to {wait.kind}"
        try:
            await runtime.answer(wait.session, wait.call_id, said)
        except (AnswerStale, CallNotFound):
            continue


async def main(url: str, folder: Path, at: int) -> None:
    import workload  # found beside this file only where it is run as a program

    store: Any = await workload.open_place(url)
    store = workload.KillingStore(store, at, "after", folder / "acknowledged")
    agents = [agent(folder / "witness", harness) for harness in ("tools", "code")]
    model = ScriptedModel(respond, name="scripted")
    async with await holdfast.open(store, model=model, agents=agents) as runtime:
        for session, harness in SESSIONS.items():
            await runtime.start(session_id=session, agent=harness)
            if not await runtime.turns(session):
                await runtime.send(session, session)
            while (await runtime.turns(session))[-1].status != "final":
                await people(runtime)
                await runtime.settled()
                await runtime.resume(session)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
