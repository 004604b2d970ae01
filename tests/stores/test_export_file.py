"""The file of an export: durable under its name or not there; its import says what it stored."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from holdfast.core.errors import (
    Corruption,
    ImportConflict,
    InvalidInput,
    NothingWritten,
    Refused,
)
from holdfast.core.facts import SessionStarted
from holdfast.stores import export_reader
from holdfast.stores.export_reader import ImportLimits, zstd
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


@pytest.mark.parametrize("linked", [False, True])
async def test_an_export_replaces_nothing_but_files(tmp_path, linked):
    store = MemorySessionStore()
    await drive(store)
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    path = link if linked else pipe
    with pytest.raises(InvalidInput, match=f"{path.name}' is not a regular file; name a file"):
        await export_sessions(store, ["s-1"], path)
    await store.close()
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


async def test_an_export_to_a_link_that_leads_to_itself_is_refused(tmp_path):
    store = MemorySessionStore()
    await drive(store)
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(InvalidInput, match="link' is not a regular file; name a file"):
        await export_sessions(store, ["s-1"], link)
    await store.close()
    assert link.is_symlink()


@pytest.mark.parametrize("there", [False, True])
async def test_an_export_to_a_link_becomes_the_file_that_it_leads_to(tmp_path, there):
    store = MemorySessionStore()
    await drive(store)
    folder = tmp_path / "folder"
    folder.mkdir()
    target, link = folder / "target", tmp_path / "link"
    if there:
        target.write_text("an older one")
    link.symlink_to(Path("folder") / "target")
    await export_sessions(store, ["s-1"], link)
    await store.close()
    assert link.is_symlink()
    assert not target.is_symlink()
    assert list(folder.iterdir()) == [target]
    copy = MemorySessionStore()
    assert [outcome.session for outcome in await import_sessions(copy, target)] == ["s-1"]
    await copy.close()


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


@pytest.mark.parametrize("name", ["x\0y", "\ud800", "x" * 300], ids=ascii)
async def test_a_name_that_no_file_has_is_refused(tmp_path, name):
    store = MemorySessionStore()
    await drive(store)
    with pytest.raises((InvalidInput, NothingWritten), match="name a file"):
        await export_sessions(store, ["s-1"], tmp_path / name)
    assert not list(tmp_path.iterdir())
    await store.close()


def written(path, *lines, end=True):
    """Write lines as an export, with the closing digest that belongs to them."""
    text = b"".join(
        line + b"\n" for line in (b'{"at":"x","format":"holdfast.export","v":1}', *lines)
    )
    if end:
        text += b'{"end":"sha256:%s"}\n' % hashlib.sha256(text).hexdigest().encode()
    with zstd.open(path, "wb") as out:
        out.write(text)
    return path


async def refused(path, error, **limits):
    store = MemorySessionStore()
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            await import_sessions(store, path, limits=ImportLimits(**limits))
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert not (await store.list_sessions()).sessions
        await store.close()


async def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused_while_it_is_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(export_reader, "FREE_BYTES", 4 << 20)
    path = tmp_path / "bomb"
    with zstd.open(path, "wb") as out:
        out.write(b'{"at":"x","format":"holdfast.export","v":1}\n')
        for _ in range(200):
            out.write(b" " * (1 << 20))
    assert path.stat().st_size < 100_000
    said, peak = await refused(path, Refused, max_ratio=50)
    assert "larger ratio" in said
    assert peak < 40 << 20


async def test_a_file_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path):
    store, path = MemorySessionStore(), tmp_path / "talk"
    driver = await drive(store)
    await driver.turn(os.urandom(200_000).hex())
    await export_sessions(store, ["s-1"], path)
    await store.close()
    said, _ = await refused(path, Refused, max_bytes=100_000)
    assert "larger size" in said
    copy = MemorySessionStore()
    limits = ImportLimits(max_bytes=10_000_000)
    assert len(await import_sessions(copy, path, limits=limits)) == 1
    await copy.close()


@pytest.mark.parametrize("cut", ["no end", "another end", "cut within"])
async def test_a_file_without_its_closing_digest_is_refused_before_its_content_is_read(
    tmp_path, cut
):
    lines = [b'{"session":"s-1"}', b"[" + b"[],".join([b""] * 1_000_000) + b"[]]"]
    path = written(tmp_path / "export", *lines, end=cut == "another end")
    if cut == "another end":
        written(path, *lines, b'{"end":"sha256:00"}', end=False)
    elif cut == "cut within":
        path.write_bytes(path.read_bytes()[:-9])
    said, peak = await refused(path, Corruption)
    assert "cut short or altered" in said
    # A million lists would take sixty megabytes, were the line read as JSON.
    assert peak < 30 << 20


async def test_the_first_and_the_last_line_are_short(tmp_path):
    path = tmp_path / "export"
    with zstd.open(path, "wb") as out:
        out.write(b"[" + b"[]," * 1_000_000 + b"[]]\n")
    said, _ = await refused(path, InvalidInput)
    assert "is not a Holdfast export" in said
    path = written(path, b"[" + b"[]," * 1_000_000 + b"[]]", end=False)
    said, peak = await refused(path, Corruption)
    assert "closing digest" in said
    assert peak < 30 << 20


async def test_an_import_from_a_pipe_is_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said, _ = await refused(pipe, InvalidInput)
    assert "is not a regular file" in said


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_ratio": -1}])
def test_limits_that_allow_nothing_are_refused(limits):
    with pytest.raises(InvalidInput, match="1 or more"):
        ImportLimits(**limits)
