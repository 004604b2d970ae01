"""Which file systems a store that relies on local locks may stand on.

Locks and shared memory do not work reliably on network file systems, and the damage shows only
later. A store refuses such a place unless it is forced.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.core.errors import InvalidInput, StoreFailed, StoreUnsafe
from holdfast.core.values import is_text

NETWORK = frozenset(
    {"9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gfs2", "glusterfs"}
    | {"gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "smb2", "smb3", "smbfs"}
    | {"virtiofs", "webdav"}
)
_NETWORK_FUSE = (
    "s3",
    "ssh",
    "gcs",
    "blob",
    "rclone",
    "gluster",
    "ceph",
    "juice",
    "davfs",
    "goofys",
)


def check_local(path: Path, *, force: bool = False) -> None:
    """Raise StoreUnsafe where a path lies on a network file system."""
    kind = file_system(path)
    if not force and is_network(kind):
        raise StoreUnsafe(
            f"{str(path)!r} lies on the network file system {kind!r}, where locks cannot be "
            "trusted; choose a local directory, or force it if only one machine ever opens it",
            file_system=kind,
        )


def check_name(path: Path) -> None:
    """Raise InvalidInput where SQLite cannot name a path."""
    if not is_text(str(path.absolute())):
        raise InvalidInput(
            f"{str(path)!a} is not in UTF-8, as SQLite has its paths; choose another directory, "
            "or a files: store"
        )


def denied_error(path: Path) -> StoreFailed:
    """Return what one meets who may not even look at a store."""
    return StoreFailed(
        f"{str(path)!r} cannot be read by this user; ask its owner for permission or for an export",
        path=str(path),
    )


def is_network(kind: str) -> bool:
    """Tell whether a kind of file system is shared between machines."""
    if kind.startswith("fuse."):
        return any(name in kind for name in _NETWORK_FUSE)
    return kind in NETWORK


def file_system(path: Path) -> str:
    """Return the kind of file system that a path lies on, empty where it cannot be told."""
    path = path.resolve()
    best, kind = "", ""
    for mount, found in _mounts():
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _mounts() -> list[tuple[str, str]]:
    if sys.platform == "darwin":
        listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False).stdout
        rows = [line.rpartition(" (") for line in listed.splitlines()]
        return [(head.partition(" on ")[2], tail.split(",")[0]) for head, _, tail in rows if head]
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    rows_ = [line.split(" ") for line in text.splitlines()]
    return [(_unescaped(row[1]), row[2]) for row in rows_ if len(row) > 2]


def _unescaped(mount: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount = mount.replace(code, character)
    return mount
