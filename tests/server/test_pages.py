"""Pages: every one is rendered, escapes what models and users wrote, and works without a script."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast.server.access import Principal
from holdfast.server.fields import value_of

from .conftest import ASK, House, cell

HTML = {"accept": "text/html"}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[31m\ud800"


async def browser_of(house: House) -> Any:
    browser = house.client()
    browser.headers["accept"] = "text/html"
    await browser.get(f"/login?code={house.access.link_code(Principal('owner'))}")
    return browser


def csrf_of(text: str) -> str:
    return re.search(r'name="csrf" value="([0-9a-f]+)"', text).group(1)


async def test_an_empty_store_and_a_missing_session_name_the_next_command(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    browser = await browser_of(house)
    assert "holdfast demo" in (await browser.get("/sessions")).text
    missing = await browser.get("/s/nobody")
    assert missing.status_code == 404
    assert "holdfast sessions" in missing.text
    stranger = await house.client().get("/sessions", headers=HTML)
    assert (stranger.status_code, "holdfast view" in stranger.text) == (401, True)


async def test_hostile_text_is_shown_and_never_markup(house: House) -> None:
    await house.open(cell(f"print({EVIL!a})\nx = {EVIL[:80]!a}\nFINAL({EVIL!a})"))
    session = await house.runtime.start(labels={"note": "<script>alert(1)</script>"})
    await session.send("<b onclick=alert(1)>" + EVIL[:80])
    browser = await browser_of(house)
    for path in ("/sessions", "", "/events", "/variables", "/lineage", "/step/1", "/export.html"):
        place = path if path == "/sessions" else f"/s/{session.id}{path}"
        text = (await browser.get(place)).text
        assert "<script>alert" not in text, place
        assert "<img" not in text, place
        assert "<b onclick" not in text, place
        assert "\u202e" not in text, place
        assert "\x1b" not in text, place
        assert not re.search(r"<[^>]*\sstyle=", text), place


async def test_a_flow_in_forms_start_answer_finish_fork(house: House) -> None:
    await house.open(ASK)
    browser = await browser_of(house)
    form = {"csrf": csrf_of((await browser.get("/chat")).text), "agent": "default", "message": "go"}
    begun = await browser.post("/chat", data=form)
    assert begun.status_code == 303, begun.text
    place = begun.headers["location"]
    session = place.removeprefix("/s/")
    while not (waits := (await house.runtime.pending()).waits):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # as a browser that asks again
    inbox = await browser.get("/inbox")
    path = f"/inbox/{session}/{waits[0].call_id}"
    assert path in inbox.text
    answer = {"csrf": form["csrf"], "do": "answer", "wait": "1", "f-": "cork"}
    answer["wait"] = str(waits[0].wait)
    assert (await browser.post(path, data=answer)).status_code == 303
    shown = ""
    for _ in range(500):  # as a browser that asks again
        shown = (await browser.get(place)).text
        if "to cork" in shown:
            break
        await asyncio.sleep(0.01)
    assert "to cork" in shown
    again = await browser.post(path, data=answer)
    assert "Already answered" in again.text
    fork = await browser.post(f"{place}/fork", data={"csrf": form["csrf"], "from": "head:"})
    assert fork.headers["location"] != place
    assert (await browser.get(f"{place}/lineage")).text.count("/s/") >= 2


async def test_an_export_stands_alone(house: House) -> None:
    await house.open(cell("FINAL('the answer')"))
    session = await house.runtime.start()
    await session.send("go")
    text = (await (await browser_of(house)).get(f"/s/{session.id}/export.html")).text
    assert "the answer" in text
    assert "<script" not in text
    assert not re.search(r'(src|href)="(/|http)', text)


@pytest.mark.parametrize(
    ("schema", "form", "value"),
    [
        (None, {"f-": "words"}, "words"),
        ({"type": "integer"}, {"f-": "4"}, 4),
        ({"enum": ["a", "b"]}, {"f-": "1"}, "b"),
        ({"type": "array"}, {"f-": "[1]"}, [1]),
        (
            {
                "type": "object",
                "properties": {"n": {"type": "number"}, "ok": {"type": "boolean"}},
                "required": ["n"],
            },
            {"f-n": "1.5", "f-ok": "true"},
            {"n": 1.5, "ok": True},
        ),
    ],
)
def test_a_form_says_the_value_that_its_schema_means(schema: Any, form: Any, value: Any) -> None:
    assert value_of(schema, form) == value
