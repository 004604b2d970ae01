"""Evaluation: running the code cells of one stored reply, each settled in one batch.

A cell starts from the last checkpoint and ends in `eval.added` with its new checkpoint, and the
reply's last cell brings the observation with it. A cell that a crash interrupted is run again with
the calls that the log has answered from it; cells that are stored are never run again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from holdfast.core.errors import KernelError
from holdfast.core.facts import EvalAdded, EvalStatus, Fact, LeafCalled, VarsCheckpointed
from holdfast.core.payloads import Slot, manifest, refs_in, slot, slot_of_bytes
from holdfast.kernels.cells import extract
from holdfast.kernels.observation import nudge, observe, observe_cell, observe_death
from holdfast.kernels.port import (
    CellResult,
    Checkpoint,
    HostAnswer,
    HostCall,
    KernelSession,
    RecordedCall,
)
from holdfast.runtime.brokers import MODULE
from holdfast.runtime.journal import Journal
from holdfast.runtime.leaves import NAMES, Leaves, nanoseconds
from holdfast.runtime.settle import calls_settled
from holdfast.runtime.surface_calls import SurfaceCalls

logger = logging.getLogger("holdfast.runtime")

WORK = f"{MODULE}."


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What became of a reply's cells, with the facts of the last one still to be appended.

    Whoever drives adds what belongs into the same batch: the observation and, after FINAL, the
    end of the turn with its head.
    """

    observation: str
    facts: tuple[Fact, ...] = ()
    payloads: tuple[Slot, ...] = ()
    final: Slot | None = None
    vars: Slot | None = None


