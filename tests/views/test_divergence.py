"""Where two sessions part."""

from __future__ import annotations

import pytest
from families import ask, fork_of

from holdfast.core import facts
from holdfast.core.payloads import slot
from holdfast.testing.driver import drive
from holdfast.testing.histories import finish_turn, start_turn
from holdfast.views.divergence import divergence
from holdfast.views.documents import diff_document


async def test_a_fork_parts_from_its_source_at_the_first_message_after_the_head(store):
    source = await drive(store, "source")
    await ask(source, "first")
    fork = await fork_of(source, "fork")
    await ask(source, "and then?")
    await ask(fork, "what if?")
    found = await divergence(store, "source", "fork")
    assert (found.relation, found.ancestor, found.turns) == ("source", "source", 1)
    # The inputs of the turn hold the text too, so the turns already differ.
    assert found.one.values == {"question": {"text": "and then?"}}
    assert found.other.values == {"question": {"text": "what if?"}}
    assert (found.one.moment.turn, found.other.moment.turn) == (2, 1)
    back = await divergence(store, "fork", "source")
    assert (back.relation, back.one, back.other) == ("fork", found.other, found.one)


async def test_a_fork_of_an_earlier_head_shares_only_what_came_before_it(store):
    source = await drive(store, "source")
    early = await ask(source, "first")
    await ask(source, "second")
    fork = await fork_of(source, "fork", early)
    await ask(fork, "second", reply="another reply")
    found = await divergence(store, "source", "fork")
    assert (found.turns, found.one.moment.kind) == (2, "reply")
    assert (found.one.values, found.other.values) == (
        {"text": "reply"},
        {"text": "another reply"},
    )


async def test_siblings_are_compared_from_their_common_source(store):
    source = await drive(store, "source")
    await ask(source, "first")
    for name in ("one", "two"):
        fork = await fork_of(source, name)
        await ask(fork, "next", reply=name)
    found = await divergence(store, "one", "two")
    assert (found.relation, found.ancestor, found.turns) == ("siblings", "source", 2)
    assert (found.one.moment.session, found.one.values) == ("one", {"text": "one"})


async def test_a_history_that_is_the_beginning_of_another_ends_where_the_other_goes_on(store):
    source = await drive(store, "source")
    await ask(source, "first")
    await fork_of(source, "fork")
    await ask(source, "second")
    found = await divergence(store, "source", "fork")
    assert found.other.moment is None
    assert found.one.moment.kind == "turn"
    document = diff_document(found)
    assert (document["diverges"], document["other"]["kind"]) == (True, None)


async def test_two_sessions_that_did_the_same_do_not_differ(store):
    for name in ("one", "two"):
        driver = await drive(store, name)
        await ask(driver, "first", usd="0.1" if name == "one" else "0.2")
    found = await divergence(store, "one", "two")
    assert (found.relation, found.diverges, found.common) == ("unrelated", False, 4)
    same = await divergence(store, "one", "one")
    assert (same.relation, same.diverges) == ("same", False)


async def test_calls_under_way_at_once_are_compared_in_the_order_in_which_they_were_asked(store):
    for name, order in (("one", (1, 2)), ("two", (2, 1))):
        driver = await drive(store, name)
        await driver.play(start_turn(driver.state, "hi"))
        await driver.append(facts.StepStarted(step=1, turn=1, ordinal=1))
        await driver.append(facts.StepPut(step=1, turn=1, status="replied"), reply(driver))
        for item in order:
            await driver.append(leaf(driver, item))
        for call_id in ("a", "b"):
            await driver.append(requested(call_id))
        for call_id in ("a", "b") if name == "one" else ("b", "a"):
            await driver.append(resolved(call_id))
        await driver.play(finish_turn(driver.state, "hi"))
    found = await divergence(store, "one", "two")
    assert not found.diverges, found


@pytest.mark.parametrize(("outcome", "expected"), [("error", "error"), ("denied", "denied")])
async def test_another_outcome_of_a_call_is_a_difference(store, outcome, expected):
    for name, end in (("one", "ok"), ("two", outcome)):
        driver = await drive(store, name)
        await driver.append(requested("a"), resolved("a", end))
    found = await divergence(store, "one", "two")
    assert (found.one.values["outcome"], found.other.values["outcome"]) == ("ok", expected)


async def test_a_model_call_that_was_lost_is_not_a_difference(store):
    for name in ("one", "two"):
        driver = await drive(store, name)
        await driver.play(start_turn(driver.state, "hi"))
        if name == "two":
            await driver.append(facts.StepStarted(step=1, turn=1, ordinal=1))
            await driver.append(facts.SessionRevived(turn=1))
            await driver.append(facts.StepPut(step=1, turn=1, status="unknown"))
        await driver.play(finish_turn(driver.state, "hi"))
    assert not (await divergence(store, "one", "two")).diverges


async def test_a_fork_whose_source_is_gone_is_compared_from_its_own_beginning(store):
    source = await drive(store, "source")
    await ask(source, "first")
    for name in ("one", "two"):
        fork = await fork_of(source, name)
        await ask(fork, "next", reply=name)
    await store.release(source.lease)
    await store.delete("source")
    found = await divergence(store, "one", "two")
    assert (found.relation, found.turns) == ("unrelated", 1)
    assert found.one.values == {"text": "one"}


async def test_sources_that_name_each_other_are_followed_once(store):
    first = await drive(store, "a")
    await ask(first, "hi")
    second = await fork_of(first, "b")
    await ask(second, "hi")
    third = await fork_of(second, "c")
    await ask(third, "hi")
    found = await divergence(store, "a", "c")
    assert (found.relation, found.turns, found.other.moment.session) == ("source", 1, "b")


def reply(driver):
    return facts.MessageAppended(
        message=driver.state.next("message"),
        role="assistant",
        content=slot("reply", "message"),
        turn=1,
        step=1,
    )


def leaf(driver, item):
    return facts.LeafCalled(
        leaf=driver.state.next("leaf"),
        turn=1,
        step=1,
        eval=1,
        function="map_lm",
        digest="0" * 8,
        occurrence=1,
        status="ok",
        request=slot(f"q{item}", "request"),
        reply=slot(f"a{item}", "reply"),
        ordinal=item,
        item=item,
        width=2,
    )


def requested(call_id):
    return facts.CallRequested(
        call_id=call_id,
        name=f"desk.{call_id}",
        executor="server",
        effect="once",
        arguments=slot({}, "arguments"),
    )


def resolved(call_id, outcome="ok"):
    return facts.CallResolved(call_id=call_id, outcome=outcome, result=slot(1, "answer"))
