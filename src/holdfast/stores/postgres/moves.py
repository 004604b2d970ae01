"""Which sessions moved: one indexed look that misses no commit, however late it becomes visible.

Rows carry the number of the transaction that wrote them. A look remembers the oldest transaction
that was still open: whatever becomes visible later has that number or a higher one. Rows that were
seen before are known by their own number and left out.
"""

from __future__ import annotations

from typing import Any

from holdfast.stores.relational.plan import Plan, Query, first
from holdfast.stores.tenancy import Address


class Moves:
    """What one handle has seen of others' commits."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._seen: dict[tuple[str, str, str], int] = {}

    def look(self) -> Plan[list[tuple[str, int]]]:
        """Return the sessions that moved since the last look, with their positions.

        The first look only finds out where to begin.
        """
        (start,) = yield from first("snapshot_start")
        since = start if self._since is None else self._since
        found: list[Any] = yield Query("moved_sessions", {"since": since})
        before, self._seen = self._seen, {}
        is_first, self._since = self._since is None, start
        moved: dict[str, int] = {}
        for kind, tenant, session_id, seq, number in found:
            place = (kind, tenant, session_id)
            self._seen[place] = max(number, self._seen.get(place, 0))
            if not is_first and before.get(place, 0) < number:
                moved[Address(tenant, session_id).key] = seq
        return list(moved.items())
