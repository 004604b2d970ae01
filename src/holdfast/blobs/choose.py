"""Which blobs: `s3://bucket/prefix`, `gs://…`, `az://…`, or `file:///folder` on a shared disk.

Parameters after `?` are settings of that kind of object store: `endpoint` and `region` for what
speaks S3's protocol elsewhere than at Amazon. Credentials are not among them: the URL is shown,
and kept in the store for every process that opens it.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.port import BlobStore
from holdfast.core.errors import InvalidInput, needing

OBJECT_STORES = ("s3", "gs", "az")
_SECRET_WORDS = ("key", "secret", "token", "password", "credential", "sas")


def check_url(url: str) -> str:
    """Return a URL that names a place for blobs; InvalidInput where it does not."""
    split = urlsplit(url)
    if split.scheme == "file":
        if split.netloc or not split.path.startswith("/"):
            raise InvalidInput(f"{url!r} is not a valid place for blobs; write file:///folder")
        return url
    if split.scheme not in OBJECT_STORES or not split.netloc:
        raise InvalidInput(
            f"{url!r} is not a valid place for blobs; write s3://BUCKET/PREFIX, gs://…, az://… or "
            "file:///FOLDER"
        )
    given = [name for name, _ in parse_qsl(split.query, keep_blank_values=True)]
    if "@" in split.netloc or any(word in name for name in given for word in _SECRET_WORDS):
        raise InvalidInput(
            f"credentials do not belong in the URL of {split.scheme}://{split.hostname}; put them "
            "into the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3"
        )
    return url


def open_blobs(url: str) -> BlobStore:
    """Return the blob store that a URL names; nothing is looked at yet."""
    split = urlsplit(check_url(url))
    if split.scheme == "file":
        return DirectoryBlobStore(Path(split.path))
    with needing("objects", f"{split.scheme}:// for large payloads"):
        from holdfast.blobs.objects import open_objects
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    return open_objects(urlunsplit(split._replace(query="")), url, options)
