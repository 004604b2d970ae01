"""What each system does in a fault: two writers, a kill in a step, an edited source.

Each round runs real processes. The effect of a step is a line in a file that no system knows of.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

ROUNDS = 10
RECOVERY_SECONDS = 25

HOLDFAST_STEPS = """
import asyncio, os, sys
import holdfast
from holdfast.core.messages import ToolCall, assistant
place, die_in = sys.argv[1], sys.argv[2]

def act(name):
    with open(place + "/effects", "a") as file:
        file.write(name + "\\n")
    if die_in == name:
        os.kill(os.getpid(), 9)
    return name

@holdfast.tool(effect="once")
def a() -> str:
    "Do a."
    return act("a")

@holdfast.tool(effect="once")
def b() -> str:
    "Do b."
    return act("b")

def model(request):
    wishes = [assistant(ToolCall(name, name, "{}")) for name in "ab"]
    return [*wishes, "done", "done"][request.ordinal]

agent = holdfast.Agent("steps", harness="tools", tools=[a, b], model=holdfast.ScriptedModel(model))

async def main():
    async with holdfast.open(place + "/store", agents=[agent]) as runtime:
        session = runtime.session("t", agent=agent, create=True)
        if die_in == "-":
            await session.resume()
            calls = await runtime.calls("t")
            print([call.resolved.outcome for call in calls])
        else:
            await session.send("go")

asyncio.run(main())
"""

LANGGRAPH_STEPS = """
import os, sqlite3, sys
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
place, die_in, durability = sys.argv[1], sys.argv[2], sys.argv[3]
State = TypedDict("State", {"n": int})

def act(name):
    def node(state):
        with open(place + "/effects", "a") as file:
            file.write(name + "\\n")
        if die_in == name:
            os.kill(os.getpid(), 9)
        return {"n": state.get("n", 0) + 1}
    return node

graph = StateGraph(State)
graph.add_node("a", act("a"))
graph.add_node("b", act("b"))
graph.add_edge(START, "a")
graph.add_edge("a", "b")
graph.add_edge("b", END)
saver = SqliteSaver(sqlite3.connect(place + "/db", check_same_thread=False))
app = graph.compile(checkpointer=saver)
where = {"configurable": {"thread_id": "t"}}
known = app.get_state(where).next
if die_in == "-":
    print(bool(known))
    if known:
        app.invoke(None, where, durability=durability)
else:
    app.invoke({"n": 0}, where, durability=durability)
"""

DBOS_STEPS = """
import os, sys, time
from dbos import DBOS, SetWorkflowID
place, die_in, edited = sys.argv[1], sys.argv[2], sys.argv[3]

def act(name):
    with open(place + "/effects", "a") as file:
        file.write(name + "\\n")
    if die_in == name:
        os.kill(os.getpid(), 9)

@DBOS.step()
def a():
    act("a")

@DBOS.step()
def b():
    act("b")

@DBOS.workflow()
def both():
    a()
    b()
    # EDIT
    return "done"

DBOS(config={"name": "faults", "system_database_url": f"sqlite:///{place}/dbos.sqlite",
             "run_admin_server": False, "log_level": "ERROR"})
DBOS.launch()
if die_in == "-":
    ends = time.monotonic() + float(sys.argv[4])
    status = "PENDING"
    while time.monotonic() < ends and status in ("PENDING", "ENQUEUED"):
        status = DBOS.get_workflow_status("t").status
        time.sleep(0.1)
    print(status)
    DBOS.destroy()
else:
    with SetWorkflowID("t"):
        both()
"""

WRITERS = {
    "holdfast": """
import asyncio, sys
import holdfast
place = sys.argv[1]

async def main():
    def agent():
        return holdfast.Agent("talk", harness="tools", model=holdfast.ScriptedModel(slow))

    async def slow(request):
        await asyncio.sleep(0.05)
        return "reply"

    first, second = (holdfast.open(place, agents=[agent()]) for _ in range(2))
    async with first as one, second as two:
        await one.start(session_id="t")
        done = await asyncio.gather(one.send("t", "from one"), two.send("t", "from two"),
                                    return_exceptions=True)
        kept = sum(view.message.role == "user" for view in await one.messages("t"))
        told = sum(isinstance(result, Exception) for result in done)
        print("kept" if kept == 2 else "told" if told else "lost")

