"""A kernel session with a store in memory: what kernel tests and benchmarks drive cells with."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import values
from holdfast.core.errors import FileNotKept
from holdfast.kernels.port import (
    CallKey,
    CellResult,
    Checkpoint,
    Encoded,
    FileRead,
    HostAnswer,
    HostCall,
    Kernel,
    KernelLimits,
    KernelSession,
    KernelSettings,
    RecordedCall,
)

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
SUSPEND = object()
"""What a function returns whose call waits for someone outside; see `KernelDriver.resolve`."""


class KernelDriver:
    """Drives one session: answers its calls with plain functions and keeps its checkpoints."""

    def __init__(
        self, kernel: Kernel, settings: KernelSettings, answers: dict[str, Callable[..., Any]]
    ) -> None:
        self.kernel = kernel
        self.settings = settings
        self.answers = answers
        self.chunks: dict[str, bytes] = {}
        self.manifest: dict[str, Any] | None = None
        self.recorded: list[RecordedCall] = []
        # Of open calls that are suspended: what is known of them, and what answers them in place.
        self.suspended: dict[CallKey, RecordedCall] = {}
        self._answers: dict[CallKey, asyncio.Future[HostAnswer]] = {}
        self.asked = asyncio.Event()
        self.keeps_files = False
        self.stored_bytes = 0
        self._session: KernelSession | None = None

    @classmethod
    async def open(
        cls,
        kernel: Kernel,
        settings: KernelSettings | None = None,
        **answers: Callable[..., Any],
    ) -> KernelDriver:
        """Open a session; each answer is a function or coroutine function by its host name."""
        driver = cls(kernel, settings or KernelSettings(), answers)
        driver._session = await kernel.open(driver.settings, fetch=driver.fetch)
        return driver

    @property
    def session(self) -> KernelSession:
        """Return the session being driven."""
        assert self._session is not None
        return self._session

    async def fetch(self, identifier: str) -> bytes:
        """Read a chunk as a store would."""
        return self.chunks[identifier]

    async def run(
        self,
        code: str,
        *,
        started_at_ns: int = START_NS,
        recorded: Sequence[RecordedCall] = (),
        recorded_files: Sequence[FileRead] = (),
        limits: KernelLimits | None = None,
        give_up_seconds: float | None = 0.0,
    ) -> CellResult:
        """Evaluate a cell, record its calls and store its checkpoint."""
        self.recorded = [call for call in recorded if call.answer is not None]
        self.suspended.clear()
        self.asked.clear()
        result = await self.session.evaluate(
            code,
            started_at_ns=started_at_ns,
            on_call=self.answer,
            recorded=recorded,
            recorded_files=recorded_files,
            limits=limits,
            give_up_seconds=give_up_seconds,
        )
        self.store(result.checkpoint)
        return result

    def store(self, checkpoint: Checkpoint | None) -> None:
        """Keep a checkpoint and its new chunks."""
        self.stored_bytes = 0
        if checkpoint is not None:
            self.stored_bytes = sum(map(len, checkpoint.chunks.values()))
            self.chunks.update(checkpoint.chunks)
            self.manifest = checkpoint.manifest

    async def value(self, code: str) -> Any:
        """Evaluate a cell and return the value of its last expression; raise what it raised."""
        result = await self.run(code)
        if result.status != "ok":
            told = result.error.traceback if result.error else f"{result.limit} {result.detail}"
            raise AssertionError(f"the cell ended with {result.status}: {told}")
        if result.value is None:
            return None
        assert result.value.encoded is not None, f"no plain value: {result.value}"
        return values.decode(result.value.encoded.encoding, result.value.encoded.data)

    async def answer(self, call: HostCall) -> HostAnswer:
        """Answer a call with the function of its name, and record it."""
        files = call.files
        try:
            if self.keeps_files and not call.pure:
                kept = await call.contents()
                files = tuple(FileRead(f.path, f.digest, kept.get(f.digest)) for f in call.files)
            value = self.answers[call.function](*call.args, **call.kwargs)
            if inspect.isawaitable(value):
                value = await value
        except FileNotKept as error:
            answer = HostAnswer.failed("FileNotKept", str(error), self._now_ns())
        except Exception as error:
            answer = HostAnswer.failed(type(error).__name__, str(error), self._now_ns())
        else:
            if value is SUSPEND:
                return await self._suspend(call, files)
            answer = HostAnswer.ok(Encoded(*values.encode(value)), self._now_ns())
        self._record(call.key, call.pure, answer, files)
        return answer

    async def _suspend(self, call: HostCall, files: tuple[FileRead, ...]) -> HostAnswer:
        self.suspended[call.key] = RecordedCall(*call.key, call.pure, None, files)
        self._answers[call.key] = asyncio.get_running_loop().create_future()
        call.suspend()
        self.asked.set()
        return await self._answers[call.key]

    def resolve(self, key: CallKey, value: Any) -> None:
        """Record the answer to a suspended call; a cell that still waits gets it in place."""
        call = self.suspended.pop(key)
        answer = HostAnswer.ok(Encoded(*values.encode(value)), self._now_ns())
        self._record(key, call.pure, answer, call.files)
        if not self._answers[key].done():
            self._answers[key].set_result(answer)

    def _record(
        self, key: CallKey, pure: bool, answer: HostAnswer, files: tuple[FileRead, ...]
    ) -> None:
        self.recorded.append(RecordedCall(*key, pure, answer, files))

    def _now_ns(self) -> int:
        return START_NS + (len(self.recorded) + 1) * SECOND_NS

    @property
    def record(self) -> list[RecordedCall]:
        """Return everything that a log would have of the calls of the last cell."""
        return [*self.recorded, *self.suspended.values()]

    async def reopen(self, kernel: Kernel | None = None) -> KernelDriver:
        """Let go of the session and open another one from its last checkpoint."""
        await self.session.close()
        self.kernel = kernel or self.kernel
        self._session = await self.kernel.open(
            self.settings, fetch=self.fetch, manifest=self.manifest
        )
        return self
