"""Who may do what: refused without a token, from elsewhere, and for what belongs to others."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.access import Access, Principal
from holdfast.server.guard import Limits

from .conftest import ASK, House, cell

API = "/api/v1"


async def made(house: House, client: Any, **body: Any) -> str:
    answer = await client.post(f"{API}/sessions", json={"message": "go", "wait": 30} | body)
    return str(answer.json()["session"]["id"])


def alike(answer: Any) -> dict[str, Any]:
    document = answer.json()
    return {"status": answer.status_code} | {
        name: document[name] for name in ("type", "title", "code", "detail")
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer hf_abc_def"},
        {"authorization": "Basic YTpi"},
        {"cookie": "holdfast_session=forged.signature"},
    ],
)
async def test_without_a_valid_token_every_address_gives_the_same_answer(
    house: House, headers: dict[str, str]
) -> None:
    await house.open(cell("FINAL(1)"))
    session = await made(house, house.client("act"))
    client = house.client()
    there = await client.get(f"{API}/sessions/{session}", headers=headers)
    absent = await client.get(f"{API}/sessions/nobody", headers=headers)
    nowhere = await client.get(f"{API}/nowhere", headers=headers)
    assert there.status_code == 401
    assert alike(there) == alike(absent) == alike(nowhere)


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"host": ""}, {"origin": "http://evil.example"}, {"origin": "null"}],
)
async def test_a_foreign_host_or_origin_is_refused_whatever_is_there(
    house: House, headers: dict[str, str]
) -> None:
    await house.open(cell("FINAL(1)"))
    client = house.client("admin")
    session = await made(house, client)
    there = await client.get(f"{API}/sessions/{session}", headers=headers)
    absent = await client.get(f"{API}/sessions/nobody", headers=headers)
    assert there.status_code == 403
    assert alike(there) == alike(absent)


async def test_another_tenant_sees_what_it_would_see_if_nothing_were_there(house: House) -> None:
    await house.open(ASK)
    ours, theirs = house.client("admin"), house.client("admin", tenant="other")
    session = await made(house, ours)
    (call,) = (await ours.get(f"{API}/sessions/{session}")).json()["calls"]
    event = (await ours.get(f"{API}/sessions/{session}/events")).json()["events"][0]
    payload = event["data"]["settings"].get("$ref", "sha256:" + "0" * 64)
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/events", None),
        ("GET", "/stream", None),
        ("GET", "/turns", None),
        ("GET", "/tree", None),
        ("GET", "/verify", None),
        ("GET", f"/payloads/{payload}", None),
        ("GET", f"/calls/{call}/wait", None),
        ("POST", "/messages", {"message": "x"}),
        ("POST", "/stop", None),
        ("POST", "/forks", {}),
        ("POST", "/compact", {}),
        ("POST", "/resume", {}),
        ("POST", f"/calls/{call}/answer", {"value": "x"}),
    ):
        foreign = await theirs.request(method, f"{API}/sessions/{session}{path}", json=body)
        absent = await theirs.request(method, f"{API}/sessions/s-nobody{path}", json=body)
        want = json.loads(json.dumps(alike(absent)).replace("s-nobody", session))
        assert alike(foreign) == want, path
        assert foreign.status_code == 404, path
    assert (await theirs.get(f"{API}/sessions")).json()["sessions"] == []
    assert (await theirs.get(f"{API}/pending")).json()["pending"] == []


async def test_the_same_key_of_two_tenants_makes_two_sessions(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    key = {"idempotency-key": "same"}
    ids = []
    for tenant in ("default", "other"):
        client = house.client("act", tenant=tenant)
        answer = await client.post(f"{API}/sessions", json={}, headers=key)
        ids.append(answer.json()["session"]["id"])
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("rights", "path", "body"),
    [
        (("read",), "/sessions", {}),
        (("read", "answer"), "/sessions/s-1/messages", {"message": "x"}),
        (("read", "act"), "/sessions/s-1/calls/c/answer", {"value": 1}),
    ],
)
async def test_a_right_that_is_missing_is_refused(
    house: House, rights: tuple[str, ...], path: str, body: dict[str, Any]
) -> None:
    await house.open(cell("FINAL(1)"))
    answer = await house.client(*rights).post(f"{API}{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "right_missing")


async def test_a_revoked_token_is_refused_at_once_and_no_secret_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    server, console = Access(path), Access(path)
    info, token = console.create("ann", ["read"])
    assert server.of_token(token) == Principal("ann", "default", frozenset({"read"}))
    assert token.rpartition("_")[2] not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    console.revoke(info.id)
    assert server.of_token(token) is None


async def test_a_link_signs_in_once_and_the_cookie_outlives_the_server(
    house: House, tmp_path: Path
) -> None:
    house.access = Access(tmp_path / "access.json")
    await house.open(cell("FINAL(1)"))
    code = house.access.link_code(Principal("owner"))
    browser = house.client()
    assert (await browser.get(f"/login?code={code}")).status_code == 200
    set_cookie = next(iter(browser.cookies.jar))
    assert set_cookie.has_nonstandard_attr("HttpOnly")
    assert set_cookie.get_nonstandard_attr("SameSite").lower() == "strict"
    assert (await browser.get(f"{API}/sessions")).status_code == 200
    assert (await house.client().get(f"/login?code={code}")).status_code == 401
    again = Access(tmp_path / "access.json")
    assert again.of_cookie(set_cookie.value) is not None


async def test_a_browser_changes_nothing_without_the_token_of_its_page(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    browser = house.client()
    await browser.get(f"/login?code={house.access.link_code(Principal('owner'))}")
    plain = await browser.post(f"{API}/sessions", json={})
    assert (plain.status_code, plain.json()["code"]) == (403, "csrf")
    cookie = next(iter(browser.cookies.jar)).value
    csrf = house.access.of_cookie(cookie).csrf
    crossed = {"x-csrf-token": csrf, "sec-fetch-site": "cross-site"}
    assert (await browser.post(f"{API}/sessions", json={}, headers=crossed)).status_code == 403
    good = await browser.post(f"{API}/sessions", json={}, headers={"x-csrf-token": csrf})
    assert good.status_code == 201


async def test_size_and_rate_are_limited(house: House) -> None:
    await house.open(
        cell("FINAL(1)"), limits=Limits(body_bytes=1000, requests_per_second=0.001, burst=5)
    )
    client = house.client("act")
    large = await client.post(f"{API}/sessions", json={"message": "x" * 2000})
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    codes = [(await client.get(f"{API}/sessions")).status_code for _ in range(8)]
    assert codes[0] == 200
    assert codes[-1] == 429


async def test_a_server_to_look_at_changes_nothing(house: House) -> None:
    await house.open(cell("FINAL(1)"), read_only=True)
    answer = await house.client("admin").post(f"{API}/sessions", json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "read_only")


async def test_each_change_leaves_an_audit_line(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.open(cell("FINAL(1)"))
    with caplog.at_level(logging.INFO, "holdfast.audit"):
        await house.client("act", name="bea").post(f"{API}/sessions", json={})
    (line,) = [json.loads(record.message) for record in caplog.records]
    assert (line["by"], line["method"], line["status"]) == ("bea", "POST", 201)


async def test_every_answer_forbids_inline_scripts_and_other_hosts(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    for path in ("/healthz", f"{API}/sessions", "/", "/static/style.css"):
        policy = (await house.client("read").get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
