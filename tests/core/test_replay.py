"""A log that append could not have written is found out, whatever its digests say."""

import pytest
from msgspec import structs

from holdfast.core import facts, heads
from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import Event, event_digest
from holdfast.core.forms import data_of
from holdfast.core.log import extend
from holdfast.core.payloads import slot
from holdfast.core.records import DATA_DEPTH
from holdfast.core.replay import prove, replay
from holdfast.core.state import empty

AT = "2026-01-02T03:04:05.000006Z"


def chained(*items: tuple[str, int, dict[str, object]]) -> list[Event]:
    """Return events with right digests, whatever they say."""
    state, events = empty("s"), []
    digest = state.digest
    for seq, (kind, version, data) in enumerate(items, start=1):
        digest = event_digest(digest, seq, kind, version, AT, data)
        events.append(Event("s", seq, kind, version, AT, data, digest))
    return events


START = ("session.started", 1, {})
TURN = ("turn.started", 1, {"turn": 1})


def test_what_append_wrote_replays_to_the_same_state():
    state = empty("s")
    batches = [
        ([facts.SessionStarted()], None),
        ([facts.TurnStarted(turn=1)], None),
        (
            [facts.TurnPut(turn=1, status="final", final=slot(5, "final"))],
            heads.HeadDraft(kind="turn_final", turn=1),
        ),
    ]
    events: list[Event] = []
    for new, head in batches:
        batch = extend(state, new, at=AT, head=head)
        events += batch.events
        state = batch.state
    assert replay(empty("s"), events) == state


@pytest.mark.parametrize(
    "items",
    [
        [TURN],
        [START, START],
        [START, ("session.started", 1, {"tenant": "other"})],
        [("session.started", 1, {"tenant": "../../x"})],
        [START, ("turn.started", 1, {"turn": 7})],
        [START, TURN, TURN],
        [START, ("turn.put", 1, {"turn": 1, "status": "final"})],
        [START, TURN, ("step.put", 1, {"step": 3, "turn": 1, "status": "replied"})],
        [START, ("turn.started", 1, {"turn": 1, "inputs": []})],
        [START, ("turn.started", 1, {"turn": 1, "surplus": 1})],
        [START, ("call.resolved", 1, {"call_id": "c", "outcome": "ok"})],
        [
            START,
            TURN,
            ("step.started", 1, {"step": 1, "turn": 1, "ordinal": 0}),
            ("step.put", 1, {"step": 1, "turn": 1, "status": "replied", "cost_usd": "much"}),
        ],
        [
            START,
            (
                "message.appended",
                1,
                {
                    "message": 1,
                    "role": "user",
                    "content": {"$v": "x", "encoding": "text", "kind": "message"},
                    "extra": {"$v": "x", "encoding": "text", "kind": "message"},
                },
            ),
        ],
        [
            START,
            (
                "head.published",
                1,
                {
                    "id": "sha256:" + "0" * 64,
                    "version": 1,
                    "session": "s",
                    "range": [],
                    "digest": "0" * 64,
                    "kind": "turn_final",
                },
            ),
        ],
    ],
)
def test_a_log_that_makes_no_sense_is_named_by_its_first_bad_event(items):
    with pytest.raises(Corruption, match="event ") as caught:
        replay(empty("s"), chained(*items))
    assert caught.value.details.get("seq", len(items)) == len(items)


def test_a_head_of_another_history_is_found():
    briefing = facts.SessionCompacted(message=1, content=slot("so far", "message"))
    compacted = ("session.compacted", 1, data_of(briefing))
    forged = heads.publish(heads.HeadDraft(kind="compaction"), "s", None, 1, 2, "0" * 64)
    with pytest.raises(Corruption, match="does not follow from the events"):
        replay(empty("s"), chained(START, compacted, ("head.published", 1, data_of(forged))))


@pytest.mark.parametrize("status", ["failed", "stopped", "interrupted"])
def test_a_head_of_a_turn_that_is_not_final_is_found(status):
    ended = ("turn.put", 1, {"turn": 1, "status": status})
    events = chained(START, TURN, ended)
    digest = events[-1].digest
    head = heads.publish(heads.HeadDraft(kind="turn_final", turn=1), "s", None, 1, 3, digest)
    with pytest.raises(Corruption, match="does not follow its final outcome"):
        replay(empty("s"), chained(START, TURN, ended, ("head.published", 1, data_of(head))))


def test_a_newer_event_is_kept_and_makes_the_session_read_only():
    state = replay(empty("s"), chained(START, ("session.dreamt", 1, {"of": "sheep"})))
    assert state.read_only is not None


