"""The lease file: who drives a session, replaced whole under the session's lock.

It holds owner and epoch; whether the owner lives is a matter of its heartbeat, one file per owner
process. A damaged or missing lease file means that nobody holds the session: a driver that did is
fenced off, and the next epoch is above every one that the log has seen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from holdfast.blobs.disk import Disk
from holdfast.core.errors import InvalidId
from holdfast.core.ids import check_id
from holdfast.stores.owner import Heartbeat
from holdfast.stores.port import LeaseInfo

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading damaged JSON raises."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The lease file's content."""

    owner: str | None = None
    epoch: int = 0
    taken: str | None = None
    """The import whose copy someone took over, by its time."""


def read_holding(disk: Disk, path: Path) -> Holding:
    """Return who holds a session by its lease file."""
    try:
        holding = msgspec.json.decode(disk.read(path), type=Holding)
        if holding.owner is not None:
            check_id(holding.owner, "owner id")  # it leads to a file
    except (FileNotFoundError, InvalidId, *UNREADABLE):
        return Holding()
    return holding


def holding_bytes(holding: Holding) -> bytes:
    """Return the stored form of a lease."""
    return msgspec.json.encode(asdict(holding)) + b"\n"


def read_heartbeat(disk: Disk, path: Path) -> Heartbeat | None:
    """Return an owner's last sign of life.

    It is not synced, so a power cut may garble it, and its owner does not outlive that.
    """
    try:
        return msgspec.json.decode(disk.read(path), type=Heartbeat)
    except (FileNotFoundError, *UNREADABLE):
        return None


def heartbeat_bytes(beat: Heartbeat) -> bytes:
    """Return the stored form of a heartbeat."""
    return msgspec.json.encode(asdict(beat)) + b"\n"


def lease_info(session: str, holding: Holding, beat: Heartbeat | None) -> LeaseInfo | None:
    """Return a lease as others see it."""
    if holding.owner is None:
        return None
    return LeaseInfo(
        session=session,
        owner=holding.owner,
        epoch=holding.epoch,
        live=beat is not None and beat.is_alive(),
        holder="a process that left no heartbeat" if beat is None else beat.holder,
        expires_in=None if beat is None else beat.expires_in(),
    )
