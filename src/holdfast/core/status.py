"""The status of a session, and the sets of statuses in which events are legal.

`running` is what the log says while a turn is open. Readers show it only while a live lease stands
behind it; otherwise they show `interrupted`, which is computed and never stored.
"""

from __future__ import annotations

from holdfast.core.errors import IllegalTransition

NEW = "new"
IDLE = "idle"
RUNNING = "running"
SUSPENDED = "suspended"
STOP_REQUESTED = "stop_requested"
STOPPED = "stopped"
FAILED = "failed"
INTERRUPTED = "interrupted"

STATUSES = (IDLE, RUNNING, SUSPENDED, INTERRUPTED, STOP_REQUESTED, STOPPED, FAILED)

# In which statuses a fact may be appended stands on its class; these are the usual answers.
AWAKE = frozenset({IDLE, RUNNING, SUSPENDED, STOP_REQUESTED})
IN_TURN = frozenset({RUNNING, SUSPENDED, STOP_REQUESTED})
ANY = AWAKE | {STOPPED, FAILED}


def check_legal(status: str, event_type: str, legal: frozenset[str]) -> None:
    """Raise IllegalTransition where an event may not be appended in a status."""
    if status not in legal:
        raise IllegalTransition(
            f"{event_type!r} is not legal while the session is {status!r}; legal in: "
            f"{', '.join(sorted(legal))}",
            status=status,
            event=event_type,
        )
