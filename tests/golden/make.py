"""Make the golden sessions of this release: `python tests/golden/make.py FOLDER`.

Each file is the export of one session. Files of an earlier release are never made again: every
later release must verify and replay them.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.models.errors import QuotaExceeded, RateLimited
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions


def cell(code: str) -> str:
    return f"```python\n{code}\n```"


def script(*steps: str) -> Any:
    def respond(request: ModelRequest) -> str:
        if request.purpose == "summary":
            return "The user sends long entries; x is 1."
        if request.purpose == "leaf":
            if "bad" in request.prompt:
                raise RateLimited("slow down")
            return f"<{request.prompt}>"
        if steps[request.ordinal] == "quota":
            raise QuotaExceeded("no credit")
        return steps[request.ordinal]

    return respond


@holdfast.tool(effect="once")
def post(text: str) -> dict:
    """Post a text."""
    if text == "bad":
        raise ValueError("refused")
    return {"posted": text}


WORK = (
    "First a thought.",
    cell("total = len(text)\nprint(total)"),
    cell("1 / 0"),
    cell("answers = map_lm(['a', 'bad', 'a'])\nprint(answers)"),
    cell("one = lm('a')") + "\n" + cell("FINAL({'total': total, 'one': one})"),
    "quota",
    cell("FINAL(total + 1)"),
)
CLOCK = (
    cell("import time, random\nseen = [time.time(), random.random()]\nlm('x')\nprint(time.time())"),
    cell("FINAL(seen)"),
)
CALLS = (
    cell(
        "try:\n    post('bad')\nexcept Exception as error:\n    print(error)\nmade = post('hello')"
    ),
    cell("FINAL(made)"),
)


async def make(folder: Path) -> None:
    for kernel in ("cpython", "monty"):
        for name, steps, turns, options in (
            ("work", WORK, [("count", {"text": "four"}), ("again", {}), ("more", {})], {}),
            ("clock", CLOCK, [("what time is it?", {})], {}),
            ("calls", CALLS, [("post it", {})], {}),
            (
                "compaction",
                [cell("x = 1\nFINAL(x)")] * 8,
                [(f"entry {n} " + "word " * 800, {}) for n in range(8)],
                {"context_tokens": 6000},
            ),
            ("limit", [cell("print(1)")] * 3, [("go", {})], {"max_steps": 3}),
        ):
            if kernel == "monty" and name == "clock":
                continue  # its interpreter has another set of modules
            store = MemorySessionStore()
            model = ScriptedModel(script(*steps), name="scripted")
            agent = holdfast.Agent(name="golden", tools=[post])
            runtime = await holdfast.open(
                store, model=model, agents=[agent], kernel=kernel, work_area="/tmp", **options
            )
            async with runtime:
                session = await runtime.start(session_id=f"{name}-{kernel}", agent="golden")
                for message, given in turns:
                    await session.send(message, inputs=given)
                await export_sessions(store, [session.id], folder / f"{session.id}.holdfast")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(make(Path(sys.argv[1])))
