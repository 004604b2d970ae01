"""The layout: where each thing of a files store lies, and which format the store has.

    holdfast.json                      format of the store
    payloads/<tenant>/<xx>/<id>.zst    values by content
    owners/<owner>.json                heartbeats of the processes that drive sessions
    deleted/<id>.json                  tombstones: these ids are never used again
    runs/<id>/events.jsonl             the log, the only truth about a session
    runs/<id>/inbox.jsonl              what outsiders asked of it
    runs/<id>/audit.jsonl              its model calls, where an audit is kept
    runs/<id>/payloads.txt             payloads put for later appends
    runs/<id>/lease.json               who drives it
    runs/<id>/run.json                 derived: the session as it stands
    runs/<id>/artifacts/<node>/<version>.json, interactions/<call>.json   derived copies
    tenants/<tenant>/runs/<id>, tenants/<tenant>/deleted/<id>.json   the same for other tenants

Every path is made here, from ids that were checked, so no other module can leave the store.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, InvalidId, NothingWritten, StoreNewer
from holdfast.core.ids import check_id
from holdfast.core.records import canonical, parse
from holdfast.stores.tenancy import DEFAULT_TENANT, Address

STORE_FORMAT = 1


class Layout:
    """The paths of one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tenants = root / "tenants"
        self.owners = root / "owners"
        self.payloads = root / "payloads"
        self.format = root / "holdfast.json"
        self.sweep_lock = root / "sweep.lock"
        self.sweep_gate = root / "sweep.gate"

    def of_tenant(self, tenant: str) -> Path:
        """Return where the sessions of a tenant are."""
        default = tenant == DEFAULT_TENANT
        return self.root if default else self.tenants / check_id(tenant, "tenant")

    def runs(self, tenant: str) -> Path:
        """Return the directory of a tenant's sessions."""
        return self.of_tenant(tenant) / "runs"

    def run(self, address: Address) -> Path:
        """Return the directory of a session."""
        return self.runs(address.tenant) / check_id(address.id)

    def log(self, address: Address) -> Path:
        """Return the log of a session."""
        return self.run(address) / "events.jsonl"

    def tombstone(self, address: Address) -> Path:
        """Return what says that a session was deleted."""
        return self.of_tenant(address.tenant) / "deleted" / f"{check_id(address.id)}.json"

    def make_tenant(self, disk: Disk, tenant: str) -> None:
        """Make the directories of a tenant, so that they last."""
        if tenant == DEFAULT_TENANT:
            return
        folder = self.of_tenant(tenant)
        for name in ("runs", "deleted"):
            disk.make_directories(folder / name)
        # Whoever made them may have been stopped before this.
        for directory in (folder, self.tenants, self.root):
            disk.sync_directory(directory)

    def addresses(self, disk: Disk, tenant: str | None) -> list[Address]:
        """Return the sessions for which there is a directory, of a tenant or of all."""
        tenants = [tenant] if tenant is not None else [DEFAULT_TENANT, *disk.names(self.tenants)]
        found = []
        for name in filter(_is_id, tenants):
            found += [Address(name, run) for run in disk.names(self.runs(name)) if _is_id(run)]
        return found

    def heartbeat(self, owner: str) -> Path:
        """Return the heartbeat of an owner."""
        return self.owners / f"{check_id(owner, 'owner id')}.json"

    def artifact(self, address: Address, node: str, version: int) -> Path:
        """Return the derived copy of an artifact."""
        return self.run(address) / "artifacts" / file_name(node) / f"{int(version)}.json"

    def interaction(self, address: Address, call_id: str) -> Path:
        """Return the derived copy of an exchange with a person."""
        return self.run(address) / "interactions" / f"{file_name(call_id)}.json"

    def prepare(self, disk: Disk) -> None:
        """Make an empty place a store, or check that the store there can be used."""
        try:
            self._prepare(disk)
        except OSError as error:
            raise NothingWritten(
                f"the store at {str(self.root)!r} cannot be opened: {error}; check its "
                "permissions and the disk"
            ) from error

    def _prepare(self, disk: Disk) -> None:
        if disk.stat(self.format) is None:
            for name in ("runs", "owners", "deleted", "payloads"):
                disk.make_directories(self.root / name)
            disk.replace(self.format, canonical({"format": "files", "v": STORE_FORMAT}) + b"\n")
            return
        record = parse(disk.read(self.format))
        kind, version = None, None
        if isinstance(record, dict):
            kind, version = record.get("format"), record.get("v")
        if kind != "files" or type(version) is not int or version < 1:
            raise Corruption(
                f"{str(self.format)!r} is damaged; it should read "
                f'{{"format":"files","v":{STORE_FORMAT}}}',
                path=str(self.format),
            )
        if version > STORE_FORMAT:
            raise StoreNewer(
                f"the store at {str(self.root)!r} has format {version}; this release reads up to "
                f"{STORE_FORMAT}: upgrade Holdfast"
            )


def _is_id(name: str) -> bool:
    try:
        check_id(name)
    except InvalidId:
        return False
    return True


def file_name(text: str) -> str:
    """Return a file name that no file system takes for anything but this free-form text."""
    try:
        if len(text) <= 64:
            return check_id(text)
    except InvalidId:
        pass
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower(), flags=re.ASCII)[:40].strip("-")
    return f"{readable or 'x'}~{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
