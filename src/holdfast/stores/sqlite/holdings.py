"""The leases that a handle holds, as its memory has it; the rows decide."""

from __future__ import annotations

from holdfast.stores.port import Lease

REMEMBERED = 4096


class Holdings:
    """Epochs by session: of the lease held here, and of the one that was given back last."""

    def __init__(self) -> None:
        # With each the epoch of the lease that it takes the place of.
        self._held: dict[str, tuple[int, int | None]] = {}
        self._left: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Tell whether any lease is held."""
        return bool(self._held)

    def epoch(self, session_id: str) -> int | None:
        """Return the epoch of the lease that is held."""
        held = self._held.get(session_id)
        return None if held is None else held[0]

    def left(self, session_id: str) -> int | None:
        """Return the epoch of the lease that was given back last."""
        return self._left.get(session_id)

    def take(self, lease: Lease) -> None:
        """Note a lease before its commit, so that others in the same group find it held."""
        before = self.epoch(lease.session)
        if before != lease.epoch:  # else its transaction is done over
            self._held[lease.session] = (lease.epoch, before)

    def undo(self, lease: Lease) -> None:
        """Forget a lease whose commit failed; one that it took the place of is still held."""
        epoch, before = self._held.get(lease.session, (None, None))
        if epoch == lease.epoch:
            del self._held[lease.session]
            if before is not None:
                self._held[lease.session] = (before, None)

    def leave(self, lease: Lease) -> None:
        """Note that a lease was given back."""
        if self.epoch(lease.session) == lease.epoch:
            del self._held[lease.session]
            if len(self._left) >= REMEMBERED:
                self._left.clear()
            self._left[lease.session] = lease.epoch
