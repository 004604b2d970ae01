"""The monty engine: a restricted Python that is its own sandbox, confined by the system as well.

A session is its last checkpoint plus a Monty worker that holds it. Monty promises nothing about a
heap whose cell was stopped, so after a limit, a cancelled cell or a crash the worker is given up
and the next cell starts from the checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pydantic_monty

from holdfast.core import payloads, values
from holdfast.core.errors import (
    KernelDied,
    KernelError,
    KernelLimit,
    NotRestorable,
)
from holdfast.core.payloads import Slot
from holdfast.kernels import confinement, landlock, monty_heap, monty_sandbox, plain_data
from holdfast.kernels import manifest as cpython_manifest
from holdfast.kernels.call_record import CallRecord, Diverged
from holdfast.kernels.monty_cell import Cell, GivenUp, Limited, cell_error
from holdfast.kernels.monty_launcher import Launcher
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.port import (
    CellError,
    CellResult,
    CellStatus,
    Checkpoint,
    Confinement,
    Encoded,
    Excerpt,
    Fetch,
    FileRead,
    KernelFlags,
    KernelLimits,
    KernelSettings,
    LimitName,
    OnCall,
    RecordedCall,
    Unrestorable,
    ValueView,
    Variable,
)
from holdfast.kernels.worker.cell import render

OUTPUT_FIT = 12_000
VALUE_FIT = 4_000
_SMALL = 1 << 16
_SHOWN_KIND = 100
_MAX_SUSPENSIONS = 1 << 31
_WORKER_MEMORY = 4 << 30

logger = logging.getLogger("holdfast.kernels")

CARD = resources.files(__package__).joinpath("monty_card.md").read_text()


class MontyKernel:
    """Opens sessions whose cells run in Monty workers."""

    def __init__(self, *, confined: bool | None = None, max_workers: int = 256) -> None:
        """Make the engine. It is confined by the system where that is possible.

        `confined=False` relies on Monty's own sandbox alone; `confined=True` insists on both.
        """
        if confined is None:
            confined = confinement.available().level == "os"
        self._launcher = Launcher(_WORKER_MEMORY) if confined else None
        self._pool = pydantic_monty.AsyncMonty(
            binary_path=None if self._launcher is None else self._launcher.path,
            min_processes=0,
            max_processes=max_workers,
        )
        self._started: asyncio.Lock | None = None
        self._running = False
        self._level: Confinement = "os" if confined else "language"

    @property
    def flags(self) -> KernelFlags:
        """Return what this engine is and can do."""
        return KernelFlags(
            engine=monty_heap.ENGINE,
            version=pydantic_monty.__version__,
            confinement=self._level,
            full_python=False,
            threads=False,
            functions_restorable=True,
            calls_anywhere=False,
        )

    async def open(
        self,
        settings: KernelSettings,
        *,
        fetch: Fetch | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> MontySession:
        """Open a session, empty or from a checkpoint; a worker starts when it is first needed."""
        session = MontySession(self, settings, fetch)
        if manifest is not None:
            await session.restore(manifest)
        return session

    async def checkout(self, **options: Any) -> Any:
        """Return a Monty session with a worker of its own."""
        if self._started is None:
            self._started = asyncio.Lock()
        async with self._started:
            if not self._running:
                await self._pool.__aenter__()
                self._running = True
        try:
            return await self._pool.checkout(**options).__aenter__()
        except pydantic_monty.MontyError as error:
            raise KernelDied(f"no monty worker could be started: {error}") from error

    async def close(self) -> None:
        """Stop every worker."""
        if self._running:
            self._running = False
            await self._pool.__aexit__(None, None, None)
        if self._launcher is not None:
            self._launcher.close()


@dataclass(frozen=True, slots=True)
class _Live:
    """A worker that holds the namespace of the last checkpoint."""

    session: Any
    limits: KernelLimits
    mounts: list[Any]
    # What stands for the modules of the host in the sandbox.
    modules: dict[str, Any]

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self.session.__aexit__(None, None, None)
        for mount in self.mounts:
            mount.close()

    def cpu_ns(self) -> int:
        pid = self.session.worker_pid
        if pid is None:
            return 0
        try:
            return time.clock_gettime_ns((~pid << 3) | 2)
        except OSError:
            return 0


class MontySession:
    """One namespace. Use it from one task at a time."""

    def __init__(self, kernel: MontyKernel, settings: KernelSettings, fetch: Fetch | None) -> None:
        self.manifest: Mapping[str, Any] | None = None
        self._kernel = kernel
        self._settings = settings
        self._fetch = fetch
        self._stored = monty_heap.Stored()
        self._functions = {function.path: function.pure for function in settings.functions}
        plain_names = [name for name in self._functions if "." not in name]
        self._engine_names = ["inspect", *plain_names, *(["FINAL"] if settings.final else [])]
        self._prelude = monty_sandbox.prelude(self._functions, final=settings.final)
        self._module_names = monty_sandbox.modules_of(self._functions)
        self._offered = monty_sandbox.stubs(self._functions) | monty_sandbox.TYPES
        self._inputs: dict[str, Encoded] = {}
        self._lost: list[Unrestorable] = []
        self._live: _Live | None = None
        self._running: asyncio.Task[Any] | None = None
        self._cell: Cell | None = None
        self._interrupted = False
        self._using = asyncio.Lock()

    async def evaluate(
        self,
        code: str,
        *,
        started_at_ns: int,
        on_call: OnCall,
        recorded: Sequence[RecordedCall] = (),
        recorded_files: Sequence[FileRead] = (),
        limits: KernelLimits | None = None,
        give_up_seconds: float | None = 0.0,
    ) -> CellResult:
        """Run one cell from the last checkpoint and return what happened."""
        limits = limits or self._settings.limits
        async with self._using:
            record = CallRecord(on_call, recorded, recorded_files)
            cell = Cell(
                record,
                limits,
                started_at_ns,
                self._functions,
                _directories(self._settings),
                self._settings.final,
                give_up_seconds,
            )
            self._cell = cell
            try:
                return await self._run(code, cell, record, limits)
            except BaseException as error:
                await self._discard()
                if isinstance(error, KernelError):
                    error.details.setdefault("calls", record.made)
                raise
            finally:
                self._cell = None
                await record.close()

    async def _run(
        self, code: str, cell: Cell, record: CallRecord, limits: KernelLimits
    ) -> CellResult:
        live = await self._ready(limits)
        before = live.cpu_ns()
        ending = _Ending("ok")
        self._interrupted = False
        source = monty_sandbox.Source.of(code)
        self._running = asyncio.ensure_future(
            cell.run(live.session, source.run, self._bindings(), live.mounts, live.modules)
        )
        try:
            await self._running
            record.check_end()
        except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
            ending = _Ending("error", error=cell_error(error, source))
            record.check_end()
        except Limited as limited:
            ending = _Ending("limit", limit=limited.limit, detail=limited.detail)
        except Diverged as diverged:
            ending = _Ending("diverged", detail=str(diverged))
        except GivenUp:
            ending = _Ending("waiting")
        except pydantic_monty.MontyCrashedError as error:
            if not error.timed_out:
                raise KernelDied(f"the monty worker ended while a cell ran: {error}") from error
            ending = _Ending("limit", limit="cpu", detail=str(error))
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            stopped = CellError("KeyboardInterrupt", "", "KeyboardInterrupt\n", None)
            ending = _Ending("error", error=stopped, kept=False)
        finally:
            self._running = None
        if cell.final is not None and ending.status not in ("diverged", "waiting"):
            ending = _Ending("final", kept=ending.status != "limit")
        return await self._result(live, cell, record, ending, live.cpu_ns() - before)

    async def _result(
        self, live: _Live, cell: Cell, record: CallRecord, ending: _Ending, cpu_ns: int
    ) -> CellResult:
        checkpoint: Checkpoint | None = None
        repaired: tuple[str, ...] = ()
        value: ValueView | None = None
        if ending.kept and ending.status not in ("limit", "diverged", "waiting"):
            try:
                checkpoint, survey = await self._checkpoint(live)
                repaired = survey.replaced
                value = _view(survey.shown) if ending.status == "ok" else None
            except Limited as limited:
                status: CellStatus = "final" if ending.status == "final" else "limit"
                ending = _Ending(status, limit=limited.limit, detail=limited.detail)
        if checkpoint is None:
            await self._discard()
        lost, self._lost = self._lost, []
        return CellResult(
            status=ending.status,
            stdout=Excerpt(*render.text_excerpt(cell.text("stdout"), OUTPUT_FIT)),
            stderr=Excerpt(*render.text_excerpt(cell.text("stderr"), OUTPUT_FIT)),
            value=value,
            final=cell.final,
            error=ending.error if ending.status == "error" else None,
            limit=ending.limit,
            detail=ending.detail,
            calls=record.made if ending.status in ("diverged", "waiting") else tuple(record.calls),
            waiting=record.waiting if ending.status == "waiting" else (),
            files=tuple(cell.files),
            checkpoint=checkpoint,
            namespace_kept=checkpoint is not None,
            unrestorable=tuple(lost),
            repaired=repaired,
            cpu_ns=max(cpu_ns, 0),
        )

    # Checkpoints

    async def _checkpoint(self, live: _Live) -> tuple[Checkpoint, monty_heap.Survey]:
        try:
            survey = await self._survey(live)
            heap = await live.session.dump() if survey.needs_heap else None
            await self._offer(live)
        except (pydantic_monty.MontyError, RuntimeError) as error:
            raise KernelDied(f"the namespace could not be read: {error}") from error
        checkpoint = self._stored.checkpoint(survey, heap, pydantic_monty.__version__)
        self.manifest = checkpoint.manifest
        self._inputs.clear()
        return checkpoint, survey

    async def _survey(self, live: _Live) -> monty_heap.Survey:
        run, types = live.session.feed_run, monty_sandbox.TYPES
        names = self._engine_names
        try:
            # Where a cell replaced what the listing needs, the heap still holds everything.
            with contextlib.suppress(_Unlisted):
                await _listing(run(monty_sandbox.names(names)))
            kinds, replaced, costly, plain = await _listing(run(monty_sandbox.SURVEY, inputs=types))
            if costly:
                refused = await off_loop(_too_costly, costly)
                given = {monty_sandbox.REFUSED: refused}
                plain = await _listing(run(monty_sandbox.HAND_OUT, inputs=given))
        except _Unlisted:
            return monty_heap.Survey(None, [], {}, names)
        return monty_heap.Survey(kinds, replaced, plain, names)

    async def set_variable(self, name: str, value: Encoded) -> None:
        """Bind an input; it is part of the next checkpoint."""
        values.decode(value.encoding, value.data)
        self._inputs[name] = value

    async def checkpoint(self) -> Checkpoint:
        """Checkpoint now."""
        async with self._using:
            live = await self._ready(self._settings.limits)
            try:
                await live.session.feed_run("None", inputs=self._bindings())
            except pydantic_monty.MontyError as error:
                await self._discard()
                raise KernelError(f"an input cannot be bound in monty: {error}") from error
            try:
                checkpoint, _ = await self._checkpoint(live)
            except (Limited, KernelError) as error:
                await self._discard()
                raise KernelLimit(f"the namespace could not be stored: {error}") from error
            return checkpoint

    async def restore(self, manifest: Mapping[str, Any]) -> None:
        """Put this namespace in place of the present one."""
        plain: dict[str, Encoded] = {}
        others: dict[str, str] = {}
        foreign = manifest.get("engine") == cpython_manifest.ENGINE
        if foreign:
            plain, others = await plain_data.plain_variables(manifest, self._fetched)
        else:
            monty_heap.check(manifest)
        await self._discard()
        self._inputs = plain
        self._lost = [Unrestorable(name, reason) for name, reason in others.items()]
        self.manifest = None if foreign else manifest
        self._stored.reset(self.manifest or {})

    async def variables(self) -> list[Variable]:
        """List the names of the namespace, from its last checkpoint."""
        return [] if self.manifest is None else monty_heap.variables(self.manifest)

    # The worker

    async def _ready(self, limits: KernelLimits) -> _Live:
        if self._live is not None and self._live.limits == limits:
            return self._live
        await self._discard()
        mounts = [
            pydantic_monty.MountDir(host_path=root, virtual_path=root, mode="read-only")
            for root in _directories(self._settings)
        ]
        session = await self._kernel.checkout(
            limits={
                "max_feed_duration_secs": limits.cpu_seconds,
                "max_memory": limits.memory_bytes,
                "max_suspensions": _MAX_SUSPENSIONS,
            },
            os_policy={
                "datetime": "call_host",
                "sleep": "call_host",
                "random_start": {"seed": self._settings.seed},
            },
            # Empty: an import of one is answered with the object of the sandbox in its place.
            external_modules={
                name: pydantic_monty.ExternalModule({}) for name in self._module_names
            },
        )
        self._live = _Live(session, limits, mounts, {})
        if self.manifest is not None:
            await self._load(session, self.manifest)
        else:
            await session.feed_run(monty_sandbox.FIRST_CODE)
        await self._offer(self._live)
        return self._live

    async def _offer(self, live: _Live) -> None:
        """Bind the engine's names, whatever a cell has made of them."""
        made = await live.session.feed_run(self._prelude, inputs=self._offered)
        live.modules.update(zip(self._module_names, made, strict=True))

    async def _load(self, session: Any, manifest: Mapping[str, Any]) -> None:
        heap = monty_heap.heap_of(manifest, pydantic_monty.__version__)
        try:
            if heap is not None:
                await session.load_session(await self._bytes(heap))
                await session.feed_run(monty_sandbox.FIRST_CODE)
                return
            await session.feed_run(monty_sandbox.FIRST_CODE)
            plain = {
                name: values.decode(slot.encoding, await self._bytes(slot))
                for name, slot in monty_heap.plain_of(manifest).items()
            }
            imports = "\n".join(f"import {name}" for name in monty_heap.imports_of(manifest))
            await session.feed_run(imports or "None", inputs=plain)
        except pydantic_monty.MontyError as error:
            await self._discard()
            raise NotRestorable(f"monty cannot restore the checkpoint: {error}") from error
        if manifest["heap"] is not None:
            self._lost = [
                Unrestorable(name, f"{kind}: Monty {manifest['version']} made it")
                for name, kind in monty_heap.lost_of(manifest)
            ]

    async def _bytes(self, slot: Slot) -> bytes:
        if slot.data is not None:
            return slot.data
        return payloads.check_bytes(slot, await self._fetched(slot.id))

    async def _fetched(self, chunk: str) -> bytes:
        if self._fetch is None:
            raise NotRestorable(f"the chunk {chunk!r} cannot be read: open with `fetch`")
        return await self._fetch(chunk)

    def _bindings(self) -> dict[str, Any]:
        """Return the inputs that are not part of the namespace yet."""
        return {
            name: values.decode(value.encoding, value.data) for name, value in self._inputs.items()
        }

    async def _discard(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def interrupt(self) -> None:
        """Stop the running cell; Monty's heap is then as at its start."""
        if self._running is not None:
            self._interrupted = True
            self._running.cancel()

    async def give_up(self) -> bool:
        """End the running cell if its open call is suspended, and tell whether it was."""
        return self._cell is not None and self._cell.give_up()

    async def park(self) -> None:
        """Give the worker back, unless a cell uses it: a waiting one holds a few megabytes."""
        if not self._using.locked():
            await self._discard()

    async def close(self) -> None:
        """Let go of the worker and of everything in memory."""
        await self._discard()


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a cell ended."""

    status: CellStatus
    error: CellError | None = None
    limit: LimitName | None = None
    detail: str = ""
    kept: bool = True


class _Unlisted(Exception):
    """The sandbox does not list its namespace."""


async def _listing(answer: Awaitable[Any]) -> Any:
    """Return a part of a listing; raise `Limited` if the namespace leaves no room for it."""
    try:
        return await answer
    except pydantic_monty.MontyRuntimeError as error:
        if isinstance(error.exception(), MemoryError):
            raise Limited("memory", "the namespace does not fit beside its listing") from None
        raise _Unlisted from error


def _view(shown: Any) -> ValueView | None:
    """Return what the sandbox shows of a value; it is not trusted, so any other form is nothing."""
    match shown:
        case [None]:
            return None
        case [value]:
            return _whole_view(value)
        case [str(kind), str(head), str(tail), int(size)]:
            whole = size <= len(head)
            text = head if whole else render.text_excerpt(head, VALUE_FIT)[0]
            cut = "" if whole else tail[-(VALUE_FIT // 3) :]
            return ValueView(kind[:_SHOWN_KIND], Excerpt(text, cut, size), None)
    return None


def _whole_view(value: Any) -> ValueView:
    try:
        encoding, data = values.encode(value)
        encoded = Encoded(encoding, data) if len(data) <= _SMALL else None
    except Exception:
        encoded = None
    return ValueView(render.kind_of(value), Excerpt(*render.excerpt(value, VALUE_FIT)), encoded)


def _too_costly(listed: Any) -> list[str]:
    """Return the names of the variables whose sets and dicts take too long to make."""
    return [name for name, tables in listed if not monty_sandbox.weighed(tables)]


def _directories(settings: KernelSettings) -> tuple[str, ...]:
    """Return the roots that Monty can mount: directories with UTF-8 names, none in another."""
    visible = (
        path
        for root in settings.read_roots
        for path, access in confinement.grants(os.path.realpath(root), settings.hidden)
        if access == landlock.READ
    )
    real = sorted({path for path in visible if os.path.isdir(path) and _can_be_named(path)})
    return tuple(
        root
        for root in real
        if not any(root.startswith(other.rstrip("/") + "/") for other in real if other != root)
    )


def _can_be_named(path: str) -> bool:
    """Return whether a path is UTF-8; Monty takes no other and its code could not name it."""
    if values.is_text(path):
        return True
    logger.debug("%r is not shown to the code: its name is not UTF-8", path)
    return False
