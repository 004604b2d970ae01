"""The status of a session, and the one table of which event is legal in which status.

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

_AWAKE = frozenset({IDLE, RUNNING, SUSPENDED, STOP_REQUESTED})
_IN_TURN = frozenset({RUNNING, SUSPENDED, STOP_REQUESTED})
_ANY = _AWAKE | {STOPPED, FAILED}

LEGAL: dict[str, frozenset[str]] = {
    "session.started": frozenset({NEW}),
    "session.revived": _IN_TURN,
    "session.stop_requested": _AWAKE,
    "session.stopped": _AWAKE,
    "session.failed": _AWAKE,
    "session.compacted": _AWAKE,
    "compaction.failed": _AWAKE,
    "input.admitted": _AWAKE,
    "turn.started": frozenset({IDLE}),
    "turn.put": _IN_TURN,
    "step.started": frozenset({RUNNING}),
    "step.put": _IN_TURN,
    "message.appended": _AWAKE,
    "eval.added": _IN_TURN,
    "vars.checkpointed": _AWAKE,
    "leaf.called": _IN_TURN,
    "call.requested": _AWAKE,
    "call.approved": _AWAKE,
    "call.denied": _AWAKE,
    "call.suspended": _AWAKE,
    "call.extended": _AWAKE,
    "call.resolved": _AWAKE,
    "budget.reserved": _AWAKE,
    "budget.settled": _AWAKE,
    "budget.warned": _AWAKE,
    "budget.exceeded": _AWAKE,
    "head.published": _AWAKE,
    "lineage.added": _ANY,
    "run.started": frozenset({IDLE}),
    "run.paused": _AWAKE,
    "run.resumed": _AWAKE,
    "run.finished": _AWAKE,
    "run.failed": _AWAKE,
    "run.cancelled": _AWAKE,
    "node.started": _AWAKE,
    "node.finished": _AWAKE,
    "node.retried": _AWAKE,
    "edge.selected": _AWAKE,
    "branch.started": _AWAKE,
    "branch.finished": _AWAKE,
    "join.ready": _AWAKE,
    "artifact.written": _AWAKE,
}


def check_legal(status: str, event_type: str) -> None:
    """Raise IllegalTransition where an event may not be appended in a status."""
    if status not in LEGAL.get(event_type, _ANY):
        raise IllegalTransition(
            f"{event_type!r} is not legal while the session is {status!r}; legal in: "
            f"{', '.join(sorted(LEGAL[event_type]))}",
            status=status,
            event=event_type,
        )
