"""A kernel session with a store in memory: what kernel tests and benchmarks drive cells with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import values
from holdfast.kernels.port import (
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
    ) -> CellResult:
        """Evaluate a cell, record its calls and store its checkpoint."""
        self.recorded = [call for call in recorded if call.answer is not None]
        result = await self.session.evaluate(
            code,
            started_at_ns=started_at_ns,
            on_call=self.answer,
            recorded=recorded,
            recorded_files=recorded_files,
            limits=limits,
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
        at_ns = START_NS + (len(self.recorded) + 1) * SECOND_NS
        try:
            value = self.answers[call.function](*call.args, **call.kwargs)
            if inspect.isawaitable(value):
                value = await value
            answer = HostAnswer.ok(Encoded(*values.encode(value)), at_ns)
        except Exception as error:
            answer = HostAnswer.failed(type(error).__name__, str(error), at_ns)
        self.recorded.append(
            RecordedCall(call.function, call.digest, call.ordinal, call.pure, answer, call.files)
        )
        return answer

    async def reopen(self, kernel: Kernel | None = None) -> KernelDriver:
        """Let go of the session and open another one from its last checkpoint."""
        await self.session.close()
        self.kernel = kernel or self.kernel
        self._session = await self.kernel.open(
            self.settings, fetch=self.fetch, manifest=self.manifest
        )
        return self
