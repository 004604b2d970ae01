"""The code harness: the cells of a reply run in a kernel, each settled in one batch.

A cell starts from the last checkpoint and ends in `eval.added` with its new checkpoint, and the
reply's last cell brings the observation with it. A cell that was interrupted is run again with the
calls that the log has answered from it; cells that are stored are never run again. The kernel is
opened when the first code or input arrives.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from holdfast.core.capability import Capability
from holdfast.core.errors import KernelError
from holdfast.core.facts import EvalAdded, EvalStatus, Fact, VarsCheckpointed
from holdfast.core.messages import Message, observation
from holdfast.core.payloads import Slot, manifest, refs_in, slot, slot_of_bytes
from holdfast.core.state import OpenTurn, PendingCall
from holdfast.kernels.cells import extract
from holdfast.kernels.observation import nudge, observe, observe_cell, observe_death
from holdfast.kernels.port import (
    CellResult,
    Checkpoint,
    Encoded,
    HostAnswer,
    HostCall,
    KernelLimits,
    KernelSession,
    KernelSettings,
    RecordedCall,
)
from holdfast.models.port import ToolSpec
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.brokers import MODULE
from holdfast.runtime.calls import Ledger, id_of, in_order, nanoseconds
from holdfast.runtime.children import Children, Posts, stops
from holdfast.runtime.dispatch import Dispatcher
from holdfast.runtime.engine import Engine
from holdfast.runtime.handlers import Handler, child, leaf, question
from holdfast.runtime.handlers.child import ChildHandler
from holdfast.runtime.handlers.leaf import LeafHandler
from holdfast.runtime.handlers.question import QuestionHandler
from holdfast.runtime.handlers.tool import ToolHandler
from holdfast.runtime.harness import Acted
from holdfast.runtime.input_files import InputFiles
from holdfast.runtime.journal import Journal, namespace
from holdfast.runtime.settle import calls_settled
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.tools import Toolset, delegates, host_functions
from holdfast.runtime.transcript import Transcript

logger = logging.getLogger("holdfast.runtime")

WORK = f"{MODULE}."
GIVE_UP_SECONDS = 0.25
"""A cell that only waits is paused in place for so long: children may be quick."""


_OTHER_PACKAGES = "[packages have changed since this session began, so results may differ:]"


class CodeHarness:
    """Runs the code of one session's replies."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        blueprint: Blueprint,
        toolsets: tuple[Toolset, ...],
        transcript: Transcript,
        children: Children,
        shortage: Shortage,
    ) -> None:
        self.journal = journal
        self.children = children
        self.shortage = shortage
        self.dispatcher = Dispatcher(journal, engine.guards)
        self._engine = engine
        self.blueprint = blueprint
        self._toolsets = toolsets
        self._transcript = transcript
        self._kernel: KernelSession | None = None
        self._name = blueprint.settings.kernel
        self._vars: str | None = None  # the checkpoint that the kernel holds
        self._changed: list[str] = []  # packages that are other ones than the session began with
        self._files = InputFiles(journal.store, journal.session)
        self._waiting: list[str] = []  # the calls that the cell which was given up waits for

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what a turn records of its harness."""
        return {"harness": "code"}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return none: code calls tools as functions."""
        return ()

    def matches(self, vars: Slot | None) -> bool:
        """Tell whether the kernel holds the namespace that the log says."""
        return self._kernel is None or self._vars == (None if vars is None else vars.id)

    def can_go_on(self) -> bool:
        """Tell whether a whole wait of the cell that was given up is over, though not all are."""
        calls = self.journal.state.calls
        return any(
            not any(key == call or key.startswith(f"{call}-i") for key in calls)
            for call in self._waiting
        )

    async def close(self) -> None:
        """Let go of the kernel session."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.close()

    async def bind(self, inputs: Mapping[str, Slot]) -> tuple[Slot | None, list[Slot]]:
        """Bind a turn's inputs as variables; return the namespace that holds them."""
        if not inputs:
            return None, []
        kernel = await self._opened()
        self._vars = ""  # neither the old one nor one that the log has
        self._files.add(inputs.values())
        await self._files.check()
        for name, item in inputs.items():
            await kernel.set_variable(name, Encoded(item.encoding, item.data or b""))
        kept, chunks = checkpoint_slots(await kernel.checkpoint())
        self._vars = kept.id
        return kept, chunks

    async def act(self, reply: Message) -> Acted:
        """Evaluate what is left of a reply's cells, from where the log says it stood."""
        cells = extract(reply.text)
        if not cells:
            return Acted((observation(nudge()),), prose=True)
        turn = self._turn
        shown = await self._stored_outputs(turn.step_seq) if turn.evals else []
        for index in range(turn.evals, len(cells)):
            done = await self._cell(cells[index], index, len(cells))
            if done is None:
                return Acted(waits=True)
            record, checkpoint, final, output = done
            shown.append(output)
            posts = stops(self._open_calls(record.eval))
            facts, payloads, kept = self._facts(record, checkpoint)
            if index == len(cells) - 1 or record.status != "ok":
                text = observe(shown, final=final is not None, skipped=len(cells) - index - 1)
                return Acted((observation(text),), facts, payloads, final, kept, tuple(posts))
            await self._store(facts, payloads, posts)
        raise AssertionError("a reply with cells has a last one")

    async def _store(self, facts: Sequence[Fact], payloads: Sequence[Slot], posts: Posts) -> None:
        await self.journal.append(lambda _: facts, payloads=payloads, posts=posts)

    def _open_calls(self, number: int) -> list[PendingCall]:
        return [call for call in self.journal.state.calls.values() if call.eval == number]

    @property
    def _turn(self) -> OpenTurn:
        turn = self.journal.state.turn
        assert turn is not None
        return turn

    async def _opened(self) -> KernelSession:
        """Return the kernel session, opened from the last checkpoint if it is not open yet."""
        if self._kernel is not None:
            return self._kernel
        store, session = self.journal.store, self.journal.session
        capability = self.blueprint.capability
        settings = self.blueprint.settings
        choice = await self._engine.kernels.choose(settings.kernel, capability)
        functions = (child.BUDGET, *question.FUNCTIONS, *host_functions(self._toolsets))
        if capability.model_calls:
            functions = (*leaf.FUNCTIONS, *child.FUNCTIONS, *functions)
        kept = self.journal.state.vars
        self._kernel = await choice.kernel.open(
            KernelSettings(
                functions=functions,
                read_roots=capability.read_roots,
                packages=capability.packages,
                hidden=blueprints.hidden_paths(store, settings.work_area),
                limits=_limits(capability),
                seed=self.blueprint.seed,
                depth=self.journal.state.depth,
            ),
            fetch=lambda payload_id: store.get_payload(session, payload_id),
            manifest=None if kept is None else (await namespace(store, session, kept)).value(),
        )
        self._name = choice.name
        self._changed = _changed(choice.versions, self.blueprint.prompt)
        self._vars = None if kept is None else kept.id
        return self._kernel

    async def _stored_outputs(self, after: int) -> list[str]:
        store, session = self.journal.store, self.journal.session
        events = await store.read_events(session, after=after, types=[EvalAdded.TYPE])
        outputs = []
        for event in events:
            fact = event.fact()
            if isinstance(fact, EvalAdded) and fact.output is not None:
                outputs.append(str(await self.journal.value(fact.output)))
        return outputs

    async def _cell(
        self, code: str, index: int, total: int
    ) -> tuple[EvalAdded, Checkpoint | None, Slot | None, str] | None:
        """Run one cell; None where it was given up, because it waits for someone outside."""
        state, turn = self.journal.state, self._turn
        number = state.next("eval")
        if self._kernel is None and state.vars is not None:
            await self._files.load()  # an earlier driver bound them
        await self._files.check()
        replay, started_at = self._engine.replay, turn.cell_at
        if replay is None:
            ledger = Ledger(self.journal, turn.turn, turn.step, number, self._engine.guards)
            await ledger.load()
        else:
            ledger = replay.ledger(number)
            started_at = replay.started_at(number) or started_at
        leaves, children, questions, tools = handlers = self._handlers(ledger)
        recorded = in_order([made for each in handlers for made in await each.recorded()])
        by_name: dict[str, Handler] = {
            **dict.fromkeys(leaf.NAMES, leaves),
            **dict.fromkeys(child.NAMES, children),
            **dict.fromkeys(question.NAMES, questions),
            **dict.fromkeys(delegates(self._toolsets), children),
        }

        async def on_call(call: HostCall) -> HostAnswer:
            if replay is not None:
                at, settings = nanoseconds(started_at), self.blueprint.settings
                refused = leaf.refusal(call, settings, at) if call.function in leaf.NAMES else None
                return refused or await replay.refuse(number, call)
            handler = children if call.key in ledger.children else by_name.get(call.function, tools)
            return await handler.call(call)

        ledger.driven_ms()  # what was done for the cell before it runs is not its own
        result: CellResult | None = None
        status: EvalStatus = "died"
        try:
            kernel = await self._opened()
            result = await self._evaluated(kernel, code, started_at, recorded, on_call)
            if result.status == "waiting":
                self._waiting = [id_of(number, key) for key in result.waiting]
                return None
            status, output = result.status, observe_cell(result, index, total)
        except KernelError as error:
            logger.warning("cell %d of session %s: %s", number, self.journal.session, error.code)
            output = observe_death(str(error), index, total)
        if self._changed:
            output = f"{_OTHER_PACKAGES} {'; '.join(self._changed)}\n{output}"
            self._changed = []
        if result is None or result.status == "diverged":
            output = "\n".join([output, *await self._account(ledger)])
        guards = self._engine.guards
        output = guards.redacted_text("output", output)
        value, failure = _value_slot(result), _error_slot(result)
        record = EvalAdded(
            eval=number,
            turn=turn.turn,
            step=turn.step,
            index=index,
            code=slot(code, "code"),
            status=status,
            value=None if value is None else guards.redacted_slot("value", value),
            output=slot(output, "output"),
            error=None if failure is None else guards.redacted_slot("error", failure),
            calls=0 if result is None else len(result.calls),
            engine=self._name,
            elapsed_ms=ledger.driven_ms(),
        )
        final = None
        if result is not None and result.status == "final" and result.final is not None:
            final = slot_of_bytes(result.final.encoding, result.final.data, "final")
            final = guards.redacted_slot("final", final)
        return record, None if result is None else result.checkpoint, final, output

    def _handlers(self, ledger: Ledger) -> tuple[Handler, Handler, Handler, Handler]:
        settings = self.blueprint.settings
        name = settings.leaf_model or settings.model
        leaves = LeafHandler(
            ledger=ledger,
            model=self._engine.model_of(
                self.journal.session, name, settings, lambda: self.journal.state
            ),
            shortage=self.shortage,
            gate=self._engine.leaf_gate,
            first_user_text=self._transcript.first_user_text,
        )
        agents = delegates(self._toolsets)
        children = ChildHandler(ledger, self._engine, self.shortage, self.children, agents)
        store, lease = self.journal.store, self.journal.lease
        tools = ToolHandler(ledger, self._toolsets, lambda: store.renew(lease), self.dispatcher)
        return leaves, children, QuestionHandler(ledger), tools

    async def _evaluated(
        self,
        kernel: KernelSession,
        code: str,
        started_at: str,
        recorded: Sequence[RecordedCall],
        on_call: Any,
    ) -> CellResult:
        result = await kernel.evaluate(
            code,
            started_at_ns=nanoseconds(started_at),
            on_call=on_call,
            recorded=recorded,
            recorded_files=[item for call in recorded for item in call.files],
            give_up_seconds=GIVE_UP_SECONDS,
        )
        if any(call.function.startswith(WORK) for call in result.calls):
            # A worker reads what was there when it started: the next cell gets a new one.
            await kernel.park()
        return result

    async def _account(self, ledger: Ledger) -> list[str]:
        """Return what the model is told of the calls of a cell that did not come to its end."""
        lines = await ledger.account()
        return ["Calls that it made:", *(f"- {line}" for line in lines)] if lines else []

    def _facts(
        self, record: EvalAdded, checkpoint: Checkpoint | None
    ) -> tuple[tuple[Fact, ...], tuple[Slot, ...], Slot | None]:
        state = self.journal.state
        facts: tuple[Fact, ...] = (*calls_settled(state, self._open_calls(record.eval)), record)
        if checkpoint is None:
            return facts, (), None
        item, chunks = checkpoint_slots(checkpoint)
        self._vars = item.id
        if state.vars is not None and state.vars.id == item.id:
            return facts, (), None
        kept = VarsCheckpointed(vars=item, turn=record.turn, eval=record.eval)
        return (*facts, kept), tuple(chunks), item


def _limits(capability: Capability) -> KernelLimits:
    return KernelLimits(
        memory_bytes=capability.memory_bytes,
        cpu_seconds=capability.cpu_seconds,
        wall_seconds=capability.wall_seconds,
        output_bytes=capability.output_bytes,
        processes=capability.processes,
        open_files=capability.open_files,
    )


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


def _changed(versions: Mapping[str, str], prompt: str) -> list[str]:
    """Return which packages have another version here than the stored prompt tells."""
    found = []
    for name, version in versions.items():
        told = re.search(rf"\b{re.escape(name)} (\d[\w.+!]*\w)", prompt)
        if told is not None and told[1] != version:
            found.append(f"{name} is {version}, and was {told[1]}")
    return found
