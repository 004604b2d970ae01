"""The file of an export: durable under its name, or not there under that name at all."""

import os
from pathlib import Path

from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions
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
