"""A process that says one thing to a session and tells what happens, one JSON line each.

Its provider tells that it was asked, waits until there is a file named `go` (where the message
asks for it) and answers by what the message names. SIGTERM and Ctrl-C break the work off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.errors import HoldfastError
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel

REPLIES = {
    "wait": "```python\nFINAL('waited')\n```",
    "plain": "```python\nFINAL('plain')\n```",
    "spin": "```python\nwhile lm('done?') != 'yes':\n    pass\nFINAL('spun')\n```",
    "burn": "```python\nwhile True:\n    pass\n```",
}


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def provider(folder: Path) -> ScriptedModel:
    async def respond(request: ModelRequest) -> str:
        if request.purpose == "leaf":
            return "yes" if (folder / "go").exists() else "no"
        tell(asked=request.prompt)
        word = request.prompt.split()[0]
        # A file is how another process says so, and waiting for it must end with this task.
        while word == "wait" and not (folder / "go").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return REPLIES[word]

    return ScriptedModel(respond, name="talk")


def told(result: holdfast.TurnResult | None) -> dict[str, Any]:
    if result is None:
        return {"status": None}
    return {"status": result.status, "value": getattr(result, "value", None)}


async def talk(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with await holdfast.open(options.store, model=provider(options.folder)) as runtime:
        try:
            match options.verb:
                case "send":
                    busy = "queue" if options.queue else "error"
                    result = await runtime.send(options.session, options.message, when_busy=busy)
                case "resume":
                    result = await runtime.resume(options.session)
                case _:
                    result = await runtime.stop(options.session)
            tell(**told(result))
            await runtime.settled()
        except HoldfastError as error:
            tell(error=error.code, message=str(error))


def talk_in_sync(options: argparse.Namespace) -> None:
    with holdfast.open_sync(options.store, model=provider(options.folder)) as runtime:
        tell(**told(runtime.send(options.session, options.message)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("folder", type=Path)
    parser.add_argument("session")
    parser.add_argument("verb", choices=["send", "resume", "stop"])
    parser.add_argument("message", nargs="?", default="")
    parser.add_argument("--queue", action="store_true")
    parser.add_argument("--sync", action="store_true")
    given = parser.parse_args()
    # A suite that a script runs in its background ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given.sync:
        talk_in_sync(given)
    else:
        asyncio.run(talk(given))
