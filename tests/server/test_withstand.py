"""What the server withstands: any request of its schema, a very long log, and its own death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.core import facts
from holdfast.core.messages import user
from holdfast.runtime.transcript import message_slots

from .browsers import chromium
from .conftest import ASK, House, cell
from .test_browser import browsing

API = "/api/v1"


def _cases(operation: Any) -> list[tuple[Any, bool]]:
    """Return some requests of an operation, half of them for a session that exists."""
    cases: list[tuple[Any, bool]] = []

    @settings(
        max_examples=4,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), real=st.booleans())
    def collect(case: Any, real: bool) -> None:
        cases.append((case, real))

    collect()
    return cases


async def test_no_request_of_the_schema_makes_the_server_fail(house: House) -> None:
    await house.open(ASK)
    client = house.client("admin")
    made = await client.post(f"{API}/sessions", json={"message": "go", "wait": 20})
    session = made.json()["session"]["id"]
    document = (await client.get(f"{API}/openapi.json")).json()
    schema = schemathesis.openapi.from_dict(document)
    wrong: list[str] = []
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/stream") or "ag-ui" in operation.path:
            continue  # they do not end
        cases = _cases(operation)
        for case, real in cases:
            values = {key: str(value) for key, value in (case.path_parameters or {}).items()}
            if real and "session_id" in values:
                values["session_id"] = session
            path = case.path
            for name, value in values.items():
                path = path.replace(f"{{{name}}}", value or "x")
            body = case.body if isinstance(case.body, dict | list | str | int) else None
            if isinstance(body, dict) and isinstance(body.get("wait"), int | float):
                body["wait"] = 0
            params = {k: v for k, v in (case.query or {}).items() if v is not None}
            try:
                answer = await client.request(case.method, path, params=params, json=body)
            except (httpx2.InvalidURL, UnicodeEncodeError, ValueError):
                continue  # no client sends it
            seen += 1
            if answer.status_code >= 500:
                wrong.append(f"{case.method} {path} {params} {body}: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert seen > 60


async def _long(house: House, events: int) -> str:
    """Append a long history to a session."""
    session = await house.runtime.start()
    lease = await house.store.acquire(session.id)
    state = await house.store.load_state(session.id)
    seq, turn, message = state.seq, 0, 0
    while seq < events:
        batch: list[Any] = []
        while len(batch) < 500:
            turn, message = turn + 1, message + 1
            content, _ = message_slots(user(f"message {message}"))
            said = facts.MessageAppended(message=message, role="user", content=content, turn=turn)
            batch += [
                facts.TurnStarted(turn=turn),
                said,
                facts.TurnPut(turn=turn, status="failed", steps=0),
            ]
        done = await house.store.append(lease, seq, batch)
        seq = done.state.seq
    await house.store.release(lease)
    return str(session.id)


async def _opens_quickly(house: House, events: int, seconds: float) -> None:
    session = await _long(house, events)
    async with browsing(house) as (page, base, strayed):
        for path in ("", "/events", "/timeline"):
            begun = time.monotonic()
            await page.goto(f"{base}/s/{session}{path}")
            took = time.monotonic() - begun
            assert took < seconds, (path, took)
            count = await page.evaluate("document.querySelectorAll('*').length")
            assert count < 3000, path
        await page.goto(f"{base}/s/{session}/events?goto={events // 2}")
        await page.wait_for_selector(f"#e{events // 2}")
        await page.evaluate("document.getElementById('vlist').scrollTop = 28 * 100")
        await page.wait_for_selector("#e105")
        assert await page.evaluate("document.querySelectorAll('.vrow').length") < 100
        assert strayed == []


@pytest.mark.soak
async def test_a_long_log_opens_quickly_with_a_bounded_page(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    await _opens_quickly(house, 6_000, 15.0)  # on a busy machine


@pytest.mark.soak
async def test_a_log_of_300_000_events_opens_in_two_seconds(house: House) -> None:
    await house.open(cell("FINAL(1)"))
    await _opens_quickly(house, 300_000, 2.0)


SERVER = """
import asyncio, sys
from pathlib import Path
import uvicorn, holdfast
from holdfast.models.scripted import ScriptedModel
from holdfast.server.access import Access, access_path
from holdfast.server.app import create_app

folder, port = sys.argv[1], int(sys.argv[2])

async def respond(request):
    (Path(folder) / "asked").write_text(str(request.ordinal))
    while not (Path(folder) / "go").exists():
        await asyncio.sleep(0.01)
    return "```python\\nFINAL('done')\\n```"

async def main():
    model = ScriptedModel(respond, name="scripted")
    async with await holdfast.open(
        f"sqlite:{folder}/store", model=model, kernel="monty", recover=True
    ) as runtime:
        access = Access(access_path(runtime.store.flags.url))
        app = create_app(runtime, access=access, hosts=(f"127.0.0.1:{port}",))
        config = uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve()

asyncio.run(main())
"""


async def test_a_server_killed_in_a_turn_goes_on_and_its_viewers_reconnect(
    tmp_path: Path,
) -> None:
    import socket

    from holdfast.server.access import Access, Principal

    async with await holdfast.open(f"sqlite:{tmp_path}/store", model=_none(), kernel="monty"):
        access = Access(tmp_path / "store" / "access.json")
    _, token = access.create("ann", ["admin"])
    cookie = access.cookie(Principal("owner"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    command = [sys.executable, str(program), str(tmp_path), str(port)]

    async def begun() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command)  # noqa: ASYNC220
        async with httpx2.AsyncClient() as http:
            for _ in range(600):
                try:
                    await http.get(f"{base}/healthz")
                    return process
                except httpx2.TransportError:
                    await asyncio.sleep(0.1)
        raise AssertionError("the server does not answer")

    process = await begun()
    try:
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http:
            made = await http.post(f"{base}{API}/sessions", json={"message": "go"})
        session = made.json()["session"]["id"]
        while not (tmp_path / "asked").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with chromium() as browser:
            context = await browser.new_context()
            await context.add_cookies([{"name": "holdfast_session", "value": cookie, "url": base}])
            page = await context.new_page()
            page.set_default_timeout(60_000)
            await page.goto(f"{base}/s/{session}")
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            await page.wait_for_selector("#lost:not([hidden])")
            (tmp_path / "go").write_text("")
            process = await begun()
            await page.wait_for_selector("#lost", state="hidden")
            await page.wait_for_selector(".answer:has-text('done')")
            assert page.url == f"{base}/s/{session}"
    finally:
        process.kill()
        process.wait()


def _none() -> Any:
    from holdfast.models.scripted import ScriptedModel

    return ScriptedModel(lambda request: "", name="scripted")
