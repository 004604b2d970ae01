"""Whatever byte of a store is damaged: it is found, or it changed nothing; it is never silent."""

import shutil
from random import Random

import pytest
from workload import open_plain

from holdfast.core.errors import Corruption, HoldfastError
from holdfast.core.payloads import slot
from holdfast.stores.verify import verify
from holdfast.testing.driver import all_events, drive
from holdfast.testing.histories import start_turn

BIG = slot("big " * 900, "message")
HUGE = slot("".join(f"{number:x} huge " for number in range(20_000)), "message")
SESSIONS = ("s-1", "s-2")


class Original:
    """A store that was closed in good order, and what it holds."""

    def __init__(self, kind, path):
        self.kind, self.path = kind, path
        self.events, self.states = {}, {}

    async def fill(self):
        store = await open_plain(self.kind, self.path)
        for session in SESSIONS:
            driver = await drive(store, session)
            await driver.say(BIG)
            await driver.say(HUGE)
            for number in range(4):
                await driver.turn(f"turn {number} of {session}")
            await driver.play(start_turn(driver.state, "open"))
            self.events[session] = await all_events(store, session)
            self.states[session] = driver.state
        await store.close()

    def files(self):
        wanted = ("events.db", "events.jsonl", ".zst")
        return [
            path
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.name.endswith(wanted)
        ]


@pytest.fixture(params=["sqlite", "files"])
async def original(request, tmp_path):
    it = Original(request.param, tmp_path / "original")
    await it.fill()
    return it


async def judge(original, path):
    """Return how damage shows: refused, found or harmless; fail where it is silent."""
    try:
        store = await open_plain(original.kind, path)
    except HoldfastError:
        return "refused"
    verdict = "harmless"
    try:
        for session in SESSIONS:
            if await _judge_session(original, store, session):
                verdict = "found"
    finally:
        await store.close()
    return verdict


async def _judge_session(original, store, session):
    wanted = original.events[session]
    try:
        found = bool((await verify(store, session)).problems)
        state = await store.load_state(session)
    except HoldfastError:
        found, state = True, None
    for event in wanted:
        bounds = {"after": event.seq - 1, "before": event.seq + 1}
        try:
            page = await store.read_events(session, **bounds)
        except HoldfastError:
            assert found, f"event {event.seq} cannot be read, but verify is content"
        else:
            assert found or page == [event], f"event {event.seq} changed in silence"
    for item in (BIG, HUGE):
        try:
            assert await store.get_payload(session, item.id) == item.data
        except HoldfastError:
            assert found, "a payload cannot be read, but verify is content"
    assert found or state == original.states[session]
    return found


async def damage(original, tmp_path, rounds, spoil):
    verdicts = []
    for number in range(rounds):
        random = Random(number)
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(original.path, copy)
        files = original.files()
        target = copy / files[number % len(files)].relative_to(original.path)
        content = target.read_bytes()
        at = random.randrange(len(content))
        target.write_bytes(spoil(content, at, random))
        try:
            verdicts.append(await judge(original, copy))
        except BaseException as error:
            error.add_note(f"round {number}: {target.name} at {at} of {len(content)}")
            raise
        shutil.rmtree(copy)
    return verdicts


def flip(content, at, random):
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]


def smear(content, at, random):
    return content[:at] + random.randbytes(40) + content[at + 40 :]


@pytest.mark.parametrize("spoil", [flip, smear])
async def test_no_damaged_byte_goes_unnoticed(original, tmp_path, spoil):
    verdicts = await damage(original, tmp_path, 40, spoil)
    assert verdicts.count("harmless") < len(verdicts) / 2


@pytest.mark.soak
@pytest.mark.parametrize("spoil", [flip, smear])
async def test_no_damaged_byte_goes_unnoticed_in_a_long_run(original, tmp_path, spoil):
    await damage(original, tmp_path, 2000, spoil)


async def cut_short(original, tmp_path, names):
    for target in original.files():
        for part in (0.0, 0.3, 0.6, 0.95):
            if target.name.endswith(names):
                copy = tmp_path / "copy"
                shutil.copytree(original.path, copy)
                place = copy / target.relative_to(original.path)
                content = place.read_bytes()
                place.write_bytes(content[: int(len(content) * part)])
                yield copy
                shutil.rmtree(copy)


async def test_a_database_or_payload_cut_short_is_found_out(original, tmp_path):
    async for copy in cut_short(original, tmp_path, (".db", ".zst")):
        assert await judge(original, copy) != "harmless"


@pytest.mark.parametrize("original", ["files"], indirect=True)
async def test_a_log_file_cut_short_shows_what_is_left_or_says_what_is_wrong(original, tmp_path):
    # What nothing beside the log knows of could have been torn off before it was acknowledged.
    async for copy in cut_short(original, tmp_path, (".jsonl",)):
        store = await open_plain(original.kind, copy)
        for session in SESSIONS:
            try:
                left = await all_events(store, session)
                assert left == original.events[session][: len(left)]
                report = await verify(store, session)
                assert not report.ok or report.digest == left[-1].digest
            except Corruption:
                continue
        await store.close()


async def test_a_missing_blob_is_named_with_its_event_and_the_rest_stays_readable(original):
    (blob, *_) = [path for path in original.files() if path.name in HUGE.id.split(":")[1] + ".zst"]
    blob.unlink()
    store = await open_plain(original.kind, original.path)
    for session in SESSIONS:
        (problem,) = (await verify(store, session)).problems
        assert (problem.seq, problem.payload) == (3, HUGE.id)
        with pytest.raises(Corruption, match=HUGE.id):
            await store.get_payload(session, HUGE.id)
        assert await store.get_payload(session, BIG.id) == BIG.data
        assert await all_events(store, session) == original.events[session]
    await store.close()
