"""What the workers of the tests drive: a tool that notes each run in a file, outside any store.

`holdfast worker --with` runs it, and the tests start sessions with its agent. `mail NAME` calls
a tool that must not be repeated, `ask NAME` one that waits for a person.
"""

import json
import os
import time
from pathlib import Path

import holdfast
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.scripted import ScriptedModel


def send(to: str) -> str:
    """Send a mail, which must not be sent twice."""
    with Path(os.environ["WORKER_WITNESS"]).open("ab", buffering=0) as file:
        file.write(f"{os.getpid()} {to}\n".encode())
    time.sleep(float(os.environ.get("WORKER_PAUSE", "0")))
    return f"sent to {to}"


def question(text: str) -> str:
    """Ask a person."""
    raise AssertionError("a person answers")


def respond(request):
    """Answer with a tool call first, then with the end of the turn."""
    at = max(n for n, message in enumerate(request.messages) if message.role == "user")
    verb, name = request.messages[at].text.split(" ", 1)
    if len(request.messages) > at + 1:
        return f"done {name}"
    tool, arguments = ("send", {"to": name}) if verb == "mail" else ("question", {"text": name})
    return assistant(ToolCall("call_1", tool, json.dumps(arguments)))


def desk():
    """Return the agent."""
    return holdfast.Agent(
        name="desk",
        tools=[
            holdfast.tool(effect="once")(send),
            holdfast.tool(executor="human", deadline_seconds=600)(question),
        ],
        model=ScriptedModel(respond, name="desk-model"),
        settings={"harness": "tools", "instructions": "Serve."},
    )


AGENTS = [desk()]
