"""Blobs as files: `<tenant>/<first two digits>/<digest>.zst`, compressed, one per content.

A blob is written under a temporary name, synced, renamed and its directory synced, so a name that
is there stands for whole, durable bytes. Content ids name the bytes before compression: how well a
library compresses has no part in any identity.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.blobs.disk import TEMPORARY, Disk
from holdfast.blobs.port import BlobEntry
from holdfast.core.errors import Corruption
from holdfast.core.ids import check_content_id, check_id, is_content_id

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 1
_SUFFIX = ".zst"
_PREFIX = "sha256:"
_FRAME_HEADER = 18
"""The most bytes that the header of a zstd frame has."""


class DirectoryBlobStore:
    """Blobs in a sharded directory, all I/O through one disk."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk or Disk()

    def put(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Make bytes durable under their content id."""
        path = self._path(tenant, blob_id)
        if self._holds(path, data):
            try:
                # Its writer may not have come as far as syncing the name.
                self._disk.touch(path)
                self._disk.sync_directory(path.parent)
                return
            except FileNotFoundError:
                pass  # gc took it since the look: it is written again
        self._disk.make_directories(path.parent)
        self._disk.replace(path, zstd.compress(data, level=_LEVEL))

    def get(self, tenant: str, blob_id: str) -> bytes | None:
        """Return the bytes, None where there are none."""
        try:
            packed = self._disk.read(self._path(tenant, blob_id))
        except FileNotFoundError:
            return None
        try:
            return zstd.decompress(packed)
        except zstd.ZstdError as error:
            raise _damaged(blob_id, error) from error

    def size(self, tenant: str, blob_id: str) -> int | None:
        """Return how many bytes a blob holds as its file's first ones say, None without one."""
        try:
            start = self._disk.read(self._path(tenant, blob_id), 0, _FRAME_HEADER)
        except FileNotFoundError:
            return None
        try:
            return zstd.get_frame_info(start).decompressed_size
        except zstd.ZstdError as error:
            raise _damaged(blob_id, error) from error

    def has(self, tenant: str, blob_id: str) -> bool:
        """Tell whether a blob is there."""
        return self._disk.stat(self._path(tenant, blob_id)) is not None

    def remove(self, tenant: str, blob_id: str) -> None:
        """Remove a blob."""
        self._disk.unlink(self._path(tenant, blob_id))

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob."""
        for tenant, path in self._files():
            name = _PREFIX + path.name.removesuffix(_SUFFIX)
            if path.name.endswith(_SUFFIX) and is_content_id(name):  # else it is nobody's blob
                found = self._disk.stat(path)
                if found is not None:
                    yield BlobEntry(tenant, name, found.size, found.modified)

    def sweep(self, older_than: float) -> None:
        """Remove the temporary files of puts that never finished."""
        for _, path in self._files():
            if path.name.endswith(TEMPORARY):
                found = self._disk.stat(path)
                if found is not None and found.modified < older_than:
                    self._disk.unlink(path)

    def _files(self) -> Iterator[tuple[str, Path]]:
        for tenant in self._disk.names(self._root):
            for shard in self._disk.names(self._root / tenant):
                directory = self._root / tenant / shard
                for name in self._disk.names(directory):
                    yield tenant, directory / name

    def _holds(self, path: Path, data: bytes) -> bool:
        try:
            return zstd.decompress(self._disk.read(path)) == data
        except (FileNotFoundError, zstd.ZstdError):
            return False

    def _path(self, tenant: str, blob_id: str) -> Path:
        digest = check_content_id(blob_id).removeprefix(_PREFIX)
        return self._root / check_id(tenant, "tenant") / digest[:2] / (digest + _SUFFIX)


def _damaged(blob_id: str, error: Exception) -> Corruption:
    return Corruption(
        f"the stored bytes of payload {blob_id!r} do not decompress: {error}; restore it from an "
        "export",
        payload=blob_id,
    )
