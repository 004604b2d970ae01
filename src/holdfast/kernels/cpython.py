"""The cpython engine: the full language in a confined worker process per session.

A session is its last checkpoint plus, for as long as it is worth it, a process that already holds
that namespace. The process can go away at any moment: killed, over a limit, or taken back while
its cell waits for the host. Then the next use starts from the checkpoint, and a cell that was
under way runs again with the answers it had.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from holdfast.core import payloads
from holdfast.core.errors import (
    ConfinementMissing,
    KernelDied,
    KernelError,
    KernelProtocolError,
    NotRestorable,
)
from holdfast.kernels import confinement, frames, monty_heap, results, setup
from holdfast.kernels import manifest as manifests
from holdfast.kernels.call_record import CallRecord, Diverged, first_of
from holdfast.kernels.calls import Calls
from holdfast.kernels.file_contents import ServedFiles
from holdfast.kernels.limit_watch import LimitWatch
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.packages import Packages
from holdfast.kernels.pool import Parked, WorkerPool
from holdfast.kernels.port import (
    CellResult,
    Checkpoint,
    Confinement,
    Encoded,
    Fetch,
    FileRead,
    KernelFlags,
    KernelLimits,
    KernelSettings,
    OnCall,
    RecordedCall,
    Unrestorable,
    Variable,
)
from holdfast.kernels.run import GivenUp, Run
from holdfast.kernels.workers import Worker, WorkerLost

OUTPUT_FIT = 12_000
VALUE_FIT = 4_000
CHEAP_NS = 5_000_000_000
# After so many the namespace is loaded without running what the model's classes do about it.
FAILED_LOADS = 2
# An idle worker that was killed is missed at once.
_AT_ONCE_SECONDS = 0.25
_SETUP_SECONDS = 60.0


class CpythonKernel:
    """Opens sessions whose cells run in confined processes of this Python."""

    def __init__(
        self,
        *,
        confined: bool = True,
        memory_bytes: int | None = None,
        max_workers: int | None = None,
        max_idle: int | None = None,
        idle_seconds: float = 30.0,
        park_seconds: float = 30.0,
        environment: str | None = None,
    ) -> None:
        """Make the engine; `confined=False` runs model-written code with the host's own rights.

        Its workers hold about `memory_bytes` together (half of the machine's memory by default);
        their number is limited by that and by the descriptors of this process, or by `max_workers`,
        and those of idle sessions by `max_idle`. A session gives its worker back when it was
        idle for `idle_seconds`, or when its cell has waited for the host for `park_seconds` and is
        cheap to run again. Packages that a session may import come from `environment`, a directory
        such as `site-packages`: that of the host by default.
        """
        report = confinement.available()
        if confined and report.missing:
            raise ConfinementMissing(
                f"this machine cannot confine a worker: missing {'; '.join(report.missing)}. Use "
                "kernel='monty', or allow confinement 'none' explicitly"
            )
        self.confined = confined
        self.park_seconds = park_seconds
        self._environment = environment
        self._packages: dict[tuple[str, ...], Packages] = {}
        self.pool = WorkerPool(
            max_workers=max_workers,
            memory_bytes=memory_bytes,
            max_idle=max_idle,
            idle_seconds=idle_seconds,
        )

    @property
    def flags(self) -> KernelFlags:
        """Return what this engine is and can do."""
        level: Confinement = "os" if self.confined else "none"
        return KernelFlags(
            engine=manifests.ENGINE,
            version=platform.python_version(),
            confinement=level,
            full_python=True,
            threads=True,
            functions_restorable=True,
            calls_anywhere=True,
            packages=True,
        )

    def packages(self, names: tuple[str, ...]) -> Packages:
        """Return what a session may import; raise InvalidSettings for what is not installed."""
        if names not in self._packages:
            self._packages[names] = Packages(names, self._environment)
        return self._packages[names]

    async def open(
        self,
        settings: KernelSettings,
        *,
        fetch: Fetch | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> CpythonSession:
        """Open a session, empty or from a checkpoint; a process starts when it is first needed."""
        packages = await off_loop(self.packages, settings.packages) if settings.packages else None
        session = CpythonSession(self, settings, fetch, packages)
        if manifest is not None:
            await session.restore(manifest)
        self.pool.fork_server.start()
        return session

    async def close(self) -> None:
        """Stop every worker."""
        await self.pool.close()
        for packages in self._packages.values():
            packages.close()
        self._packages.clear()


class CpythonSession:
    """One namespace. Use it from one task at a time."""

    def __init__(
        self,
        kernel: CpythonKernel,
        settings: KernelSettings,
        fetch: Fetch | None,
        packages: Packages | None,
    ) -> None:
        self._packages = packages
        self.worker: Worker | None = None
        self.settings = settings
        self.manifest: Mapping[str, Any] | None = None
        self._kernel = kernel
        self._pool = kernel.pool
        self._fetch = fetch
        self._chunks = manifests.Chunks()
        self._inputs: dict[str, Encoded] = {}
        self._lost: tuple[Unrestorable, ...] = ()
        # How often in a row a worker failed to load the namespace.
        self._failed_loads = 0
        self._offered = {function.path: function.pure for function in settings.functions}
        self._run: Run | None = None
        # The record of the cell that is being evaluated, and whether it was asked to be given up.
        self._record: CallRecord | None = None
        self._give_up = asyncio.Event()
        self._closed = False
        self._using = asyncio.Lock()

    @property
    def own_paths(self) -> bool:
        """Return whether its cells may read paths."""
        return bool(self.settings.read_roots or self.settings.packages)

    @property
    def reclaim_cost(self) -> int | None:
        """Return the CPU time that running the waiting cell again would cost."""
        run = self._run
        if run is None or run.final is not None or not run.record.asking:
            return None
        if run.calls.contents.fetching:
            return None
        return run.watch.cpu_ns

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
        limits = limits or self.settings.limits
        command = {
            "id": 0,
            "do": "eval",
            "source": code,
            "started_at_ns": started_at_ns,
            "output_fit": OUTPUT_FIT,
            "output_limit": limits.output_bytes,
            "value_fit": VALUE_FIT,
        }
        async with self._using:
            record = self._record = CallRecord(on_call, recorded, recorded_files)
            self._give_up.clear()
            try:
                while True:
                    kept, began = self.worker, time.monotonic()
                    try:
                        return await self._run_once(command, record, limits, give_up_seconds)
                    except WorkerLost as lost:
                        if isinstance(lost.error, GivenUp):
                            return results.waiting(record)
                        if not isinstance(lost.error, Parked):
                            if not _was_dead(kept, lost.error, time.monotonic() - began):
                                raise lost.error from None
                            record.begin()
                            continue
                        if self._closed:
                            raise KernelError("the session was closed; open it again") from None
                    if not await self._can_run_again(record, give_up_seconds):
                        return results.waiting(record)
                    record.begin()
            except KernelError as error:
                error.details.setdefault("calls", record.made)
                raise
            finally:
                self._record = None
                await record.close()
                self._pool.idle(self)

    async def _can_run_again(self, record: CallRecord, give_up_seconds: float | None) -> bool:
        """Wait until a parked cell has its answers; return False if it is given up before."""
        if await record.wait_for_answers():
            return True
        await first_of(record.wait_for_all(), self._give_up.wait(), seconds=give_up_seconds)
        return not record.waiting

    async def _run_once(
        self,
        command: dict[str, Any],
        record: CallRecord,
        limits: KernelLimits,
        give_up_seconds: float | None,
    ) -> CellResult:
        if not record.files.served():
            return await self._run_cell(
                await self._ready(), command, record, limits, give_up_seconds
            )
        served = await off_loop(ServedFiles, record.files)
        try:
            if self.worker is not None:
                self._pool.reclaim(self)  # it may not read what is served
            worker = await self._ready(served.path)
            command = command | {"served": served.command}
            return await self._run_cell(worker, command, record, limits, give_up_seconds)
        finally:
            if self.worker is not None:
                self._drop(self.worker)  # its `open` is not that of other workers
            await off_loop(served.close)

    async def _run_cell(
        self,
        worker: Worker,
        command: dict[str, Any],
        record: CallRecord,
        limits: KernelLimits,
        give_up_seconds: float | None,
    ) -> CellResult:
        watch = self._watch(worker, limits)
        most = self.settings.limits.processes + 1
        calls = Calls(worker, record, watch, self._offered, most)
        calls.on_wait = partial(self._pool.pause, self)
        calls.on_resume = partial(self._pool.resume, self)
        run = self._run = Run(worker, record, watch, calls, self._chunks, give_up_seconds)
        worker.limit(self.settings.limits.memory_bytes)
        try:
            return self._result(run, await run.done(command))
        except Diverged as diverged:
            self._drop(worker)
            return results.diverged(run, str(diverged))
        except WorkerLost as lost:
            self._pool.forget(self)
            planned = isinstance(lost.error, (Parked, GivenUp))
            if planned or not (run.watch.tripped or run.final):
                raise
            return results.cut(run)
        except KernelProtocolError as error:
            self._drop(worker, error)
            raise
        except BaseException:
            self._drop(worker)
            raise
        finally:
            run.close()
            self._run = None
            self._chunks.forget()

    def _watch(self, worker: Worker, limits: KernelLimits) -> LimitWatch:
        def park() -> None:
            cost = self.reclaim_cost
            if cost is not None and cost < CHEAP_NS:
                worker.kill(Parked("the cell waits for long"))

        return LimitWatch(worker, limits, self._kernel.park_seconds, park)

    def _result(self, run: Run, done: frames.DoneFrame) -> CellResult:
        before = self.manifest
        lost, self._lost = self._lost, ()
        checkpoint = None
        if done.checkpoint is not None:
            checkpoint = self._keep(done.checkpoint)
        if done.checkpoint is None or done.threads or done.stale:
            # Its namespace is, or may become, another one than that of the checkpoint.
            assert self.worker is not None
            self._drop(self.worker)
        return results.finished(run, done, checkpoint, results.losses(lost, checkpoint, before))

    def _keep(self, part: frames.CheckpointPart) -> Checkpoint:
        checkpoint = self._chunks.checkpoint(part)
        self.manifest = checkpoint.manifest
        self._inputs.clear()
        return checkpoint

    # The worker

    async def _ready(self, *served: str) -> Worker:
        """Return a worker that holds the namespace of the last checkpoint and the inputs.

        A new one may also read the directory with the files that a re-run is served. Workers that
        die of the namespace are replaced, the last one by one that runs nothing of the model's
        own; if that fails, too, the namespace cannot be restored, now or later.
        """
        if self._closed:
            raise KernelError("the session was closed; open it again")
        self._pool.busy(self)
        if self.worker is not None and self.worker.is_alive():
            return self.worker
        self._pool.forget(self)
        while True:
            try:
                return await self._new_worker(served)
            except _LoadFailed as failed:
                self._failed_loads += 1
                if self._failed_loads > FAILED_LOADS:
                    self._failed_loads = 0
                    raise NotRestorable(
                        f"the namespace cannot be loaded: {failed.error}; fork the session at an "
                        "earlier head, or restore an earlier checkpoint"
                    ) from None

    async def _new_worker(self, served: tuple[str, ...]) -> Worker:
        worker = await self._pool.acquire(self, self.settings.depth)
        loading = False
        try:
            async with _in_time():
                confined = self._kernel.confined
                await setup.open_worker(
                    worker, self.settings, served, self._packages, confined=confined
                )
                if self.manifest is not None:
                    loading = True
                    await self._load(worker, self.manifest)
                    loading = False
                for name, value in self._inputs.items():
                    await setup.bind(worker, name, value)
        except WorkerLost as lost:
            self._pool.forget(self)
            if loading and not isinstance(lost.error, Parked):
                raise _LoadFailed(lost.error) from None
            raise lost.error from None
        except BaseException as error:
            self._drop(worker)
            if loading and isinstance(error, KernelError):
                raise _LoadFailed(error) from None
            raise
        return worker

    def _drop(self, worker: Worker, error: KernelError | None = None) -> None:
        worker.kill(error or KernelError("the worker was ended"))
        self._pool.forget(self)

    async def _load(self, worker: Worker, manifest: Mapping[str, Any]) -> None:
        random = await self._chunk(payloads.from_record(manifest["random"]))
        careful = self._failed_loads >= FAILED_LOADS
        worker.ask(setup.load_command(manifest, random, careful=careful))
        for slot in manifests.slots(manifest):
            if slot.data is None:
                worker.send_raw(frames.chunk_frame(await self._chunk(slot)))
        loaded = await setup.reply(worker, frames.LoadedFrame, self._chunks)
        self._failed_loads = FAILED_LOADS if careful else 0
        self._lost += tuple(Unrestorable(name, reason) for name, reason in loaded.lost)

    async def _chunk(self, slot: payloads.Slot) -> bytes:
        if slot.data is not None:
            return slot.data
        return payloads.check_bytes(slot, await self._fetched(slot.id))

    async def _fetched(self, chunk: str) -> bytes:
        if self._fetch is None:
            raise NotRestorable(f"the chunk {chunk!r} cannot be read: open with `fetch`")
        return await self._fetch(chunk)

    # The rest of the port

    async def set_variable(self, name: str, value: Encoded) -> None:
        """Bind an input; it is part of the next checkpoint."""
        async with self._using:
            self._inputs[name] = value
            worker = self.worker
            if worker is not None and worker.lost is None:
                self._pool.busy(self)
                try:
                    async with _in_time():
                        await setup.bind(worker, name, value)
                except (WorkerLost, KernelError):
                    # The next worker gets it with the other inputs.
                    self._drop(worker)
                except BaseException:
                    self._drop(worker)
                    raise
                finally:
                    self._pool.idle(self)

    async def checkpoint(self) -> Checkpoint:
        """Checkpoint now."""
        async with self._using:
            worker = await self._ready()
            try:
                worker.limit(self.settings.limits.memory_bytes)
                worker.ask({"id": 0, "do": "checkpoint"})
                async with _in_time():
                    frame = await setup.reply(worker, frames.CheckpointFrame, self._chunks)
                return self._keep(frame.checkpoint)
            except WorkerLost as lost:
                self._pool.forget(self)
                raise lost.error from None
            except BaseException:
                self._drop(worker)
                raise
            finally:
                self._pool.idle(self)

    async def restore(self, manifest: Mapping[str, Any]) -> None:
        """Put this namespace in place of the present one; of the other engine's, the plain data."""
        plain: dict[str, Encoded] = {}
        others: dict[str, str] = {}
        own: Mapping[str, Any] | None = manifest
        if manifest.get("engine") == monty_heap.ENGINE:
            plain, others = await monty_heap.plain_variables(manifest, self._fetched)
            own = None
        else:
            manifests.check(manifest)
        async with self._using:
            if self.worker is not None:
                self._pool.reclaim(self)
            self.manifest = own
            self._inputs = plain
            self._lost = tuple(Unrestorable(name, reason) for name, reason in others.items())
            self._chunks.reset(own)

    async def variables(self) -> list[Variable]:
        """List the names of the namespace, from its last checkpoint."""
        return [] if self.manifest is None else manifests.variables(self.manifest)

    async def interrupt(self) -> None:
        """Ask the running cell to stop with KeyboardInterrupt."""
        if self._run is not None and self.worker is not None:
            self.worker.interrupt()

    async def give_up(self) -> bool:
        """End the running cell if all its open calls are suspended, and tell whether they were."""
        if self._run is not None:
            return self._run.give_up()
        if self._record is None or not self._record.waiting:
            return False
        self._give_up.set()  # parked: it holds no worker
        return True

    async def park(self) -> None:
        """Give the worker back; a waiting cell is run again from its start when it is needed."""
        if self.worker is None or (self._run is not None and self.reclaim_cost is None):
            return
        if self._run is None and self._using.locked():
            return  # it is being made ready for a cell
        if self._run is not None:
            self.worker.kill(Parked("the worker was given back"))
        else:
            self._pool.reclaim(self)

    async def close(self) -> None:
        """Let go of the worker and of everything in memory."""
        self._closed = True
        if self.worker is not None:
            self._pool.reclaim(self)
        self.manifest = None
        self._inputs.clear()


class _LoadFailed(Exception):
    """A worker could not load the namespace."""

    def __init__(self, error: KernelError) -> None:
        super().__init__(str(error))
        self.error = error


def _was_dead(kept: Worker | None, error: KernelError, seconds: float) -> bool:
    """Tell whether an idle worker had ended before it got to its cell, which another can then run.

    It may also have ended by its cell, which is too short then for a second try to cost anything.
    """
    died = kept is not None and not kept.heard and type(error) is KernelDied
    return died and seconds < _AT_ONCE_SECONDS


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Bound the time that a worker takes to do something outside of a cell."""
    try:
        async with asyncio.timeout(_SETUP_SECONDS) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise KernelDied(
            f"the worker did not answer within {_SETUP_SECONDS:g} seconds; the namespace is as at "
            "its last checkpoint: try again"
        ) from None
