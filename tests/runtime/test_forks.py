"""A fork goes on from a head, stands on its own, and never touches its source."""

import pytest

import holdfast
from holdfast.core.errors import HeadNotFound, SessionNotFound
from holdfast.core.payloads import slot
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies

LOG = cell("log = globals().get('log', [])\nlog.append(len(log))\nFINAL(log)")
STEPS = [LOG, LOG, LOG]


async def test_a_fork_restores_namespace_and_transcript_of_any_head(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    first = await source.send("one")
    await source.send("two " + "long " * 200)
    before = await lab.store.read_events(source.id)
    old = await source.fork(first.head)
    new = await source.fork()
    result = await old.send("again")
    assert result.value == [0, 1]
    texts = [message.text for message in lab.requests[-1].messages]
    assert texts[0] == "one"
    assert texts[-1] == "again"
    assert not any(text.startswith("two") for text in texts)
    assert (await new.send("again")).value == [0, 1, 2]
    texts = [message.text for message in lab.requests[-1].messages]
    assert any(text.startswith("two long") for text in texts)
    assert await lab.store.read_events(source.id) == before


async def test_the_derivation_edge_stands_in_the_forks_log_with_its_first_head(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    head = (await source.send("one")).head
    fork = await source.fork()
    assert await lab.facts(fork.id, "lineage.added") == []
    first = await fork.send("two")
    await fork.send("three")
    (edge,) = await lab.facts(fork.id, "lineage.added")
    assert (edge.type, edge.from_session, edge.from_head) == ("derivation", source.id, head)
    assert (edge.to_session, edge.to_head) == (fork.id, first.head)
    assert await lab.facts(source.id, "lineage.added") == []
    assert (await runtime.state(fork.id)).kind == "fork"


async def test_a_fork_does_not_need_its_source_afterwards(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    await source.send("one", inputs={"text": "x" * 100_000})
    fork = await source.fork()
    await lab.store.delete(source.id)
    await lab.store.gc(grace_seconds=0)
    assert (await verify(lab.store, fork.id)).ok
    result = await fork.send("go on")
    assert isinstance(result, holdfast.Final)
    again = await fork.fork()
    assert (await verify(lab.store, again.id)).ok


async def test_nothing_is_created_where_there_is_no_such_head(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    with pytest.raises(HeadNotFound, match="no head yet"):
        await source.fork(session_id="copy")
    await source.send("one")
    with pytest.raises(HeadNotFound):
        await source.fork("sha256:" + "0" * 64, session_id="copy")
    with pytest.raises(SessionNotFound):
        await runtime.fork("s-none", session_id="copy")
    with pytest.raises(SessionNotFound):
        await runtime.state("copy")


async def test_a_script_tells_a_fork_from_its_source_by_its_own_first_message(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    await source.send("one")
    fork = await source.fork()
    await fork.send("two")
    await source.send("three")
    assert [request.first_user_text for request in lab.requests] == ["one", "two", "one"]
    assert [request.ordinal for request in lab.requests] == [0, 0, 1]


async def test_a_message_can_be_erased_before_and_after_a_fork(lab: Lab) -> None:
    runtime = await lab.open(replies(*STEPS))
    source = await runtime.start()
    await source.send("my name is Ada")
    early = await source.fork()
    secret = slot("my name is Ada", "message").id
    await lab.store.erase(source.id, secret, "privacy")
    late = await source.fork()
    await late.send("who am I?")
    assert lab.requests[-1].messages[0].text == "[this message was erased]"
    await early.send("who am I?")
    assert lab.requests[-1].messages[0].text == "my name is Ada"
    await runtime.close()
    await lab.store.erase(early.id, secret, "privacy")
    again = await lab.open(replies(*STEPS))
    await again.send(early.id, "and now?")
    assert lab.requests[-1].messages[0].text == "[this message was erased]"
    third = await again.fork(early.id)
    await third.send("still?")
    assert lab.requests[-1].messages[0].text == "[this message was erased]"
    for session_id in (source.id, early.id, late.id, third.id):
        assert (await verify(lab.store, session_id)).ok
    assert not any(b"Ada" in kept.data for kept in lab.store.database.payloads.values())
