"""A tree of sessions with all that trees have; as a program it is killed at a durable write.

Three levels, leaf calls in each, a fan-out, a compaction between two turns of the root, and a child
that goes on from another one. The work can be done again from the start by whoever comes next: what
is in the logs is not done a second time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel


def cell(code: str) -> str:
    return f"```python\n{code}\n```"


STEPS = {
    "root": [
        cell("told = lm('before')\nfound = map_rlm(['left', 'right'], inputs={'n': 2})"),
        cell("FINAL([told, [one['value'] for one in found]])"),
        cell("more = attach_rlm(found[0], 'one more')\nFINAL([told, more['value'], lm('after')])"),
    ],
    "left": [cell("deep = rlm('deep', inputs={'n': n + 1})\nFINAL(deep['value'] * 2)")],
    "right": [cell("FINAL(lm('right leaf'))")],
    "deep": [cell("FINAL(n + len(map_lm(['a', 'b'])))")],
    "one more": [cell("FINAL([n, deep['value'], lm('attached')])")],
}
FIRST = ["<before>", [10, "<right leaf>"]]
ANSWER = ["<before>", [2, 5, "<attached>"], "<after>"]
QUESTIONS = 14
"""How often the provider is asked where nothing is lost: 7 steps, 6 leaves, one summary."""
SESSIONS = 5


def question(request: ModelRequest) -> str:
    """Return which question a request is: the session by its task, and the step or leaf."""
    tasks = [message.text.split("\n")[0] for message in request.messages]
    task = "one more" if "one more" in tasks else request.first_user_text.split("\n")[0]
    if request.purpose == "leaf":
        return f"leaf {request.prompt}"
    return "summary" if request.purpose == "summary" else f"{task} {request.ordinal}"


def answer(request: ModelRequest) -> str:
    """Return what the provider says."""
    if request.purpose == "leaf":
        return f"<{request.prompt}>"
    if request.purpose == "summary":
        return "Two tasks were given out."
    task, _, ordinal = question(request).rpartition(" ")
    return STEPS[task][int(ordinal)]


def model(note: Callable[[str], None]) -> ScriptedModel:
    """Return the provider of the tree, which notes every question before it answers."""

    def respond(request: ModelRequest) -> str:
        note(question(request))
        return answer(request)

    return ScriptedModel(respond, name="witnessed")


def witness(path: Path) -> Callable[[str], None]:
    """Return what notes questions in a file, which outlives the process."""

    def note(asked: str) -> None:
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(asked).encode() + b"\n")

    return note


async def work(runtime: holdfast.Runtime, **settings: Any) -> holdfast.TurnResult:
    """Do what is left of the tree, whatever was done before."""
    session = await runtime.start(session_id="root", **settings)
    await session.resume()
    first = await session.send("root", key="first")
    if not isinstance(first, holdfast.Final) or first.value != FIRST:
        return first
    if (await runtime.state("root")).counters["turn"] == 1:
        await session.compact("summary")
    return await session.send("more", key="second")


async def main(url: str, folder: Path, at: int, when: str) -> None:
    import workload  # found beside this file only where it is run as a program

    inner = await workload.open_place(url)
    store: Any = workload.KillingStore(inner, at, when, folder / "acknowledged")
    provider = model(witness(folder / "witness"))
    async with await holdfast.open(store, model=provider) as runtime:
        await work(runtime, work_area=str(folder))
    await inner.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
