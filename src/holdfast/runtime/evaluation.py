"""Evaluation: running the code cells of one stored reply, each settled in one batch.

A cell starts from the last checkpoint and ends in `eval.added` with its new checkpoint, and the
reply's last cell brings the observation with it. A cell that a crash interrupted is run again with
the calls that the log has answered from it; cells that are stored are never run again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.errors import KernelError
from holdfast.core.facts import (
    EvalAdded,
    Fact,
    LeafCalled,
    MessageAppended,
    VarsCheckpointed,
)
from holdfast.core.messages import observation as observation_message
from holdfast.core.payloads import Slot, manifest, slot, slot_of_bytes, walk
from holdfast.core.state import State
from holdfast.kernels.cells import extract
from holdfast.kernels.observation import nudge, observe
from holdfast.kernels.port import (
    CellResult,
    Checkpoint,
    Excerpt,
    FileRead,
    HostAnswer,
    HostCall,
    KernelSession,
    RecordedCall,
)
from holdfast.runtime.journal import Journal
from holdfast.runtime.leaves import NAMES, Leaves, nanoseconds
from holdfast.runtime.surface_calls import SurfaceCalls

logger = logging.getLogger("holdfast.runtime")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What became of a reply's cells; `final` is the slot of FINAL's value, if it was called."""

    observation: str
    final: Slot | None
    pending: tuple[Fact, ...]
    payloads: tuple[Slot, ...]
    """Facts of the last cell that are still to be appended, with what the caller adds."""
    vars: Slot | None


def checkpoint_slots(checkpoint: Checkpoint) -> tuple[Slot, list[Slot]]:
    """Return the manifest slot of a checkpoint, and its new chunks with their bytes."""
    chunks = [
        replace(item, data=checkpoint.chunks[item.id])
        for item in walk(checkpoint.manifest)
        if item.id in checkpoint.chunks
    ]
    return manifest(checkpoint.manifest, "vars"), chunks
