"""The disk seam: each step is what it says."""

import pytest

from holdfast.blobs.disk import Disk


def test_create_refuses_a_name_that_is_taken(tmp_path):
    disk = Disk()
    disk.create(tmp_path / "a", b"one")
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "a", b"two")
    assert disk.read(tmp_path / "a") == b"one"


def test_append_adds_at_the_end_and_truncate_cuts(tmp_path):
    disk, path = Disk(), tmp_path / "log"
    disk.append(path, b"one\n")
    disk.append(path, b"two\n")
    assert disk.read(path, offset=4, length=3) == b"two"
    disk.truncate(path, 4)
    assert disk.read(path) == b"one\n"
    assert disk.stat(path).size == 4


def test_replace_puts_whole_content_under_a_name(tmp_path):
    disk, path = Disk(), tmp_path / "state"
    disk.replace(path, b"old")
    disk.replace(path, b"new")
    assert disk.read(path) == b"new"
    assert disk.names(tmp_path) == ["state"]


def test_missing_things_are_told_without_an_error(tmp_path):
    disk = Disk()
    assert disk.stat(tmp_path / "none") is None
    assert disk.names(tmp_path / "none") == []
    disk.unlink(tmp_path / "none")


def test_make_directories_creates_and_syncs_each_missing_one(tmp_path):
    synced = []

    class Watched(Disk):
        def sync_directory(self, path):
            synced.append(path)
            super().sync_directory(path)

    Watched().make_directories(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]
