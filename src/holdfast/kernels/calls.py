"""The host calls of one run of a cell: checked, asked, answered.

A call is handled right where its frame is read, so that nothing stands between the worker and the
function of the host but that function. Whatever the worker says about a call is checked first:
that the function is offered, that no more calls are open than it can have threads, how much they
hold. Arguments that are large to decode are decoded in a thread, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.core import values
from holdfast.core.errors import KernelProtocolError, UnsupportedValue
from holdfast.core.records import digest_id
from holdfast.kernels import frames
from holdfast.kernels.call_record import CallRecord
from holdfast.kernels.file_contents import FileContents
from holdfast.kernels.limit_watch import LimitWatch
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.port import CallKey, Encoded, FileRead, HostAnswer, HostCall
from holdfast.kernels.worker.wire import bounds
from holdfast.kernels.workers import Worker

HELD_BYTES = 4 * bounds.MAX_BYTES
_FIXED = "the answer is fixed"
_NULL = Encoded("json", b"null")
_PARTS, _TEXT = {"args", "kwargs"}, {str}


class _Open:
    """One open call, as `on_call` can use it."""

    __slots__ = ("_contents", "_key", "_record")

    def __init__(self, record: CallRecord, key: CallKey, contents: FileContents) -> None:
        self._record, self._key, self._contents = record, key, contents

    def suspend(self) -> None:
        self._record.suspend(self._key)

    async def contents(self) -> dict[str, bytes]:
        return await self._contents.fetch()


class Calls:
    """The calls of one run; `offered` says of every function whether it is pure."""

    def __init__(
        self,
        worker: Worker,
        record: CallRecord,
        watch: LimitWatch,
        offered: Mapping[str, bool],
        most: int,
    ) -> None:
        # The cell has called FINAL or says that it has ended: no call is made for it any more.
        self.over = False
        self.files: list[FileRead] = []
        self.contents = FileContents(worker, record.files)
        # Called when a call has begun to wait, when the last one has its answer, and with what is
        # wrong with one decoded apart.
        self.on_wait: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._worker = worker
        self._record = record
        self._watch = watch
        self._offered = offered
        self._most = most
        self._refused = 0
        self._held = 0
        self._decoding: set[asyncio.Task[None]] = set()

    @property
    def decoding(self) -> bool:
        """Return whether arguments are being decoded."""
        return bool(self._decoding)

    def close(self) -> None:
        """Decode no more."""
        self.contents.close()
        for task in self._decoding:
            task.cancel()

    def take(self, frame: frames.CallFrame) -> None:
        """Have a call answered; raise KernelProtocolError or Diverged if it cannot be one."""
        if self._record.open + len(self._decoding) > self._most:
            raise KernelProtocolError("the worker has more calls open than threads")
        if frame.function not in self._offered:
            raise KernelProtocolError(f"the worker called {frame.function!r}, which is not offered")
        data = bytes(frame.arguments)
        self._held += len(data)
        if self.over:
            # One thread may have been about to call when another called FINAL: no violation yet.
            self._refused += 1
            if self._refused > self._most:
                raise KernelProtocolError("the worker went on calling after its cell was over")
            self._refuse(frame, data, "CallError", _FIXED)
        elif len(data) <= bounds.SMALL_BYTES:
            self._ask(frame, data, _arguments(frame, data))
        elif self._held > HELD_BYTES:
            reason = f"the calls under way hold {self._held} bytes; make fewer at once"
            self._refuse(frame, data, "ValueError", f"{frame.function}: {reason}")
        else:
            self._watch.pause()
            task = asyncio.ensure_future(self._ask_large(frame, data))
            self._decoding.add(task)
            task.add_done_callback(self._decoding.discard)

    def read(self, reads: Sequence[tuple[str, str]]) -> None:
        """Note the files that the cell has read; raise Diverged if one is not what it was."""
        if reads:
            files = [FileRead(path, digest) for path, digest in reads]
            self._record.read(files)
            self.files.extend(files)

    async def _ask_large(self, frame: frames.CallFrame, data: bytes) -> None:
        try:
            excess = await off_loop(bounds.excess, "json", data)
            if excess:
                self._refuse(frame, data, "ValueError", f"{frame.function}: {excess}")
                return
            arguments = await off_loop(_arguments, frame, data)
            if self.over:
                self._refuse(frame, data, "CallError", _FIXED)
            else:
                self._ask(frame, data, arguments)
        except Exception as error:
            # Whatever it is: nobody else would hear of it, and the cell would wait for ever.
            self.on_failure(error)

    def _refuse(self, frame: frames.CallFrame, data: bytes, error: str, message: str) -> None:
        self._answer(frame.id, len(data), HostAnswer.failed(error, message, 0))

    def _ask(self, frame: frames.CallFrame, data: bytes, arguments: dict[str, Any]) -> None:
        record = self._record
        self.read(frame.files)
        digest = digest_id(data)
        ordinal = record.ordinal(frame.function, digest)
        pure = self._offered[frame.function]
        key = CallKey(frame.function, digest, ordinal)
        call = HostCall(
            frame.function,
            Encoded("json", data),
            digest,
            ordinal,
            pure,
            tuple(arguments["args"]),
            arguments["kwargs"],
            record.files.take_recent(pure=pure),
            _Open(record, key, self.contents),
        )
        record.threads = frame.threads
        self._watch.pause()
        record.ask(call, partial(self._answer, frame.id, len(data)))
        self.on_wait()

    def _answer(self, number: int, held: int, answer: HostAnswer) -> None:
        self._held -= held
        if not self._record.open and not self.over:
            self._watch.resume()
            self.on_resume()
        value = answer.value or _NULL
        self._worker.send(
            {
                "id": number,
                "encoding": value.encoding,
                "data": value.data,
                "error": answer.error,
                "message": answer.message,
                "at_ns": answer.at_ns,
                "claimed": self._record.files.claimed,
            }
        )


def _arguments(frame: frames.CallFrame, data: bytes) -> dict[str, Any]:
    try:
        arguments = values.check_canonical("json", data)
    except UnsupportedValue:
        arguments = None
    if type(arguments) is dict and arguments.keys() == _PARTS:
        args, named = arguments["args"], arguments["kwargs"]
        if type(args) is list and type(named) is dict and _TEXT.issuperset(map(type, named)):
            return arguments
    raise KernelProtocolError(f"the arguments of {frame.function!r} do not decode")
