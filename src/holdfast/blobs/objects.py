"""Blobs in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

An object is `<tenant>/<first two digits>/<digest>.zst` below the prefix of the store. It is created
only where it is absent, so of any number of machines that put the same bytes one writes them. One
that is there already is compared; it is written again where it is damaged, or so old that gc might
take it before the append that needs it. Credentials come from the environment of the process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from holdfast.blobs.port import BlobEntry
from holdfast.core.errors import Corruption, InvalidInput, NothingWritten, StoreDenied, StoreFailed
from holdfast.core.ids import check_content_id, check_id, is_content_id

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RENEW_SECONDS = 1800.0
"""From which age on an object that is put again is written again, which makes it young."""
TRY_SECONDS = 20.0

MISSING = (NotFoundError, FileNotFoundError)

_LEVEL = 1
_SUFFIX = ".zst"
_PREFIX = "sha256:"


class ObjectBlobStore:
    """Blobs in a bucket; `open_objects` makes one from a URL."""

    def __init__(self, objects: Any, where: str) -> None:
        self._objects = objects
        self._where = where

    def put(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Make bytes durable under their content id."""
        path = _path(tenant, blob_id)
        packed = zstd.compress(data, level=_LEVEL)
        with self._failures(NothingWritten, "store a payload"):
            try:
                obstore.put(self._objects, path, packed, mode="create")
            except AlreadyExistsError:
                if not self._is_fit(path, data):
                    obstore.put(self._objects, path, packed, mode="overwrite")

    def get(self, tenant: str, blob_id: str) -> bytes | None:
        """Return the bytes, None where there are none."""
        with self._failures(StoreFailed, "read a payload"):
            try:
                packed = bytes(obstore.get(self._objects, _path(tenant, blob_id)).bytes())
            except MISSING:
                return None
        try:
            return zstd.decompress(packed)
        except zstd.ZstdError as error:
            raise Corruption(
                f"the stored bytes of payload {blob_id!r} do not decompress: {error}; restore it "
                "from an export",
                payload=blob_id,
            ) from error

    def has(self, tenant: str, blob_id: str) -> bool:
        """Tell whether a blob is there."""
        with self._failures(StoreFailed, "look for a payload"):
            try:
                obstore.head(self._objects, _path(tenant, blob_id))
            except MISSING:
                return False
        return True

    def remove(self, tenant: str, blob_id: str) -> None:
        """Remove a blob."""
        with self._failures(StoreFailed, "remove a payload"):
            try:
                obstore.delete(self._objects, _path(tenant, blob_id))
            except MISSING:
                return

    def entries(self) -> Iterator[BlobEntry]:
        """Yield every blob."""
        with self._failures(StoreFailed, "list the payloads"):
            for page in obstore.list(self._objects):
                for found in page:
                    tenant, _, rest = found["path"].partition("/")
                    name = _PREFIX + rest.rpartition("/")[2].removesuffix(_SUFFIX)
                    if rest.endswith(_SUFFIX) and is_content_id(name):
                        modified = found["last_modified"].timestamp()
                        yield BlobEntry(tenant, name, found["size"], modified)

    def sweep(self, older_than: float) -> None:
        """Nothing is left unfinished: an object is there whole or not at all."""

    def _is_fit(self, path: str, data: bytes) -> bool:
        """Tell whether the object is intact and young."""
        try:
            found = obstore.get(self._objects, path)
            age = time.time() - found.meta["last_modified"].timestamp()
            return age < RENEW_SECONDS and zstd.decompress(bytes(found.bytes())) == data
        except (*MISSING, zstd.ZstdError):
            return False  # gc took it since, or it is damaged

    @contextmanager
    def _failures(self, kind: type[StoreFailed], doing: str) -> Iterator[None]:
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise StoreDenied(
                f"could not {doing} in {self._where!r}: {_text(error)}; give the process "
                "credentials that may list, read, write and delete there"
            ) from error
        except (BaseError, OSError) as error:
            raise kind(
                f"could not {doing} in {self._where!r}: {_text(error)}; try again once the object "
                "store is well"
            ) from error


def open_objects(url: str, where: str, options: dict[str, str]) -> ObjectBlobStore:
    """Return the blobs of a bucket; `options` are what obstore calls the settings of that kind."""
    plain = options.get("endpoint", "").startswith("http://")
    client: Any = {"timeout": timedelta(seconds=TRY_SECONDS), "allow_http": plain}
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=TRY_SECONDS)}
    config: Any = options or None  # which settings there are depends on the kind
    try:
        objects = from_url(url, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidInput(f"{where!r} is not a valid object store: {_text(error)}") from error
    return ObjectBlobStore(objects, where)


def _path(tenant: str, blob_id: str) -> str:
    digest = check_content_id(blob_id).removeprefix(_PREFIX)
    return f"{check_id(tenant, 'tenant')}/{digest[:2]}/{digest}{_SUFFIX}"


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].split())[:300] if lines else type(error).__name__
