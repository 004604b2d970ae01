"""One run of a cell in a worker, from the command to the frame that says it is done.

What the worker says meanwhile is believed only as far as it was checked: a call, a chunk, an
answer or a value that is not what it says it is ends the worker, and so does whatever has no place
in a run. A run that repeats an interrupted one also ends when it waits for calls that the cell
made then and does not make now, and every run ends when it only waits for someone outside.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core import values
from holdfast.core.errors import (
    KernelDied,
    KernelError,
    KernelProtocolError,
    UnsupportedValue,
)
from holdfast.kernels import frames
from holdfast.kernels.call_record import CallRecord, Diverged
from holdfast.kernels.calls import Calls
from holdfast.kernels.limit_watch import LimitWatch
from holdfast.kernels.manifest import Chunks
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.port import Encoded
from holdfast.kernels.worker.wire import bounds
from holdfast.kernels.workers import Worker

STALL_SECONDS = 2.0
# A cell that is given up too early is only run again, so this may be shorter.
IDLE_SECONDS = 0.5
POLL_SECONDS = 0.1
_PROBE_SECONDS = 0.3
_COMPUTING_NS = 5_000_000


class GivenUp(KernelError):
    """The cell only waits for someone outside; it is run again when there is an answer."""


class _Problem:
    """Something of the host's own that ends a run."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Run:
    """What one run of a cell does and has come to so far."""

    def __init__(
        self,
        worker: Worker,
        record: CallRecord,
        watch: LimitWatch,
        calls: Calls,
        chunks: Chunks,
        give_up_seconds: float | None = None,
    ) -> None:
        self.record = record
        self.watch = watch
        self.calls = calls
        self.final: Encoded | None = None
        self._worker = worker
        self._chunks = chunks
        self._ended = False
        # Watches whether any thread of the cell can go on, while that decides something.
        self._watching: asyncio.Task[None] | None = None
        self._give_up_seconds = give_up_seconds
        # Whether the worker was asked how many threads sleep, and what it said last.
        self.probed = False
        self.sleeping = 0
        record.on_failure = calls.on_failure = self._fail
        record.on_suspend = self._watch_threads

    async def done(self, command: dict[str, Any]) -> frames.DoneFrame:
        """Have the worker run a cell, and return what it says at its end."""
        self._worker.handler = self._handle
        self._worker.ask(command)
        # After it was asked: this is done while the worker wakes up.
        self.watch.start()
        if self.record.expecting:
            self._watch_threads()
        while True:
            frame = await self._worker.next_frame()
            match frame:
                case frames.DoneFrame():
                    if frame.value is not None and frame.value.encoded is not None:
                        await _check(frame.value.encoded)
                    self.calls.read(frame.files)
                    self.record.check_end()
                    return frame
                case frames.FinalFrame() if self.final is None:
                    await _check(frame.value)
                    self.final = Encoded(frame.value.encoding, frame.value.data)
                    self.watch.unwind()
                case frames.EndedFrame() if not self._ended:
                    self._ended = True
                    self.watch.ended()
                case frames.FailedFrame():
                    raise KernelDied(
                        f"the worker could not go on ({frame.message}); evaluate again"
                    )
                case _Problem():
                    raise frame.error
                case _:
                    name = type(frame).__name__
                    raise KernelProtocolError(
                        f"the worker sent a {name} while its cell was running"
                    )

    def close(self) -> None:
        """Listen no more."""
        self.watch.stop()
        self._worker.handler = None
        self._worker.end_command()
        self.calls.close()
        self.record.on_suspend = lambda: None
        if self._watching is not None:
            self._watching.cancel()

    def _handle(self, frame: frames.Frame) -> bool:
        """Do at once what need not wait for the task that evaluates: calls, above all."""
        try:
            match frame:
                case frames.CallFrame():
                    self.calls.take(frame)
                case frames.ChunkFrame():
                    if not self.calls.contents.receive(frame):
                        self._chunks.receive(frame)
                case frames.ContentsFrame():
                    self.calls.contents.finish(frame)
                case frames.SleepingFrame() if self.probed:
                    self.probed, self.sleeping = False, frame.threads
                case frames.FinalFrame() | frames.EndedFrame():
                    self.calls.over = True
                    return False
                case _:
                    return False
        except (KernelProtocolError, Diverged) as error:
            self._fail(error)
        return True

    def _fail(self, error: BaseException) -> None:
        self._worker.push(_Problem(error))

    def give_up(self) -> bool:
        """End this run if all open calls are suspended; tell whether they are."""
        if not self.record.suspended or self.final is not None:
            return False
        self._worker.kill(GivenUp("the cell waits for someone outside"))
        return True

    def _watch_threads(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._until_idle())

    async def _until_idle(self) -> None:
        """End a run none of whose threads can go on.

        A re-run in which every call waits for one that the cell does not make has diverged; a run
        in which every call waits for someone outside is given up. A thread that computes or sleeps
        may still make a call, but not for longer than a cell may take.
        """
        record = self.record
        idle = _Idle(self._worker, self.watch.wall_seconds)
        suspended_at: float | None = None
        while record.expecting or record.suspended:
            waits = record.stuck or record.suspended
            idle.observe(waits, self)
            everyone = record.open >= record.threads
            seconds = STALL_SECONDS if record.stuck or record.unclaimed else IDLE_SECONDS
            if waits and (everyone or idle.seconds > seconds) and not self.calls.decoding:
                if not record.suspended or record.unclaimed:
                    if not record.skip():
                        text = "the cell waits for calls that it made when it first ran and not now"
                        self._fail(Diverged(text))
                        return
                elif self._give_up_seconds is not None:
                    now = idle.now
                    suspended_at = now if suspended_at is None else suspended_at
                    if now - suspended_at >= self._give_up_seconds and self.give_up():
                        return
            else:
                suspended_at = None
            await asyncio.sleep(POLL_SECONDS)


class _Idle:
    """For how long no thread of a cell has computed, nor was in a wait that ends by itself."""

    def __init__(self, worker: Worker, wall_seconds: float) -> None:
        self._worker = worker
        self._wall_seconds = wall_seconds
        self._loop = asyncio.get_running_loop()
        self._cpu_ns = worker.cpu_ns()
        self.now = self._since = self._began = self._probed_at = self._loop.time()

    @property
    def seconds(self) -> float:
        """Return for how long."""
        return self.now - self._since

    def observe(self, waits: bool, run: Run) -> None:
        """Look at the threads again; `waits` says whether every open call waits."""
        spent, self.now = self._worker.cpu_ns(), self._loop.time()
        if not waits:
            self._began = self.now
        sleeping = run.probed or run.sleeping
        asleep = sleeping and self.now - self._began < self._wall_seconds
        if not waits or asleep or spent - self._cpu_ns > _COMPUTING_NS:
            self._cpu_ns, self._since = spent, self.now
        if waits and not run.probed and self.now - self._probed_at > _PROBE_SECONDS:
            run.probed, self._probed_at = True, self.now
            self._worker.probe()


async def _check(part: frames.EncodedPart) -> None:
    """Raise KernelProtocolError unless a value is encoded as it should be: it will be stored."""
    try:
        if len(part.data) <= bounds.SMALL_BYTES:
            values.check_canonical(part.encoding, part.data)
            return
        excess = await off_loop(bounds.excess, part.encoding, part.data)
        if excess:
            raise KernelProtocolError(f"the worker sent a value beyond its bounds: {excess}")
        await off_loop(values.check_canonical, part.encoding, part.data)
    except UnsupportedValue as error:
        raise KernelProtocolError(f"the worker sent an invalid value: {error}") from error
