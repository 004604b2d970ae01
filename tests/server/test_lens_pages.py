"""Pages of a session and of a run: what each says, now and as of an event."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.core.facts import StepStarted
from holdfast.server.access import Access, Principal
from holdfast.server.app import create_app
from holdfast.server.as_of import States
from holdfast.stores.memory.store import MemorySessionStore

from . import scene
from .conftest import BASE, HOSTS, House, cell
from .test_pages import browser_of, csrf_of

TALK = f"/s/{scene.TALK}"


class Stage:
    """A scene that was played, with a browser signed in to it."""

    def __init__(self, runtime: Any, store: Any, browser: Any) -> None:
        self.runtime, self.store, self.browser = runtime, store, browser

    async def text(self, path: str, status: int = 200) -> str:
        answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        return re.sub(r"\s+", " ", answer.text)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    import httpx2

    async with AsyncExitStack() as stack:
        store, access = MemorySessionStore(), Access()
        runtime = await stack.enter_async_context(await scene.opened(store))
        await scene.play(runtime)
        app = create_app(runtime, access=access, hosts=HOSTS)
        stack.push_async_callback(app.state.serving.hub.close)
        browser = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url=BASE, headers={"accept": "text/html"}
        )
        await browser.get(f"/login?code={access.link_code(Principal('owner'))}")
        yield Stage(runtime, store, browser)


async def test_what_the_model_saw_is_proven_by_the_digest_of_the_log_and_the_audit(
    stage: Stage,
) -> None:
    shown = await stage.text(f"{TALK}/step/3")
    assert "As kept by the audit, and proven" in shown
    assert "Reading a fee takes judgement" in shown
    assert "$0.0184" in shown
    assert "there" in (await stage.text(f"{TALK}/step/999", 404))


async def test_a_request_without_an_audit_is_derived_and_equal_or_different(house: House) -> None:
    await house.open(cell("x = 1"), cell("FINAL(x)"))
    session = await house.runtime.start()
    await session.send("secret words")
    browser = await browser_of(house)
    path = f"/s/{session.id}/step/2"
    assert "Derived and equal" in (await browser.get(path)).text
    (said,) = await house.store.read_events(session.id, types=["message.appended"], limit=1)
    await house.store.erase(session.id, said.fact().content.id, "gdpr:1")
    shown = (await browser.get(path)).text
    assert "Derived and different" in shown
    assert "secret words" not in shown


async def test_what_a_compaction_left_out_is_told_with_the_reason(house: House) -> None:
    await house.open(*[cell(f"x = {n}\nprint('long ' * 400)") for n in range(6)], cell("FINAL(1)"))
    session = await house.runtime.start()
    await session.send("one")
    await house.runtime.compact(session.id, "window")
    await session.send("two")
    steps = await house.runtime.steps(session.id)
    shown = (await (await browser_of(house)).get(f"/s/{session.id}/step/{steps[-1].step}")).text
    assert "Derived and equal" in shown
    assert "left out by the compaction at event" in shown


async def test_a_session_is_shown_as_of_any_event(stage: Stage) -> None:
    (started,) = await stage.store.read_events(
        scene.TALK, types=[StepStarted.TYPE], limit=1, after=5
    )
    shown = await stage.text(f"{TALK}?at={started.seq}")
    assert f"As of event <b>{started.seq}</b>" in shown
    assert "I look at the shape of the data" in shown
    assert "Reading a fee takes judgement" not in shown
    assert "Fork from here" in shown
    then = await stage.text(f"{TALK}/variables?at={started.seq}")
    assert "quays" in then
    assert "report" not in then
    now = await stage.text(f"{TALK}/variables")
    assert "report" in now
    assert "has no event 0" in await stage.text(f"{TALK}?at=0", 404)


async def test_the_state_at_an_event_is_the_fold_up_to_it(stage: Stage) -> None:
    states = States()
    tip = await stage.store.load_state(scene.TALK)
    for seq in (tip.seq, 7, 30, 8, 1):
        state = await states.at(stage.store, scene.TALK, seq)
        assert state.seq == seq
    assert await states.at(stage.store, scene.TALK, tip.seq) == tip


async def test_a_fork_says_what_will_be_run_again_before_it_is_made(stage: Stage) -> None:
    shown = await stage.text(f"{TALK}/fork?at=40")
    assert "Before step 4, in turn 1" in shown
    assert '<span class="mono">rlm</span> (idempotent)' in shown
    form = {
        "csrf": csrf_of(shown),
        "key": "fork-once",
        "from": "step:4",
        "do": "fork",
    }
    made = [await stage.browser.post(f"{TALK}/fork", data=form) for _ in range(2)]
    assert made[0].status_code == 303, made[0].text
    assert made[0].headers["location"] == made[1].headers["location"]
    fork = made[0].headers["location"].removeprefix("/s/")
    state = await stage.runtime.state(fork)
    assert state.turn is not None
    wrong = await stage.browser.post(f"{TALK}/fork", data=form | {"key": "k2", "from": "step:999"})
    assert "has no step 999" in wrong.text


async def test_a_fork_from_a_head_runs_nothing_again(stage: Stage) -> None:
    shown = await stage.text(f"{TALK}/fork")
    assert "The last head, the end of turn 2" in shown
    assert "Nothing is run again" in shown


async def test_costs_keep_known_held_and_unknown_apart(stage: Stage) -> None:
    shown = await stage.text(f"{TALK}/costs")
    for word in ("By turn", "By model", "By purpose", "map_lm", "$0.0124", "Turn 3"):
        assert word in shown, word


async def test_the_timeline_has_a_bar_for_each_action_and_marks_waits(stage: Stage) -> None:
    shown = await stage.text(f"{TALK}/timeline")
    for word in ("Turn 1", "Step 1", "Cell 3: error", "map_lm × 4", "rlm →", "send_notice"):
        assert word in shown, word
    assert "url(#hatch-wait)" in shown
    assert "style=" not in shown
    assert "True time" in await stage.text(f"{TALK}/timeline?time=true")


async def test_retries_lost_calls_and_idle_gaps_are_told(house: House) -> None:
    from datetime import UTC, datetime, timedelta

    from holdfast.core import facts
    from holdfast.server.timeline import Bar, Row, _Axis, _tries

    tries = [
        {"started_at": "2026-01-01T10:00:00Z", "duration_ms": 500, "outcome": "error",
         "error": "rate_limited"},
        {"started_at": "2026-01-01T10:00:02Z", "duration_ms": 900, "outcome": "ok"},
    ]  # fmt: skip
    bars = _tries(tries, "f-model")
    assert [bar.tone for bar in bars] == ["f-bad", "f-model"]
    assert bars[-1].label == "2 tries: rate_limited"
    begin = datetime(2026, 1, 1, 10, tzinfo=UTC)
    times = [begin, begin + timedelta(seconds=5), begin + timedelta(hours=2)]
    spans = [(times[0], times[1]), (times[2], times[2] + timedelta(seconds=5))]
    rows = [
        Row(1, "model", "", 1, 1, a.timestamp(), b.timestamp(), [Bar(a.timestamp(), b.timestamp())])
        for a, b in spans
    ]
    squeezed = _Axis(rows, True)
    assert [gap.label for gap in squeezed.gaps] == ["120 min idle"]
    assert squeezed.place(times[1].timestamp()) > 40
    assert _Axis(rows, False).place(times[1].timestamp()) < 1
    assert facts.SessionRevived.TYPE


async def test_a_payload_says_what_it_is_where_it_is_used_and_that_it_was_erased(
    house: House,
) -> None:
    evil = "<script>alert(1)</script>"
    await house.open(cell("FINAL('y' * 70_000)"))
    session = await house.runtime.start()
    await session.send(evil)
    browser = await browser_of(house)
    (said,) = await house.store.read_events(session.id, types=["message.appended"], limit=1)
    (turn,) = await house.runtime.turns(session.id)
    final = turn.final.id
    shown = (await browser.get(f"/s/{session.id}/payload/{final}")).text
    assert "bytes match the id" in shown
    assert "the first 64 kB" in shown
    assert "turn.put" in shown
    small = said.fact().content.id
    assert "&lt;script&gt;" in (await browser.get(f"/s/{session.id}/payload/{small}")).text
    await house.store.erase(session.id, final, "gdpr:7")
    gone = (await browser.get(f"/s/{session.id}/payload/{final}")).text
    assert "This value was erased" in gone
    assert "gdpr:7" in gone
    other = "sha256:" + "0" * 64
    assert (await browser.get(f"/s/{session.id}/payload/{other}")).status_code in (400, 404)


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b'{"a": [1, 2]}', "json"),
        (b"plain words", "text"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 20, "image"),
        (b"\xff\xfe\x00\x01", "binary"),
        (b"<svg onload=alert(1)>", "text"),
        (b"[" * 3000, "text"),
    ],
)
def test_a_preview_is_chosen_by_the_bytes_alone(data: bytes, shape: str) -> None:
    from holdfast.server.payload_pages import _preview

    assert _preview(data)[0] == shape


async def test_two_sessions_are_compared_from_their_first_difference(stage: Stage) -> None:
    shown = await stage.text(f"/compare?a={scene.TALK}&b={scene.FORK}")
    assert "B is a fork of A" in shown
    assert "First difference: message" in shown
    assert "And without the west quay?" in shown
    assert "Which of these quays" not in shown
    marked = await stage.text(f"/compare?s={scene.TALK}&s={scene.TALK}")
    assert "both went through the same" in marked
    assert "Choose two sessions" in await stage.text("/compare")


async def test_the_lineage_has_lanes_with_sums_and_folds_what_wants_no_attention(
    stage: Stage,
) -> None:
    for number in range(12):
        await stage.runtime.fork(scene.TALK, session_id=f"extra-{number:02}")
    shown = await stage.text(f"{TALK}/lineage")
    assert "edge-call" in shown
    assert "edge-fork" in shown
    assert "more forks, none wants attention" in shown
    assert shown.count('name="s"') < 12
    whole = await stage.text(f"{TALK}/lineage?unfold={scene.TALK}")
    assert whole.count('name="s"') == 15


async def test_a_run_shows_its_graph_its_question_and_versions_with_their_difference(
    stage: Stage,
) -> None:
    shown = await stage.text(f"/r/{scene.RUN}")
    assert "lena</b> is asked" in shown
    assert "Publish with two open findings?" in shown
    assert 'aria-label="write: ok, 3 times"' in shown
    assert 'aria-label="hold: not reached"' in shown
    assert "revise, 2 passed" in shown
    node = await stage.text(f"/r/{scene.RUN}?node=write&version=2&against=0")
    assert 'data-d="-"' in node
    assert "Verdict: publish with two findings" in node
    assert "not a workflow run" in await stage.text(f"/r/{scene.TALK}", 404)
    assert "Timeline" in await stage.text(f"/r/{scene.RUN}/report.html")


async def test_one_selection_is_kept_in_the_address_of_every_lens(stage: Stage) -> None:
    shown = await stage.text(f"{TALK}?sel=step:2")
    assert 'aria-current="true"' in shown
    assert f"{TALK}/timeline?sel=step%3A2" in shown
    event = await stage.text(f"{TALK}/events?sel=event:12")
    assert "#12" in event
    assert '"type": "step.put"' in event.replace("&#34;", '"')
    for strange in ("event:-1", "event:999999", "event:x", "<b>", "step:"):
        assert (await stage.browser.get(f"{TALK}/events?sel={strange}")).status_code == 200