def test_what_follows_a_newer_event_is_not_judged():
    """Here the turn is known only to the release that wrote it so."""
    step = ("step.started", 1, {"step": 1, "turn": 1, "ordinal": 1})
    newer = ("turn.started", 2, {"turn": 1, "brand": "new"})
    assert replay(empty("s"), chained(START, newer, step)).seq == 3
    with pytest.raises(Corruption, match="not legal"):
        replay(empty("s"), chained(START, step))


@pytest.mark.parametrize("version", [-1, 0, 2**53, 2**63, 2**70])
def test_a_version_that_no_record_holds_is_refused(version):
    with pytest.raises(Corruption, match="event 2"):
        replay(empty("s"), chained(START, ("session.dreamt", version, {})))


def test_data_that_nests_too_deep_for_its_line_is_refused():
    deep: dict[str, object] = {}
    for _ in range(DATA_DEPTH + 1):
        deep = {"x": deep}
    right = chained(START, ("session.dreamt", 1, {}))[1]
    with pytest.raises(Corruption, match="event 2"):
        replay(empty("s"), [*chained(START), structs.replace(right, data=deep)])


def test_a_tombstone_that_no_store_holds_is_refused():
    gone = slot("x" * 600, "message").ref() | {"$erased": {"at": AT, "rule": "\ud800"}}
    event = Event("s", 1, "message.appended", 1, AT, {"content": gone}, "0" * 64)
    with pytest.raises(Corruption, match="tombstone"):
        replay(empty("s"), [event])


def test_heads_and_edges_are_written_by_the_log_alone():
    state = extend(empty("s"), [facts.SessionStarted()], at=AT).state
    head = heads.publish(heads.HeadDraft(kind="compaction"), "s", None, 1, 1, state.digest)
    with pytest.raises(InvalidInput, match="by the log itself"):
        extend(state, [head], at=AT)


def test_a_value_with_a_key_that_no_digest_covers_is_no_value():
    content = {"$v": "hi", "encoding": "text", "kind": "message", "smuggled": "unproven"}
    with pytest.raises(Corruption, match="unknown keys"):
        replay(
            empty("s"),
            [
                *chained(START),
                Event(
                    "s",
                    2,
                    "message.appended",
                    1,
                    AT,
                    {"message": 1, "role": "user", "content": content},
                    event_digest(
                        chained(START)[0].digest,
                        2,
                        "message.appended",
                        1,
                        AT,
                        {
                            "message": 1,
                            "role": "user",
                            "content": {k: v for k, v in content.items() if k != "smuggled"},
                        },
                    ),
                ),
            ],
        )


def test_a_log_that_proves_itself_becomes_a_copy():
    events = chained(START, TURN)
    payloads, erased = {"sha256:" + "0" * 64: b"x"}, {"sha256:" + "1" * 64: ("now", "rule")}
    copy = prove("s", events, payloads, erased)
    assert (copy.session, copy.events) == ("s", events)
    assert (copy.payloads, copy.erased) == (payloads, erased)
    assert (prove("s", events).payloads, prove("s", events).erased) == ({}, {})


@pytest.mark.parametrize("field", ["session", "seq", "type", "version", "at", "data", "digest"])
@pytest.mark.parametrize(
    "wrong",
    [None, -1, 1.5, "x", "\ud800", b"x", [], object()],
    ids=lambda item: type(item).__name__,
)
def test_an_event_with_a_wrong_field_is_named(field, wrong):
    events = chained(START, TURN)
    forged = [events[0], structs.replace(events[1], **{field: wrong})]
    with pytest.raises(Corruption, match="event"):
        prove("s", forged)


@pytest.mark.parametrize(
    ("session", "events", "rest"),
    [
        ("../s", [], ()),
        ("s", None, ()),
        ("s", [None], ()),
        ("s", [], ([],)),
        ("s", [], (7,)),
        ("s", [], ({"x": b""},)),
        ("s", [], ({"sha256:" + "0" * 64: "text"},)),
        ("s", [], ({}, 7)),
        ("s", [], ({}, {"x": ("now", "rule")})),
        ("s", [], ({}, {"sha256:" + "0" * 64: "rule"})),
        ("s", [], ({}, {"sha256:" + "0" * 64: ("now",)})),
    ],
)
def test_what_is_no_copy_is_refused(session, events, rest):
    with pytest.raises(InvalidInput):
        prove(session, events, *rest)
