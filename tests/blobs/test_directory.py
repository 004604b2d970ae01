"""Blobs in a directory: whole or not there, one file per content, apart per tenant."""

import os

import pytest

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.disk import Disk
from holdfast.blobs.memory import MemoryBlobStore
from holdfast.core.errors import Corruption, InvalidId
from holdfast.core.records import digest_id

DATA = b"the quick brown fox " * 10_000
ID = digest_id(DATA)


@pytest.fixture(params=["directory", "memory"])
def blobs(request, tmp_path):
    return MemoryBlobStore() if request.param == "memory" else DirectoryBlobStore(tmp_path)


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


class RecordingDisk(Disk):
    """The real disk, with the order of its steps on record and one step that fails."""

    def __init__(self, fail=None):
        self.steps = []
        self.fail = fail

    def step(self, name):
        self.steps.append(name)
        if name == self.fail:
            self.fail = None
            raise OSError(28, "No space left on device")

    def create(self, path, data):
        super().create(path, data[: len(data) // 2] if self.fail == "create" else data)
        self.step("create")

    def sync(self, path):
        self.step("sync")
        super().sync(path)

    def rename(self, source, target):
        self.step("rename")
        super().rename(source, target)

    def sync_directory(self, path):
        self.step("sync_directory")
        super().sync_directory(path)


def test_what_is_put_comes_back(blobs):
    blobs.put("default", ID, DATA)
    assert blobs.get("default", ID) == DATA
    assert blobs.has("default", ID)
    assert [(e.tenant, e.id) for e in blobs.entries()] == [("default", ID)]


def test_what_was_never_put_is_none(blobs):
    assert blobs.get("default", ID) is None
    assert not blobs.has("default", ID)
    assert list(blobs.entries()) == []


def test_tenants_do_not_see_each_other(blobs):
    blobs.put("one", ID, DATA)
    assert blobs.get("two", ID) is None
    blobs.remove("two", ID)
    assert blobs.get("one", ID) == DATA


def test_removing_twice_is_fine(blobs):
    blobs.put("default", ID, DATA)
    blobs.remove("default", ID)
    blobs.remove("default", ID)
    assert not blobs.has("default", ID)


def test_equal_content_is_one_compressed_file(tmp_path):
    blobs = DirectoryBlobStore(tmp_path)
    for _ in range(3):
        blobs.put("default", ID, DATA)
    (only,) = files(tmp_path)
    assert only.relative_to(tmp_path).parts == ("default", ID[7:9], ID[7:] + ".zst")
    assert only.stat().st_size < len(DATA) / 10


def test_a_put_syncs_the_file_before_its_name_and_the_name_last(tmp_path):
    disk = RecordingDisk()
    blobs = DirectoryBlobStore(tmp_path, disk)
    blobs.put("default", ID, DATA)
    assert disk.steps[-4:] == ["create", "sync", "rename", "sync_directory"]


def test_a_put_of_what_is_there_still_syncs_the_name(tmp_path):
    DirectoryBlobStore(tmp_path).put("default", ID, DATA)
    disk = RecordingDisk()
    DirectoryBlobStore(tmp_path, disk).put("default", ID, DATA)
    assert disk.steps == ["sync_directory"]


def test_a_put_renews_the_age(tmp_path):
    blobs = DirectoryBlobStore(tmp_path)
    blobs.put("default", ID, DATA)
    (only,) = files(tmp_path)
    os.utime(only, (1, 1))
    blobs.put("default", ID, DATA)
    (entry,) = blobs.entries()
    assert entry.modified > 1


@pytest.mark.parametrize("step", ["create", "sync", "rename"])
def test_a_put_that_fails_leaves_nothing_and_can_be_repeated(tmp_path, step):
    blobs = DirectoryBlobStore(tmp_path, RecordingDisk(fail=step))
    with pytest.raises(OSError, match="No space left"):
        blobs.put("default", ID, DATA)
    assert files(tmp_path) == []
    blobs.put("default", ID, DATA)
    assert blobs.get("default", ID) == DATA


@pytest.mark.parametrize("damage", [b"", b"not zstd at all", None])
def test_a_damaged_file_is_corruption_and_a_put_repairs_it(tmp_path, damage):
    blobs = DirectoryBlobStore(tmp_path)
    blobs.put("default", ID, DATA)
    (only,) = files(tmp_path)
    only.write_bytes(only.read_bytes()[:-5] if damage is None else damage)
    with pytest.raises(Corruption, match=ID):
        blobs.get("default", ID)
    blobs.put("default", ID, DATA)
    assert blobs.get("default", ID) == DATA


def test_sweep_takes_old_unfinished_files_and_nothing_else(tmp_path):
    blobs = DirectoryBlobStore(tmp_path)
    blobs.put("default", ID, DATA)
    (only,) = files(tmp_path)
    old, young = only.with_name("a.1-2.tmp"), only.with_name("b.1-2.tmp")
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (1, 1))
    blobs.sweep(older_than=100)
    assert files(tmp_path) == sorted([only, young])
    assert [entry.id for entry in blobs.entries()] == [ID]


@pytest.mark.parametrize("tenant", ["..", "a/b", "", "A", "a\x00b"])
def test_a_hostile_tenant_names_no_path(tmp_path, tenant):
    with pytest.raises(InvalidId):
        DirectoryBlobStore(tmp_path).get(tenant, ID)


@pytest.mark.parametrize("blob_id", ["../../etc/passwd", "sha256:xyz", ID.upper(), ""])
def test_a_hostile_blob_id_names_no_path(tmp_path, blob_id):
    with pytest.raises(InvalidId):
        DirectoryBlobStore(tmp_path).get("default", blob_id)


def test_what_others_left_in_the_folders_is_no_blob(tmp_path):
    blobs = DirectoryBlobStore(tmp_path)
    blobs.put("t-1", ID, DATA)
    shard = next(tmp_path.rglob("*.zst")).parent
    for folder in (tmp_path, tmp_path / "t-1", shard):
        (folder / ".DS_Store").write_bytes(b"x")
    (shard / "copy of it.zst").write_bytes(b"x")
    assert [entry.id for entry in blobs.entries()] == [ID]
    blobs.sweep(0)
