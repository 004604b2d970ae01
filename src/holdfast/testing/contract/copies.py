"""Chapter: a session travels in one file that proves itself, and arrives as what it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    ImportConflict,
    InvalidInput,
    LeaseHeld,
    NothingWritten,
    PayloadNotFound,
    ReadOnlySession,
    SessionDeleted,
    SessionNotFound,
)
from holdfast.core.payloads import manifest, slot
from holdfast.core.records import canonical, digest_id
from holdfast.core.replay import Copy, prove
from holdfast.stores.port import SessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import Driver, all_events, drive, view
from holdfast.testing.histories import start_turn

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BIG = slot("b" * 100_000, "message")


class CopyContract(ContractPlace):
    """Export and import."""

    async def test_a_copy_has_the_same_events_payloads_state_and_head(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        for session in ("s-1", "s-2"):
            driver = await drive(store, session, facts.SessionStarted(agent="a-1"))
            await driver.turn("hi")
            await driver.say(BIG)
        file = tmp_path / "export"
        assert await export_sessions(store, ["s-1", "s-2"], file) == 2 * driver.state.seq
        copy = await place.sibling("copy").open()
        outcomes = await import_sessions(copy, file)
        assert [(o.session, o.outcome, o.events) for o in outcomes] == [
            ("s-1", "created", driver.state.seq),
            ("s-2", "created", driver.state.seq),
        ]
        for session in ("s-1", "s-2"):
            assert await view(copy, session) == await view(store, session)
            assert await copy.get_payload(session, BIG.id) == BIG.data
            assert await verify(copy, session) == await verify(store, session)
        assert (await copy.gc(grace_seconds=0)).payloads == 0
        assert not (await copy.session_info("s-1")).imported
        driven = await copy.acquire("s-1")
        await copy.append(driven, driver.state.seq, [driver.message("goes on here")])
        await copy.close()

    async def test_a_value_erased_while_it_is_exported_leaves_a_file_that_imports(
        self,
        place: Place,
        store: SessionStore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        driver = await drive(store)
        await driver.say(slot("a" * 5000, "message"))
        await driver.say(BIG)
        await driver.say(BIG)
        read = store.get_payload

        async def meanwhile(session_id: str, payload_id: str) -> bytes:
            if BIG.id not in await store.erased("s-1"):
                await store.erase("s-1", BIG.id, "privacy")
            return await read(session_id, payload_id)

        monkeypatch.setattr(store, "get_payload", meanwhile)
        file = tmp_path / "export"
        await export_sessions(store, ["s-1", "s-1"], file)
        copy = await place.sibling("copy").open()
        assert [o.outcome for o in await import_sessions(copy, file)] == ["created"]
        assert await view(copy, "s-1") == await view(store, "s-1")
        await copy.close()

    async def test_what_the_original_erased_since_stays_readable_where_a_copy_still_says_it(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        file = tmp_path / "export"
        await export_sessions(store, ["s-1"], file)
        copy = await place.sibling("copy").open()
        await import_sessions(copy, file)
        await driver.say(BIG)
        await store.erase("s-1", BIG.id, "privacy")
        await export_sessions(store, ["s-1"], file)
        assert [o.outcome for o in await import_sessions(copy, file)] == ["forwarded"]
        assert (await copy.gc(grace_seconds=0)).payloads == 0
        assert await copy.get_payload("s-1", BIG.id) == BIG.data
        assert (await verify(copy, "s-1")).ok
        await copy.close()

    async def test_a_small_value_that_stands_inline_and_apart_arrives_as_both(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        """A fork whose first message repeats one it inherited has such a value."""
        apart = structs.replace(slot("yes", "message"), by_ref=True)
        transcript = manifest({"v": 1, "messages": [apart.ref()]}, "transcript")
        await store.create_session(
            "s-1", facts.SessionStarted(kind="fork", transcript=transcript), payloads=[apart]
        )
        lease = await store.acquire("s-1")
        said = facts.MessageAppended(message=1, role="user", content=slot("yes", "message"))
        await store.append(lease, 1, [said])
        file = tmp_path / "export"
        await export_sessions(store, ["s-1"], file)
        copy = await place.sibling("copy").open()
        await import_sessions(copy, file)
        assert (await verify(copy, "s-1")).ok
        assert await copy.get_payload("s-1", apart.id) == b"yes"
        await copy.close()

    async def test_an_identical_copy_changes_nothing_and_a_longer_one_forwards(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say("one")
        short, long = tmp_path / "short", tmp_path / "long"
        await export_sessions(store, ["s-1"], short)
        await driver.say(BIG)
        await driver.turn("two")
        await export_sessions(store, ["s-1"], long)
        copy = await place.sibling("copy").open()
        outcomes = []
        for file in (short, short, long, short, long):
            (done,) = await import_sessions(copy, file)
            outcomes.append((done.outcome, done.events))
        assert outcomes[:2] == [("created", 2), ("unchanged", 0)]
        assert outcomes[2] == ("forwarded", driver.state.seq - 2)
        assert outcomes[3:] == [("unchanged", 0)] * 2
        assert await view(copy, "s-1") == await view(store, "s-1")
        assert (await verify(copy, "s-1")).ok
        await copy.close()

    async def test_a_copy_that_went_another_way_is_a_conflict_and_changes_nothing(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say("common")
        file = tmp_path / "export"
        await export_sessions(store, ["s-1"], file)
        copy = await place.sibling("copy").open()
        await import_sessions(copy, file)
        lease = await copy.acquire("s-1")
        other = Driver(copy, lease, await copy.load_state("s-1"))
        await other.say("this way")
        await copy.release(lease)
        await driver.say("that way")
        await driver.say("and on")
        await export_sessions(store, ["s-1"], file)
        before = await view(copy, "s-1")
        with pytest.raises(ImportConflict) as caught:
            await import_sessions(copy, file)
        assert caught.value.details["seq"] == 3
        assert await view(copy, "s-1") == before
        await copy.close()

    @pytest.mark.parametrize("reason", ["differs", "is driven", "was deleted"])
    async def test_a_file_of_which_one_session_does_not_fit_leaves_nothing_of_the_others(
        self, place: Place, store: SessionStore, tmp_path: Path, reason: str
    ) -> None:
        first, second = await drive(store, "s-1"), await drive(store, "s-2")
        copy = await place.sibling("copy").open()
        await export_sessions(store, ["s-2"], tmp_path / "early")
        await import_sessions(copy, tmp_path / "early")
        await first.say("hi")
        await second.say("here")
        await export_sessions(store, ["s-1", "s-2"], tmp_path / "both")
        lease = await copy.acquire("s-2")
        refusal: type[HoldfastError] = LeaseHeld
        if reason == "differs":
            await Driver(copy, lease, await copy.load_state("s-2")).say("there")
            refusal = ImportConflict
        if reason != "is driven":
            await copy.release(lease)
        if reason == "was deleted":
            await copy.delete("s-2")
            refusal = SessionDeleted
        with pytest.raises(refusal, match="s-2"):
            await import_sessions(copy, tmp_path / "both")
        with pytest.raises(SessionNotFound):
            await copy.session_info("s-1")
        if reason == "is driven":
            await copy.release(lease)
            done = await import_sessions(copy, tmp_path / "both")
            assert [item.outcome for item in done] == ["created", "forwarded"]
            assert await view(copy, "s-2") == await view(store, "s-2")
        await copy.close()

    async def test_a_copy_is_not_forwarded_under_a_live_driver(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        short, long = tmp_path / "short", tmp_path / "long"
        await export_sessions(store, ["s-1"], short)
        await driver.say("more")
        await export_sessions(store, ["s-1"], long)
        copy = await place.sibling("copy").open()
        await import_sessions(copy, short)
        await copy.acquire("s-1")
        with pytest.raises(LeaseHeld):
            await import_sessions(copy, long)
        assert (await copy.load_state("s-1")).seq == 1
        await copy.close()

    async def test_a_deleted_id_is_not_imported_again(
        self, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await export_sessions(store, ["s-1"], tmp_path / "export")
        await store.release(driver.lease)
        await store.delete("s-1")
        with pytest.raises(SessionDeleted, match="s-1"):
            await import_sessions(store, tmp_path / "export")
        assert (await store.list_sessions()).sessions == ()

    async def test_a_copy_with_open_work_is_read_only_until_it_is_taken_over(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.play(start_turn(driver.state, "hi"))
        await export_sessions(store, ["s-1"], tmp_path / "export")
        there = place.sibling("copy")
        copy = await there.open()
        await import_sessions(copy, tmp_path / "export")
        for _ in range(2):
            assert (await copy.session_info("s-1")).imported
            with pytest.raises(ReadOnlySession, match="s-1"):
                await copy.acquire("s-1")
            assert await all_events(copy, "s-1") == await all_events(store, "s-1")
            copy = await there.reopen(copy)
        lease = await copy.acquire("s-1", takeover=True)
        taken = Driver(copy, lease, await copy.load_state("s-1"))
        await taken.append(facts.TurnPut(turn=1, status="failed"))
        assert not (await copy.session_info("s-1")).imported
        await copy.release(lease)
        await copy.acquire("s-1")
        await copy.close()

    async def test_erased_values_stay_erased_in_a_copy(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        tiny = slot("tiny secret", "message")
        await driver.say(tiny)
        await driver.say(BIG)
        await store.erase("s-1", tiny.id, "asked")
        await store.erase("s-1", BIG.id, "asked")
        await export_sessions(store, ["s-1"], tmp_path / "export")
        copy = await place.sibling("copy").open()
        await import_sessions(copy, tmp_path / "export")
        assert await copy.erased("s-1") == await store.erased("s-1")
        with pytest.raises(PayloadNotFound):
            await copy.get_payload("s-1", BIG.id)
        report = await verify(copy, "s-1")
        assert (report.problems, report.erased) == ((), 2)
        assert await all_events(copy, "s-1") == await all_events(store, "s-1")
        await copy.close()

    async def test_a_copy_that_lacks_a_payload_is_refused_whole(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        events = await all_events(store, "s-1")
        copy = await place.sibling("copy").open()
        with pytest.raises(Corruption, match=BIG.id):
            await copy.import_log(prove("s-1", events))
        with pytest.raises(SessionNotFound):
            await copy.load_state("s-1")
        await copy.close()

    async def test_a_copy_without_events_is_refused(self, store: SessionStore) -> None:
        await drive(store)
        for session_id in ("s-1", "s-2"):
            with pytest.raises(InvalidInput, match=session_id):
                await store.import_log(Copy(session_id, []))
        with pytest.raises(SessionNotFound):
            await store.load_state("s-2")

    async def test_an_export_that_was_altered_or_cut_is_refused_whole(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        file = tmp_path / "export"
        await export_sessions(store, ["s-1"], file)
        whole = file.read_bytes()
        events = await all_events(store, "s-1")
        copy = await place.sibling("copy").open()
        stride = max(1, len(whole) // 40)
        harmless = 0
        for at in range(0, len(whole), stride):
            flipped = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
            for damaged in (whole[:at], flipped):
                file.write_bytes(damaged)
                try:
                    await import_sessions(copy, file)
                except HoldfastError:
                    assert (await copy.list_sessions()).sessions == ()
                    continue
                # A bit that the compression does not use: what was read is what was written.
                assert damaged is flipped
                assert await all_events(copy, "s-1") == events
                await copy.close()
                harmless += 1
                copy = await place.sibling(f"copy-{harmless}").open()
        assert harmless < 5
        await copy.close()

    async def test_exporting_what_is_not_there_leaves_no_file(
        self, store: SessionStore, tmp_path: Path
    ) -> None:
        with pytest.raises(SessionNotFound):
            await export_sessions(store, ["s-9"], tmp_path / "export")
        assert not (tmp_path / "export").exists()

    async def test_a_place_that_cannot_hold_an_export_is_named(
        self, store: SessionStore, tmp_path: Path
    ) -> None:
        await drive(store)
        (tmp_path / "folder").mkdir()
        places = [tmp_path / "folder", tmp_path / "missing" / "export", tmp_path / "a\0b"]
        before = _names(tmp_path)
        for place in places:
            with pytest.raises((InvalidInput, NothingWritten), match="name a file"):
                await export_sessions(store, ["s-1"], place)
            with pytest.raises((InvalidInput, Corruption)):
                await import_sessions(store, place)
        assert _names(tmp_path) == before

    async def test_an_export_that_was_forged_is_refused_whole(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say("the truth")
        await driver.turn("and more")
        file = tmp_path / "export"
        await export_sessions(store, ["s-1"], file)
        (header, *lines, _) = zstd.decompress(file.read_bytes()).splitlines(keepends=True)
        copy = await place.sibling("copy").open()
        later = header.replace(b'"at":"20', b'"at":"21')
        forgeries = {
            "an event": [header, *(line.replace(b"truth", b"false") for line in lines)],
            "a lost event": [header, *lines[:2], *lines[3:]],
            "events in another order": [header, *lines[:2], lines[3], lines[2], *lines[4:]],
            "the wrong session": [header, lines[0].replace(b"s-1", b"s-2"), *lines[1:]],
        }
        for what, forged in forgeries.items():
            end = canonical({"end": digest_id(b"".join(forged))}) + b"\n"
            file.write_bytes(zstd.compress(b"".join(forged) + end))
            with pytest.raises(Corruption):
                await import_sessions(copy, file)
            assert (await copy.list_sessions()).sessions == (), what
        # Nothing but the closing digest covers the header.
        end = canonical({"end": digest_id(b"".join([header, *lines]))}) + b"\n"
        file.write_bytes(zstd.compress(b"".join([later, *lines]) + end))
        with pytest.raises(Corruption, match="closing digest"):
            await import_sessions(copy, file)
        assert (await copy.list_sessions()).sessions == ()
        await copy.close()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
