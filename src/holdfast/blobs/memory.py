"""Blobs in memory: the blob contract in one process, for stores that need no disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from holdfast.blobs.port import BlobEntry


class MemoryBlobStore:
    """Blobs in a dict."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._blobs: dict[tuple[str, str], tuple[bytes, float]] = {}

    def put(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Keep bytes under their content id."""
        self._blobs[tenant, blob_id] = (bytes(data), self._clock())

    def get(self, tenant: str, blob_id: str) -> bytes | None:
        """Return the bytes, None where there are none."""
        kept = self._blobs.get((tenant, blob_id))
        return None if kept is None else kept[0]

    def has(self, tenant: str, blob_id: str) -> bool:
        """Tell whether a blob is there."""
        return (tenant, blob_id) in self._blobs

    def remove(self, tenant: str, blob_id: str) -> None:
        """Remove a blob."""
        self._blobs.pop((tenant, blob_id), None)

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob."""
        for (tenant, blob_id), (data, modified) in list(self._blobs.items()):
            yield BlobEntry(tenant, blob_id, len(data), modified)

    def sweep(self, older_than: float) -> None:
        """Nothing is ever left unfinished here."""
