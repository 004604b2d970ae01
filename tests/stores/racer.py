"""What a process does that races others for one session; run as a program, it prints what it saw.

racer.py URL append ROUNDS     take the lease whenever it is free, append, give it back
racer.py URL hold              on each line of input: "take" the lease, or "append" with it
racer.py URL write ROUNDS      put payloads and append them while another process sweeps
racer.py URL pace ROUNDS       take the lease and append at an even pace
racer.py URL sweep             sweep until the input ends
"""

import asyncio
import json
import sys
from pathlib import Path

from holdfast.core.errors import HoldfastError, InvalidRef, LeaseHeld, LeaseLost, PositionConflict
from holdfast.core.payloads import slot
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.testing.driver import Driver

HELD_SECONDS = 0.15


def say(**facts):
    print(json.dumps(facts), flush=True)


async def open_racer(url, lease_seconds=HELD_SECONDS):
    kind, _, path = url.partition(":")
    if kind == "postgresql":
        return await PostgresSessionStore.open(url, lease_seconds=lease_seconds)
    opener = FilesSessionStore if kind == "files" else SqliteSessionStore
    return await opener.open(Path(path), lease_seconds=lease_seconds)


async def append(store, rounds):
    """Append in many short drives, and once in each with a lease or position that is stale."""
    done = 0
    while done < rounds:
        try:
            lease = await store.acquire("s-1")
        except LeaseHeld as error:
            say(refused="held", holder=error.details["holder"], owner=error.details["owner"])
            await asyncio.sleep(0.001)
            continue
        driver = Driver(store, lease, await store.load_state("s-1"))
        for _ in range(3):
            event = await driver.say(f"{store.owner} {done}")
            say(seq=event.seq, digest=event.digest)
            done += 1
        try:
            await store.append(lease, 1, [driver.message("stale")])
        except PositionConflict as error:
            say(refused="position", seq=error.details["seq"])
        await store.release(lease)
        try:
            await driver.say("too late")
        except LeaseLost as error:
            say(refused="lost", owner=error.details["owner"])


async def hold(store):
    """Take the lease or append whenever asked; say what came of it."""
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        try:
            if command == "take":
                lease = await store.acquire("s-1")
                driver = Driver(store, lease, await store.load_state("s-1"))
                say(owner=store.owner, epoch=lease.epoch)
            else:
                event = await driver.say(f"epoch {lease.epoch}")
                say(seq=event.seq, digest=event.digest)
        except HoldfastError as error:
            say(refused=error.code, owner=error.details.get("owner"), text=str(error))


async def pace(store, rounds):
    """Append at an even pace, so that none of the events waits for another."""
    driver = Driver(store, await store.acquire("s-1"), await store.load_state("s-1"))
    for number in range(rounds):
        await driver.say(f"beat {number}")
        await asyncio.sleep(0.03)


async def write(store, rounds):
    """Put payloads that others may have left as orphans, then append them, now or later."""
    driver = Driver(store, await store.acquire("s-1"), await store.load_state("s-1"))
    for number in range(rounds):
        text = f"{number % 7} " * (300 if number % 2 else 40_000)
        item = slot(text, "message")
        bare = await store.put_payload("s-1", item)
        if number % 3 == 0:
            continue  # an orphan, for a later put to hit
        try:
            await driver.say(bare)
        except InvalidRef:
            say(refused="swept", payload=item.id)
            await driver.say(item)
        say(seq=driver.state.seq, payload=item.id)


async def sweep(store):
    """Sweep as fast as possible."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    rounds = taken = 0
    while not ended.done():
        taken += (await store.gc(grace_seconds=0)).payloads
        rounds += 1
    say(rounds=rounds, taken=taken)


async def main():
    store = await open_racer(sys.argv[1], 15.0 if sys.argv[2] != "hold" else HELD_SECONDS)
    arguments = [int(text) for text in sys.argv[3:]]
    verbs = {"append": append, "hold": hold, "pace": pace, "write": write, "sweep": sweep}
    await verbs[sys.argv[2]](store, *arguments)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
