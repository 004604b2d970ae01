"""One run of a cell in a worker, from the command to the frame that says it is done.

What the worker says meanwhile is believed only as far as it was checked: a call, a chunk, an
answer or a value that is not what it says it is ends the worker, and so does whatever has no place
in a run. A run that repeats an interrupted one also ends when it waits for calls that the cell
made then and does not make now.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core import values
from holdfast.core.errors import Corruption, KernelDied, KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.call_record import CallRecord, Diverged
from holdfast.kernels.calls import Calls
from holdfast.kernels.limit_watch import LimitWatch
from holdfast.kernels.manifest import Chunks
from holdfast.kernels.port import Encoded
from holdfast.kernels.worker.wire import bounds
from holdfast.kernels.workers import Worker

STALL_SECONDS = 2.0


class _Problem:
    """Something of the host's own that ends a run."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Run:
    """What one run of a cell does and has come to so far."""

    def __init__(
        self, worker: Worker, record: CallRecord, watch: LimitWatch, calls: Calls, chunks: Chunks
    ) -> None:
        self.record = record
        self.watch = watch
        self.calls = calls
        self.final: Encoded | None = None
        self._worker = worker
        self._chunks = chunks
        self._ended = False
        self._stall: asyncio.Task[None] | None = None
        # Whether the worker was asked how many threads sleep, and what it said last.
        self._probed = False
        self._sleeping = 0
        record.on_failure = calls.on_failure = self._fail

    async def done(self, command: dict[str, Any]) -> frames.DoneFrame:
        """Have the worker run a cell, and return what it says at its end."""
        self._worker.handler = self._handle
        self._worker.ask(command)
        # After it was asked: this is done while the worker wakes up.
        self.watch.start()
        if self.record.expecting:
            self._stall = asyncio.ensure_future(self._watch_stall())
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
        if self._stall is not None:
            self._stall.cancel()

    def _handle(self, frame: frames.Frame) -> bool:
        """Do at once what need not wait for the task that evaluates: calls, above all."""
        try:
            match frame:
                case frames.CallFrame():
                    self.calls.take(frame)
                case frames.ChunkFrame():
                    self._chunks.receive(frame)
                case frames.SleepingFrame() if self._probed:
                    self._probed, self._sleeping = False, frame.threads
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

    async def _watch_stall(self) -> None:
        """End a re-run in which every call waits for one that the cell does not make.

        A thread that computes or sleeps may still make it, but not for longer than a cell may take.
        """
        loop, record, worker = asyncio.get_running_loop(), self.record, self._worker
        before = worker.cpu_ns()
        since = began = asked = loop.time()
        while record.expecting:
            await asyncio.sleep(STALL_SECONDS / 20)
            spent, now = worker.cpu_ns(), loop.time()
            if not record.stuck:
                began = now
            waits = (self._probed or self._sleeping) and now - began < self.watch.wall_seconds
            if not record.stuck or waits or spent - before > 5_000_000:
                before, since = spent, now
            if record.stuck and not self._probed and now - asked > STALL_SECONDS / 4:
                self._probed, asked = True, now
                worker.probe()
            stalled = record.open >= record.threads or now - since > STALL_SECONDS
            if record.stuck and stalled and not self.calls.decoding and not record.skip():
                text = "the cell waits for calls that it made when it first ran and not now"
                self._fail(Diverged(text))


async def _check(part: frames.EncodedPart) -> None:
    """Raise KernelProtocolError unless a value can be read: it is about to be stored."""
    try:
        if len(part.data) <= bounds.SMALL_BYTES:
            values.decode(part.encoding, part.data)
            return
        excess = await asyncio.to_thread(bounds.excess, part.encoding, part.data)
        if excess:
            raise KernelProtocolError(f"the worker sent a value beyond its bounds: {excess}")
        await asyncio.to_thread(values.decode, part.encoding, part.data)
    except Corruption as error:
        raise KernelProtocolError(f"the worker sent an invalid value: {error}") from error