asyncio.run(main())
""",
    "langgraph": """
import asyncio, sys
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
place = sys.argv[1]

async def main():
    both = asyncio.Barrier(2)

    async def reply(state):
        await both.wait()
        return {"messages": [AIMessage("reply")]}

    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    where = {"configurable": {"thread_id": "t"}}
    name = place + "/db"
    first, second = (AsyncSqliteSaver.from_conn_string(name) for _ in range(2))
    async with first as one, second as two:
        await one.setup()
        turns = [graph.compile(checkpointer=saver).ainvoke(
            {"messages": [HumanMessage(text)]}, where, durability="sync")
            for saver, text in ((one, "from one"), (two, "from two"))]
        done = await asyncio.gather(*turns, return_exceptions=True)
        state = await graph.compile(checkpointer=one).aget_state(where)
        kept = sum(isinstance(message, HumanMessage) for message in state.values["messages"])
        told = sum(isinstance(result, Exception) for result in done)
        print("kept" if kept == 2 else "told" if told else "lost")

asyncio.run(main())
""",
}


def _run(program: str, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = place / "program.py"
    path.write_text(textwrap.dedent(program), encoding="utf-8")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, str(path), str(place), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


def two_writers(place: Path) -> list[dict[str, str]]:
    """Return how often a turn of two writers was kept, refused with an error, or lost silently."""
    rows = []
    for system, program in WRITERS.items():
        found: Counter[str] = Counter()
        for number in range(ROUNDS):
            folder = place / f"{system}-{number}"
            folder.mkdir(parents=True)
            done = _run(program, folder)
            found[done.stdout.strip() or done.stderr.strip().splitlines()[-1]] += 1
        rows.append({"system": system, "outcome": _counted(found)})
    return rows


def kill_in_a_step(place: Path) -> list[dict[str, str]]:
    """Return what happened to steps a and b where the process was killed in b, after its effect."""
    ways = [
        ("holdfast, once", HOLDFAST_STEPS, ()),
        ("langgraph, sync", LANGGRAPH_STEPS, ("sync",)),
        ("langgraph, async (default)", LANGGRAPH_STEPS, ("async",)),
        ("langgraph, exit", LANGGRAPH_STEPS, ("exit",)),
        ("dbos", DBOS_STEPS, ("-", str(RECOVERY_SECONDS))),
    ]
    rows = []
    for name, program, more in ways:
        found: Counter[str] = Counter()
        for number in range(ROUNDS):
            folder = place / f"{name.replace(' ', '_')}-{number}"
            folder.mkdir(parents=True)
            killed = _run(program, folder, "b", *more)
            assert killed.returncode == -9, killed.stderr
            after = _run(program, folder, "-", *more)
            assert after.returncode == 0, after.stderr
            effects = Counter((folder / "effects").read_text(encoding="utf-8").split())
            found[f"a ran {effects['a']}×, b {effects['b']}×; said: {after.stdout.strip()}"] += 1
        rows.append({"system": name, "outcome": _counted(found)})
    return rows


def edited_source(place: Path) -> list[dict[str, str]]:
    """Return what became of a run whose source was edited while it was cut off."""
    rows = []
    for name, program, more in (
        ("holdfast", HOLDFAST_STEPS, ()),
        ("dbos", DBOS_STEPS, ("-", str(RECOVERY_SECONDS))),
    ):
        folder = place / f"{name}-edited"
        folder.mkdir(parents=True)
        killed = _run(program, folder, "b", *more)
        assert killed.returncode == -9, killed.stderr
        edited = program.replace("# EDIT", "len('an edit')").replace('"Do a."', '"Do a. Edited."')
        started = time.perf_counter()
        after = _run(edited, folder, "-", *more)
        said = after.stdout.strip() or after.stderr.strip().splitlines()[-1]
        seconds = f"{time.perf_counter() - started:.1f} s"
        rows.append({"system": name, "outcome": f"{said} after {seconds}"})
    return rows


def _counted(found: Counter[str]) -> str:
    return "; ".join(f"{count} of {ROUNDS}: {what}" for what, count in found.most_common())


FAULTS = {
    "two writers of one conversation": two_writers,
    "SIGKILL in step b, after its effect": kill_in_a_step,
    "source edited while the run is cut off": edited_source,
}
