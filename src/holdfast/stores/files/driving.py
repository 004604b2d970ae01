"""Driving: taking, proving and giving back the right to drive a session.

The lease file is replaced under the session's lock and the epoch only grows, so every append of an
earlier holder is refused. That a holder lives is shown by its owner's heartbeat.
"""

from __future__ import annotations

from holdfast.core.errors import NotFound, SessionDeleted
from holdfast.stores import rows
from holdfast.stores.files import derived
from holdfast.stores.files.derived import swap
from holdfast.stores.files.lease_file import Holding, heartbeat_bytes, holding_bytes
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.files.writes import give_back, replace_file
from holdfast.stores.owner import Heartbeat
from holdfast.stores.port import Lease
from holdfast.stores.tenancy import Address


def beat(place: Place, heartbeat: Heartbeat) -> None:
    """Store a sign of life; it need not outlive a power cut, since its process does not."""
    swap(place.disk, place.layout.heartbeat(heartbeat.owner), heartbeat_bytes(heartbeat))


def acquire(
    files: SessionFiles, heartbeat: Heartbeat, held: dict[Address, Lease], takeover: bool
) -> Lease:
    """Take the lease and add it to those that this handle holds."""
    beat(files.place, heartbeat)
    with files.writing():
        holding = files.holding()
        info = files.lease(holding)
        # A lease in our name that this handle never got is the trace of a failed acquire.
        ours = held.get(files.address)
        unclaimed = holding.owner == heartbeat.owner and (
            ours is None or ours.epoch != holding.epoch
        )
        if info is not None and info.live and not unclaimed:
            raise rows.held_error(info)
        tip = files.settled_tip()
        imported = files.log.header().imported
        if imported is not None and imported != holding.taken and not takeover:
            raise rows.imported_error(files.id)
        epoch = max(holding.epoch, tip.epoch) + 1
        new = Holding(heartbeat.owner, epoch, imported)
        what = f"taking the lease of session {files.id!r}"
        replace_file(files, files.lease_path, holding_bytes(new), what)
        lease = Lease(files.id, heartbeat.owner, epoch, tip.state.seq, len(tip.pending))
        held[files.address] = lease
    if info is not None and not unclaimed:
        rows.log_stolen(lease, info)
    derived.refresh(files)
    return lease


def renew(files: SessionFiles, heartbeat: Heartbeat, lease: Lease) -> None:
    """Prove that a lease still holds, and show that its owner lives."""
    files.check_present()
    holding = files.holding()
    if not lease.is_of(holding.owner, holding.epoch):
        raise rows.lost_error(lease, files.lease(holding))
    beat(files.place, heartbeat)


def release(files: SessionFiles, lease: Lease) -> None:
    """Give a lease back; harmless if it was lost or its session deleted."""
    try:
        with files.writing():
            if not give_back(files, lease):
                return
        derived.refresh(files, force=True)
    except (NotFound, SessionDeleted):
        return
