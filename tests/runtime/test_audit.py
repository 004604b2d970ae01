"""The audit of model calls: by reference, beside the log, and outside its digests."""

import json

import pytest

import holdfast
from holdfast import Agent, Hook, ScriptedModel
from holdfast.models.errors import ProviderError
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify


class Note(Hook):
    """Adds a text to every request."""

    def before_model(self, context, messages):
        return "only in this request"


async def rows_of(audit, respond=lambda request: "private answer", hooks=(), store=None):
    store = store or MemorySessionStore()
    model = ScriptedModel(respond)
    agent = Agent(harness="tools", model=model, hooks=hooks, settings={"audit": audit})
    async with holdfast.open(store, agents=[agent], retry="off") as runtime:
        session = await runtime.start(session_id="s-1", agent=agent)
        await session.send("private question")
        found = await session.audit()
    assert (await verify(store, "s-1")).ok
    return [row.record for row in found], store


async def test_off_keeps_nothing():
    rows, _ = await rows_of("off")
    assert rows == []


async def test_records_say_what_was_used_and_hold_no_content():
    (row,), store = await rows_of("records", hooks=[Note()])
    assert (row["purpose"], row["status"], row["turn"], row["step"]) == ("step", "ok", 1, 1)
    assert row["usage"]["input_tokens"] > 0
    assert len(row["attempts"]) == 1
    assert row["latency_ms"] >= 0
    assert row["sent"]["through_seq"] <= (await store.load_state("s-1")).seq
    assert "private" not in json.dumps(row)
    assert "only in this" not in json.dumps(row)


async def test_full_also_has_what_only_this_request_held():
    (row,), store = await rows_of("full", hooks=[Note()])
    assert row["sent"]["last"] == "only in this request"
    assert "private" not in json.dumps(row)
    assert "only in this" not in repr([e.data for e in await store.read_events("s-1")])


async def test_a_call_that_fails_is_in_the_audit_too():
    def fail(request):
        raise ProviderError("overloaded " + "x" * 2000)

    (row,), _ = await rows_of("records", fail)
    assert row["status"] == "error"
    assert "overloaded" in row["error"]
    assert len(row["error"]) <= 500


async def test_the_audit_changes_no_digest():
    digests = set()
    for level in ("records", "full"):
        _, store = await rows_of(level)
        await store.gc_audit(keep=0)
        assert (await verify(store, "s-1")).ok
        events = await store.read_events("s-1")
        digests.add(tuple(event.type for event in events))
    assert len(digests) == 1


async def test_the_compaction_that_applied_is_named():
    store = MemorySessionStore()
    model = ScriptedModel(lambda request: "s" if request.purpose == "summary" else "long " * 200)
    agent = Agent(harness="tools", model=model, settings={"audit": "records"})
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        for _ in range(4):
            await session.send("more")
        made = await session.compact("summary")
        assert made is not None
        await session.send("again")
        rows = [row.record for row in await session.audit()]
    assert [row["purpose"] for row in rows].count("summary") == 1
    applied = rows[-1]["sent"]["compaction"]
    assert applied["strategy"] == "summary"
    assert applied["span"][0] < applied["span"][1] < applied["seq"]


async def test_an_audit_that_cannot_be_written_harms_no_turn():
    class Full(MemorySessionStore):
        async def put_audit(self, session_id, record):
            raise holdfast.errors.NothingWritten("the disk is full")

    rows, store = await rows_of("records", store=Full())
    assert rows == []
    assert (await store.load_state("s-1")).last_turn == "final"


@pytest.mark.parametrize("level", ["some", "on"])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(holdfast.errors.InvalidSettings, match="off, records, full"):
        Agent(settings={"audit": level})
