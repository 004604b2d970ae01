"""Sessions that cannot go on are named by `holdfast doctor`, whoever damaged them."""

from __future__ import annotations

import asyncio

from holdfast.stores.files.store import FilesSessionStore
from holdfast.testing.driver import drive


async def talk(place):
    store = await FilesSessionStore.open(place)
    driver = await drive(store, "talk")
    await driver.say("first")
    await driver.say("second")
    await store.close()


def test_doctor_and_verify_name_a_session_whose_log_lost_its_end(shell):
    root = shell.place / "files"
    asyncio.run(talk(root))
    shell.store = f"files:{root}"
    shell.environment["HOLDFAST_STORE"] = shell.store
    assert shell.json("doctor")["problems"] == []
    log = root / "runs" / "talk" / "events.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    (problem,) = shell.json("doctor", code=1)["problems"]
    assert "the log of session 'talk' ends at event 2" in problem
    proof = shell.json("verify", "talk", code=1)["sessions"][0]
    assert proof["problems"][0]["seq"] == 3
