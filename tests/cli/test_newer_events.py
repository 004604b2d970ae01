"""Events of a newer release, or of types nobody here knows, are shown as they are stored."""

from __future__ import annotations

import asyncio
import json

import pytest
from documented import check
from shells import Shell

from holdfast.core import facts
from holdfast.core.events import Event, event_digest
from holdfast.core.forms import FACTS
from holdfast.core.payloads import slot
from holdfast.core.replay import prove
from holdfast.core.state import empty
from holdfast.stores.choose import open_store
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.driver import all_events, drive
from holdfast.testing.histories import finish_turn, start_turn

NEWER = 99
UNKNOWN = "session.dreamt"
USAGE = {"input_tokens": 3, "output_tokens": 4}


async def whole_log():
    """Return a log with two turns of one step each, a leaf call, a call and two heads."""
    store = MemorySessionStore()
    driver = await drive(store, "s")
    for turn in (1, 2):
        await driver.play(start_turn(driver.state, f"question {turn}"))
        step = driver.state.next("step")
        await driver.append(facts.StepStarted(step=step, turn=turn, ordinal=step, model="m"))
        await driver.append(
            facts.StepPut(step=step, turn=turn, status="replied", usage=USAGE, cost_usd="0.5"),
            facts.MessageAppended(
                message=driver.state.next("message"),
                role="assistant",
                content=slot(f"reply {turn}", "message"),
                turn=turn,
                step=step,
            ),
        )
        await driver.append(
            facts.LeafCalled(
                leaf=driver.state.next("leaf"),
                turn=turn,
                step=step,
                eval=driver.state.next("eval"),
                function="lm",
                digest="0" * 8,
                occurrence=1,
                status="ok",
                request=slot("q", "request"),
            ),
            facts.EvalAdded(
                eval=driver.state.next("eval"),
                turn=turn,
                step=step,
                index=0,
                code=slot("print(1)", "code"),
                status="ok",
                elapsed_ms=5,
            ),
        )
        await driver.play(finish_turn(driver.state, f"answer {turn}"))
    events = await all_events(store, "s")
    payloads = {}
    for event in events:
        for name in ("vars",):
            if name in event.data and "$ref" in event.data[name]:
                payload = event.data[name]["$ref"]
                payloads[payload] = await store.get_payload("s", payload)
    parts = [json.loads(data)["names"]["x"] for data in payloads.values()]
    for part in parts:
        if "$ref" in part:
            payloads[part["$ref"]] = await store.get_payload("s", part["$ref"])
    await store.close()
    return events, payloads


def with_newer(events, kind):
    """Return a log in which every event of a type is of a newer version; one at least."""
    newer = {"colour": "blue"}
    items = [
        (e.type, NEWER, e.data | newer) if e.type == kind else (e.type, e.version, e.data)
        for e in events
    ]
    if kind not in {e.type for e in events}:
        items.insert(5, (kind, NEWER, newer))
    digest, made = empty("s").digest, []
    for seq, (name, version, data) in enumerate(items, start=1):
        at = events[min(seq, len(events)) - 1].at
        digest = event_digest(digest, seq, name, version, at, data)
        made.append(Event("s", seq, name, version, at, data, digest))
    return made


@pytest.fixture(scope="module")
def log():
    return asyncio.run(whole_log())


@pytest.mark.parametrize("kind", [*FACTS, UNKNOWN])
def test_every_command_that_looks_reads_a_log_with_newer_events(kind, log, tmp_path):
    events = with_newer(log[0], kind)
    shell = Shell(tmp_path)

    async def store_it():
        store = await open_store(shell.store)
        await store.import_log(prove("s", events, log[1]))
        await store.close()

    asyncio.run(store_it())
    document = shell.json("show", "s")
    check(document, "show")
    raw = document["raw"] + [event for turn in document["turns"] for event in turn["raw"]]
    stored = [event for event in shell.lines("events", "s") if event["v"] == NEWER]
    assert stored
    assert sorted(raw, key=lambda event: event["seq"]) == stored
    for words in (["show", "s"], ["show", "s", "--full"]):
        done = shell.inside(*words)
        assert done.returncode == 0, done
        assert done.stdout.count(f"{kind} version {NEWER}") == len(stored)
        assert done.stdout.count('"colour": "blue"') == len(stored)
    for words in (["sessions"], ["heads", "s"], ["tree", "s"], ["vars", "s"], ["events", "s"]):
        assert shell.inside(*words).returncode == 0, words


@pytest.mark.parametrize("kind", ["turn.started", "step.started", "message.appended", "turn.put"])
def test_what_is_known_is_shown_where_it_belongs_beside_newer_events(kind, log, tmp_path):
    shell = Shell(tmp_path)

    async def store_it():
        store = await open_store(shell.store)
        await store.import_log(prove("s", with_newer(log[0], kind), log[1]))
        await store.close()

    asyncio.run(store_it())
    first, second = shell.json("show", "s")["turns"]
    assert (first["turn"], second["turn"]) == (1, 2)
    for turn in (first, second):
        (step,) = turn["steps"]
        assert (step["status"], step["cost_usd"]) == ("replied", "0.5")
        assert [cell["code"] for cell in step["cells"]] == ["print(1)"]
        assert step["leaves"]["asked"] == 1
        number = turn["turn"]
        if kind != "message.appended":
            assert (turn["message"], step["reply"]) == (f"question {number}", f"reply {number}")
        if kind != "turn.put":
            assert (turn["status"], turn["value"]) == ("final", [f"answer {number}", 1.0])
    (only,) = shell.json("show", "s", "--turn", "2")["turns"]
    assert only == second