@dataclass(slots=True)
class Evaluation:
    """The cells of one reply."""

    journal: Journal
    kernel: KernelSession
    engine: str
    leaves: Callable[[Sequence[tuple[str, LeafCalled]]], Leaves]
    surfaces: Callable[[], SurfaceCalls]
    revived: bool = False
    """The first cell may have been interrupted: the log is asked for its calls."""

    async def run(self, reply: str) -> Evaluated:
        """Evaluate what is left of a reply's cells, from where the log says it stood."""
        cells = extract(reply)
        if not cells:
            return Evaluated(nudge())
        turn = self.journal.state.turn
        assert turn is not None
        shown = await self._stored_outputs(turn.step_seq) if turn.evals else []
        for index in range(turn.evals, len(cells)):
            record, checkpoint, final, output = await self._cell(cells[index], index, len(cells))
            shown.append(output)
            facts, payloads, vars_slot = self._facts(record, checkpoint)
            last = index == len(cells) - 1 or record.status != "ok"
            if last:
                text = observe(shown, final=final is not None, skipped=len(cells) - index - 1)
                return Evaluated(text, facts, payloads, final, vars_slot)
            await self._store(facts, payloads)
        raise AssertionError("a reply with cells has a last one")

    async def _store(self, facts: Sequence[Fact], payloads: Sequence[Slot]) -> None:
        await self.journal.append(lambda _: facts, payloads=payloads)

    async def _stored_outputs(self, after: int) -> list[str]:
        events = await self.journal.store.read_events(
            self.journal.session, after=after, types=[EvalAdded.TYPE]
        )
        outputs = []
        for event in events:
            fact = event.fact()
            if isinstance(fact, EvalAdded) and fact.output is not None:
                outputs.append(str(await self.journal.value(fact.output)))
        return outputs

    async def _cell(
        self, code: str, index: int, total: int
    ) -> tuple[EvalAdded, Checkpoint | None, Slot | None, str]:
        state = self.journal.state
        turn = state.turn
        assert turn is not None
        number = state.next("eval")
        leaves: Leaves | None = None
        surfaces: SurfaceCalls | None = None
        recorded: list[RecordedCall] = []
        if self.revived:
            self.revived = False
            leaves, surfaces, recorded = await self._calls_so_far(number)

        async def on_call(call: HostCall) -> HostAnswer:
            nonlocal leaves, surfaces
            if call.function in NAMES:
                leaves = leaves or self.leaves(())
                return await leaves.call(call)
            surfaces = surfaces or self.surfaces()
            return await surfaces.call(call)

        started = time.monotonic()
        result: CellResult | None = None
        status: EvalStatus = "died"
        try:
            result = await self.kernel.evaluate(
                code,
                started_at_ns=nanoseconds(turn.cell_at),
                on_call=on_call,
                recorded=recorded,
                recorded_files=[item for call in recorded for item in call.files],
            )
            assert result.status != "waiting", "no call of this runtime is suspended"
            status = result.status
            output = observe_cell(result, index, total)
            if any(call.function.startswith(WORK) for call in result.calls):
                # A worker reads what was there when it started: the next cell gets a new one.
                await self.kernel.park()
        except KernelError as error:
            logger.warning("cell %d of session %s: %s", number, self.journal.session, error.code)
            output = observe_death(str(error), index, total)
        record = EvalAdded(
            eval=number,
            turn=turn.turn,
            step=turn.step,
            index=index,
            code=slot(code, "code"),
            status=status,
            value=_value_slot(result),
            output=slot(output, "output"),
            error=_error_slot(result),
            calls=0 if result is None else len(result.calls),
            engine=self.engine,
            elapsed_ms=int((time.monotonic() - started) * 1000),
        )
        final = None
        if result is not None and result.status == "final" and result.final is not None:
            final = slot_of_bytes(result.final.encoding, result.final.data, "final")
        return record, None if result is None else result.checkpoint, final, output

    async def _calls_so_far(self, number: int) -> tuple[Leaves, SurfaceCalls, list[RecordedCall]]:
        """Return the handlers of a cell's calls, with what the log has of them already."""
        turn = self.journal.state.turn
        assert turn is not None
        surfaces = self.surfaces()
        known: list[tuple[str, LeafCalled]] = []
        events = await self.journal.store.read_events(
            self.journal.session,
            after=turn.step_seq,
            limit=100_000,
            types=["leaf.called", "call.requested", "call.resolved"],
        )
        surfaces.remember(events)
        for event in events:
            fact = event.fact()
            if isinstance(fact, LeafCalled) and fact.eval == number:
                known.append((event.at, fact))
        leaves = self.leaves(known)
        recorded = [*await leaves.recorded_calls(), *await surfaces.recorded_calls()]
        recorded.sort(key=lambda call: call.answer.at_ns if call.answer else 2**63)
        return leaves, surfaces, recorded

    def _facts(
        self, record: EvalAdded, checkpoint: Checkpoint | None
    ) -> tuple[tuple[Fact, ...], tuple[Slot, ...], Slot | None]:
        state = self.journal.state
        calls = [call for call in state.calls.values() if call.eval == record.eval]
        over = (*calls_settled(state, calls), record)
        if checkpoint is None:
            return over, (), None
        item, chunks = checkpoint_slots(checkpoint)
        known = self.journal.state.vars
        if known is not None and known.id == item.id:
            return over, (), None
        kept = VarsCheckpointed(vars=item, turn=record.turn, eval=record.eval)
        return (*over, kept), tuple(chunks), item


def _value_slot(result: CellResult | None) -> Slot | None:
    if result is None or result.value is None or result.value.encoded is None:
        return None
    return slot_of_bytes(result.value.encoded.encoding, result.value.encoded.data, "eval_result")


def _error_slot(result: CellResult | None) -> Slot | None:
    if result is None or (result.error is None and result.limit is None and not result.detail):
        return None
    about: dict[str, Any] = {"detail": result.detail, "limit": result.limit}
    if result.error is not None:
        about |= {
            "type": result.error.type,
            "message": result.error.message,
            "traceback": result.error.traceback,
        }
    return slot(about, "error")


def checkpoint_slots(checkpoint: Checkpoint) -> tuple[Slot, list[Slot]]:
    """Return the manifest slot of a checkpoint, and its new chunks with their bytes."""
    chunks = []
    if checkpoint.chunks:
        chunks = [
            structs.replace(item, data=checkpoint.chunks[item.id])
            for item in refs_in(checkpoint.manifest)
            if item.id in checkpoint.chunks
        ]
    return manifest(checkpoint.manifest, "vars"), chunks
