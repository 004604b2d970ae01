"""A process that works a tree of sessions and is killed at a durable write of it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel

STEPS = {
    "root": [
        "```python\ntold = lm('before')\nfound = map_rlm(['left', 'right'], inputs={'n': 2})\n```",
        "```python\nFINAL([told, [one['value'] for one in found]])\n```",
    ],
    "left": ["```python\nFINAL(rlm('deep', inputs={'n': n + 1})['value'] * 2)\n```"],
    "right": ["```python\nFINAL(lm('right leaf'))\n```"],
    "deep": ["```python\nFINAL(n + len(map_lm(['a', 'b'])))\n```"],
}
ANSWER = ["<before>", [10, "<right leaf>"]]


def model(witness: Path) -> ScriptedModel:
    """Return the provider of the tree, which notes every question in a file before it answers."""

    def respond(request: ModelRequest) -> str:
        task = request.first_user_text.split("\n")[0]
        leaf = request.purpose == "leaf"
        with witness.open("ab", buffering=0) as file:
            place = request.prompt if leaf else request.ordinal
            file.write(json.dumps([task, request.purpose, place]).encode() + b"\n")
        return f"<{request.prompt}>" if leaf else STEPS[task][request.ordinal]

    return ScriptedModel(respond, name="witnessed")


async def main(url: str, folder: Path, at: int, when: str) -> None:
    import workload  # found beside this file only where it is run as a program

    inner = await workload.open_place(url)
    store = workload.KillingStore(inner, at, when, folder / "acknowledged")
    async with await holdfast.open(store, model=model(folder / "witness")) as runtime:  # type: ignore[arg-type]
        await runtime.start(session_id="root", work_area=str(folder))
        await runtime.send("root", "root")
    await inner.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
