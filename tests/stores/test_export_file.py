"""The file of an export: durable under its name or not there; its import says what it stored."""

import os
from pathlib import Path

import pytest

from holdfast.core.errors import ImportConflict
from holdfast.core.facts import SessionStarted
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.testing.driver import drive


async def test_an_export_is_synced_whole_before_it_gets_its_name(tmp_path, monkeypatch):
    steps = []
    sync, rename = os.fsync, Path.replace

    def watched_sync(descriptor):
        found = os.fstat(descriptor)
        steps.append(("sync", found.st_ino, found.st_size))
        sync(descriptor)

    def watched_rename(source, target):
        steps.append(("rename", Path(target)))
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    store = MemorySessionStore()
    driver = await drive(store)
    await driver.turn("hello " * 1000)
    path = tmp_path / "talk.export"
    await export_sessions(store, ["s-1"], path)
    await store.close()
    written, folder = path.stat(), tmp_path.stat()
    content, named, entry = steps
    assert content == ("sync", written.st_ino, written.st_size)
    assert named == ("rename", path)
    assert entry[:2] == ("sync", folder.st_ino)


async def test_an_import_that_is_overtaken_says_what_it_has_stored(tmp_path):
    """Between the look at all sessions and the turn of each, another may move one."""
    source, path = MemorySessionStore(), tmp_path / "talks.export"
    for name in ("s-1", "s-2", "s-3"):
        await drive(source, name)
    await export_sessions(source, ["s-1", "s-2", "s-3"], path)
    await source.close()

    class Overtaken(MemorySessionStore):
        async def import_log(self, copy):
            if copy.session == "s-3":
                await self.create_session("s-3", SessionStarted(agent="another"))
            return await super().import_log(copy)

    store = Overtaken()
    with pytest.raises(ImportConflict, match="stored before it: s-1, s-2") as caught:
        await import_sessions(store, path)
    assert caught.value.details["stored"] == ["s-1", "s-2"]
    assert [(await store.load_state(name)).seq for name in ("s-1", "s-2")] == [1, 1]
    await store.close()
