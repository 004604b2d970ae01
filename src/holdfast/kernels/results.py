"""What one run of a cell came to, from what its worker said and what the host saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.kernels import frames
from holdfast.kernels import manifest as manifests
from holdfast.kernels.call_record import CallRecord
from holdfast.kernels.port import (
    CellError,
    CellResult,
    CellStatus,
    Checkpoint,
    Encoded,
    Excerpt,
    LimitName,
    Unrestorable,
    ValueView,
)
from holdfast.kernels.run import Run

_NOTHING = Excerpt("", "", 0)


def finished(
    run: Run,
    done: frames.DoneFrame,
    checkpoint: Checkpoint | None,
    unrestorable: tuple[Unrestorable, ...],
) -> CellResult:
    """Return the result of a cell that came to its end."""
    status, limit, error = _status(run, done)
    return CellResult(
        status=status,
        stdout=Excerpt(*done.stdout),
        stderr=Excerpt(*done.stderr),
        value=_view(done.value) if status == "ok" else None,
        final=run.final,
        error=error,
        limit=limit,
        calls=tuple(run.record.calls),
        files=tuple(run.calls.files),
        checkpoint=checkpoint,
        namespace_kept=checkpoint is not None,
        unrestorable=unrestorable,
        repaired=tuple(done.repaired),
        cpu_ns=run.watch.cpu_ns,
    )


def cut(run: Run) -> CellResult:
    """Return the result of a cell whose worker had to be killed."""
    return CellResult(
        status="final" if run.final is not None else "limit",
        stdout=_NOTHING,
        stderr=_NOTHING,
        final=run.final,
        limit=run.watch.tripped,
        detail="the cell did not stop when asked; its worker was ended",
        calls=tuple(run.record.calls),
        files=tuple(run.calls.files),
        namespace_kept=False,
    )


def diverged(run: Run, detail: str) -> CellResult:
    """Return the result of a cell that did not run the same way again."""
    return CellResult(
        status="diverged",
        stdout=_NOTHING,
        stderr=_NOTHING,
        detail=detail,
        calls=run.record.made,
        files=tuple(run.calls.files),
        namespace_kept=False,
    )


def waiting(record: CallRecord) -> CellResult:
    """Return the result of a cell that was given up, because it waits for someone outside."""
    return CellResult(
        status="waiting",
        stdout=_NOTHING,
        stderr=_NOTHING,
        calls=record.made,
        waiting=record.waiting,
        namespace_kept=False,
    )


def losses(
    lost: tuple[Unrestorable, ...],
    checkpoint: Checkpoint | None,
    before: Mapping[str, Any] | None,
) -> tuple[Unrestorable, ...]:
    """Return what a restore could not make and what this checkpoint does not keep, each once."""
    if checkpoint is None:
        return lost
    new = manifests.unrestorable(checkpoint.manifest, before)
    if not new:
        return lost
    named = {item.name for item in lost}
    return (*lost, *(item for item in new if item.name not in named))


def _view(value: frames.ValuePart | None) -> ValueView | None:
    if value is None:
        return None
    part = value.encoded
    encoded = None if part is None else Encoded(part.encoding, part.data)
    return ValueView(value.kind, Excerpt(*value.text), encoded)


def _status(
    run: Run, done: frames.DoneFrame
) -> tuple[CellStatus, LimitName | None, CellError | None]:
    error = None
    if done.error is not None:
        part = done.error
        error = CellError(part.type, part.message, part.traceback, part.line)
    if run.final is not None:
        return "final", None, None
    match done.status:
        case "output" | "memory":
            return "limit", done.status, error
        case "interrupted" if run.watch.tripped is not None:
            return "limit", run.watch.tripped, error
        case "ok":
            return "ok", None, None
        case _:
            return "error", None, error
