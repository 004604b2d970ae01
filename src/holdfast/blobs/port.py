"""The blob store port: where payloads live that are too large for a row.

Blobs are named by tenant and content id, so a blob is written once, never changed, and never seen
across tenants. A session store decides who may read what; a blob store only keeps bytes. All
methods block; session stores call them from threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One stored blob: `size` is what it occupies, `modified` when it was last put."""

    tenant: str
    id: str
    size: int
    modified: float


class BlobStore(Protocol):
    """The verbs of a blob store."""

    def put(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Make bytes durable under their content id, which the caller has checked.

        Putting again renews the age and repairs a damaged copy.
        """
        ...

    def get(self, tenant: str, blob_id: str) -> bytes | None:
        """Return the bytes, None where there are none; Corruption where they do not decode."""
        ...

    def has(self, tenant: str, blob_id: str) -> bool:
        """Tell whether a blob is there."""
        ...

    def remove(self, tenant: str, blob_id: str) -> None:
        """Remove a blob; one that is not there is fine."""
        ...

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob, for gc."""
        ...

    def sweep(self, older_than: float) -> None:
        """Remove what unfinished puts left behind before a point in time."""
        ...
