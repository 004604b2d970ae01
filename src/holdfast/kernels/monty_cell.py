"""One cell in a Monty session: the sandbox stops at every question, and the host answers it.

Monty asks for everything it does not have: a host function, a name, the time, a file. Calls go to
the eval's record; the clock is pinned to the eval's start and moves with the answers; files come
from read-only mounts, are pinned by digest and kept, and come from the record in a re-run; all
else is refused.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import stat
from collections.abc import Awaitable, Mapping
from typing import Any

import pydantic_monty

from holdfast.core import values
from holdfast.core.errors import UnsupportedValue
from holdfast.core.records import digest_id
from holdfast.kernels import monty_sandbox
from holdfast.kernels.call_record import CallRecord, Diverged, first_of
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.port import (
    MAX_KEPT_FILE_BYTES,
    CallKey,
    CellError,
    Encoded,
    FileRead,
    HostAnswer,
    HostCall,
    KernelLimits,
    LimitName,
)
from holdfast.kernels.worker.cell import denied, paging
from holdfast.kernels.worker.cell.host_calls import builtin_error
from holdfast.kernels.worker.determinism.file_versions import FileVersions

_UNWIND_SECONDS = 1.0
_READS = frozenset({"Path.read_text", "Path.read_bytes"})
_SLEEPS = frozenset({"system.sleep", "system.async_sleep", "time.sleep", "asyncio.sleep"})
_READING = (("r",), ("rb",))
_NO_GETENV = "os.getenv is not available: nothing is set; use os.environ.get(name, default)"
_LARGEST_PINNED = 64 << 20
# Modules that the sandbox does not have, because what they are for is a gate's to allow.
_GATED_MODULES = {
    **dict.fromkeys(("socket", "ssl", "http", "urllib"), denied.NETWORK),
    **dict.fromkeys(("subprocess", "multiprocessing"), denied.PROGRAMS),
}


class Limited(Exception):
    """The cell went over a limit; its sandbox must not be used again."""

    def __init__(self, limit: LimitName, detail: str = "") -> None:
        super().__init__(limit)
        self.limit = limit
        self.detail = detail


class GivenUp(Exception):
    """The cell waits for someone outside; it is run again when there is an answer."""


class _Open:
    """The one open call of the cell, as `on_call` can use it."""

    __slots__ = ("_cell", "_key")

    def __init__(self, cell: Cell, key: CallKey) -> None:
        self._cell, self._key = cell, key

    def suspend(self) -> None:
        self._cell.record.suspend(self._key)

    async def contents(self) -> dict[str, bytes]:
        files = self._cell.record.files
        missing = files.missing()
        if missing:
            raise files.not_kept(missing[0])
        return dict(files.contents)


class _TooMuchOutput(Exception):
    """Raised into Monty's print callback, which ends the cell."""


class Cell:
    """One run of one cell."""

    def __init__(
        self,
        record: CallRecord,
        limits: KernelLimits,
        started_at_ns: int,
        functions: Mapping[str, bool],
        roots: tuple[str, ...],
        offers_final: bool,
        give_up_seconds: float | None,
    ) -> None:
        self.final: Encoded | None = None
        self.files: list[FileRead] = []
        self.record = record
        self._give_up_seconds = give_up_seconds
        self._give_up = asyncio.Event()
        self._modules: Mapping[str, Any] = {}
        self._served = FileVersions(record.files.served(), record.files.total)
        self._limits = limits
        self._now_ns = started_at_ns
        self._functions = functions
        self._roots = roots
        self._offers_final = offers_final
        self._streams: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._printed = 0
        self._seconds_left = limits.wall_seconds

    def text(self, stream: str) -> str:
        """Return what was printed to a stream."""
        return "".join(self._streams[stream])

    async def run(
        self,
        session: Any,
        code: str,
        inputs: dict[str, Any],
        mounts: list[Any],
        modules: Mapping[str, Any],
    ) -> None:
        """Drive the cell to its end; Monty's own errors pass through.

        Its output is never looked at: Monty would make a Python value of it, whatever that costs.
        """
        self._modules = modules
        cwd = self._roots[0] if mounts else None
        started = session.feed_start(
            code, inputs=inputs, print_callback=self._print, mount=mounts, cwd=cwd
        )
        try:
            snapshot = await self._step(started)
            while not isinstance(snapshot, pydantic_monty.MontyComplete):
                snapshot = await self._answer(snapshot)
        except pydantic_monty.MontyRuntimeError as error:
            self._raise_limit(error)
            raise

    def _raise_limit(self, error: Any) -> None:
        if self._printed > self._limits.output_bytes:
            raise Limited("output") from None
        inner, message = error.exception(), str(error)
        if isinstance(inner, MemoryError) and "memory limit" in message:
            raise Limited("memory", message) from None
        if isinstance(inner, TimeoutError) and "time limit exceeded" in message:
            raise Limited("cpu", message) from None

    async def _step(self, step: Awaitable[Any]) -> Any:
        """Let the sandbox run on to its next question, within what is left of the wall clock."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(self._seconds_left):
                return await step
        except TimeoutError:
            raise Limited("wall" if self.final is None else "unwind") from None
        finally:
            self._seconds_left = max(self._seconds_left - (loop.time() - begun), 0.001)

    async def _answer(self, snapshot: Any) -> Any:
        if isinstance(snapshot, pydantic_monty.AsyncNameLookupSnapshot):
            return await self._step(snapshot.resume())
        if isinstance(snapshot, pydantic_monty.AsyncFutureSnapshot):
            unknown: Any = {"exception": RuntimeError("no host call is pending")}
            pending = snapshot.pending_call_ids
            return await self._step(snapshot.resume(dict.fromkeys(pending, unknown)))
        if snapshot.is_os_function:
            return await self._system(snapshot)
        return await self._step(snapshot.resume(await self._called(snapshot)))

    async def _called(self, snapshot: Any) -> Any:
        name = str(snapshot.function_name)
        if self.final is not None:
            return {"exception": SystemExit("the answer is fixed")}
        # Arguments are made when they are asked for, so those of an unknown name cost nothing. What
        # the engine's code calls, it has weighed.
        if name == monty_sandbox.WEIGH:
            allowed = await off_loop(monty_sandbox.weighed, snapshot.args[0])
            return {"return_value": allowed}
        if name == monty_sandbox.FINAL and self._offers_final:
            return self._finish(tuple(snapshot.args))
        if name == monty_sandbox.INSPECT:
            return self._inspect(tuple(snapshot.args), dict(snapshot.kwargs))
        called = name.startswith(monty_sandbox.CALL)
        name = name.removeprefix(monty_sandbox.CALL)
        if not called or name not in self._functions:
            return {"exception": NameError(f"name {name!r} is not defined")}
        args, kwargs = tuple(snapshot.args), dict(snapshot.kwargs)
        try:
            arguments = values.encode_json({"args": list(args), "kwargs": kwargs})
        except UnsupportedValue as error:
            return {"exception": TypeError(f"{name}: {error}")}
        digest = digest_id(arguments)
        ordinal, pure = self.record.ordinal(name, digest), self._functions[name]
        call = HostCall(
            name,
            Encoded("json", arguments),
            digest,
            ordinal,
            pure,
            args,
            kwargs,
            self.record.files.take_recent(pure=pure),
            _Open(self, CallKey(name, digest, ordinal)),
        )
        return self._result(await self._ask(call))

    async def _ask(self, call: HostCall) -> HostAnswer:
        answered: asyncio.Future[HostAnswer] = asyncio.get_running_loop().create_future()
        record = self.record
        record.on_failure = answered.set_exception
        record.ask(call, answered.set_result)
        # It is the only open call, so no other one of its cell can come to its turn first.
        await record.wait_for_answers()
        if not answered.done() and record.suspended:
            await first_of(answered, self._give_up.wait(), seconds=self._give_up_seconds)
            if not answered.done():
                raise GivenUp
        if not answered.done():
            raise Diverged(
                "the cell waits for calls that it made when it first ran and does not make now"
            )
        return await answered

    def give_up(self) -> bool:
        """End the cell if its open call is suspended; tell whether it is."""
        if self.record.suspended:
            self._give_up.set()
        return self.record.suspended

    def _result(self, answer: HostAnswer) -> Any:
        self._now_ns = max(self._now_ns, answer.at_ns)
        if answer.error:
            known = builtin_error(answer.error, answer.message)
            return {"exception": known or RuntimeError(f"{answer.error}: {answer.message}")}
        if answer.value is None:
            return {"return_value": None}
        return {"return_value": values.decode(answer.value.encoding, answer.value.data)}

    def _finish(self, args: tuple[Any, ...]) -> Any:
        try:
            self.final = Encoded(*values.encode(args[0] if args else None))
        except UnsupportedValue as error:
            return {"exception": TypeError(f"FINAL: {error}")}
        self._seconds_left = min(self._seconds_left, _UNWIND_SECONDS)
        return {"exception": SystemExit("the answer is fixed")}

    def _inspect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            wanted = dict(zip(("value", "start", "count"), args, strict=False)) | kwargs
            lines = paging.page(wanted["value"], wanted.get("start", 0), wanted.get("count"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return {"exception": TypeError(f"inspect(value, start=0, count=None): {error}")}
        try:
            self._print("stdout", "\n".join(lines) + "\n")
        except _TooMuchOutput:
            raise Limited("output") from None
        return {"return_value": None}

    def _print(self, stream: str, text: str) -> None:
        self._printed += len(text.encode("utf-8", "surrogatepass"))
        if self._printed > self._limits.output_bytes:
            raise _TooMuchOutput("too much output")
        self._streams[stream].append(text)

    # Questions to the system

    async def _system(self, snapshot: Any) -> Any:
        name = str(snapshot.function_name)
        if name == "os.getenv":
            # Its default may be anything, and would be made here before it could be weighed.
            return await self._step(snapshot.resume({"exception": RuntimeError(_NO_GETENV)}))
        args = snapshot.args
        if name == "import" and args and args[0] in self._modules:
            return await self._step(snapshot.resume({"return_value": self._modules[args[0]]}))
        now = datetime.datetime.fromtimestamp(self._now_ns / 1e9, datetime.UTC)
        if name == "datetime.now":
            zone = args[0] if args else None
            here = now.replace(tzinfo=None) if zone is None else now.astimezone(zone)
            return await self._step(snapshot.resume({"return_value": here}))
        if name == "date.today":
            return await self._step(snapshot.resume({"return_value": now.date()}))
        if name == "time.time":
            return await self._step(snapshot.resume({"return_value": self._now_ns / 1e9}))
        if name in _SLEEPS:
            await self._step(asyncio.sleep(float(args[0])))
            self._now_ns += int(float(args[0]) * 1e9)
            return await self._step(snapshot.resume({"return_value": None}))
        if name == "os.environ":
            return await self._step(snapshot.resume({"return_value": {}}))
        if name == "open" and args and args[1:] in _READING and self._is_served(args[0]):
            handle = pydantic_monty.MontyFileHandle(str(args[0]), args[1])
            return await self._step(snapshot.resume({"return_value": handle}))
        if name in _READS and args:
            return await self._read(snapshot, name, args[0])
        return await self._step(snapshot.resume_auto())

    # Files

    def _is_served(self, path: Any) -> bool:
        return _real(path) in self._served

    async def _read(self, snapshot: Any, name: str, path: Any) -> Any:
        """Answer the reading of a file: from the record in a re-run, else from the mounts."""
        files, real = self.record.files, _real(path)
        version = self._served.open(real, files.claimed)
        if version is None:
            found = await asyncio.to_thread(_pinned, real, self._roots)
            if found is None:
                return await self._step(snapshot.resume_auto())
            digest, content = found
        else:
            digest = version[1]
            content = files.contents[digest]
        read = FileRead(real, digest)
        self.record.read([read])
        if read not in self.files:
            self.files.append(read)
        if content is None:
            return await self._step(snapshot.resume_auto())
        files.keep(digest, content)
        if name == "Path.read_bytes":
            return await self._step(snapshot.resume({"return_value": content}))
        try:
            # As the sandbox reads text from its mounts: no line ends are changed.
            text: Any = {"return_value": content.decode()}
        except UnicodeDecodeError as error:
            text = {"exception": error}
        return await self._step(snapshot.resume(text))


def _real(path: Any) -> str:
    return os.path.realpath(str(path))


def _pinned(path: str, roots: tuple[str, ...]) -> tuple[str, bytes | None] | None:
    """Return the digest of a file of the mounts, and its content if it is small enough to keep.

    None for what is not a file there, or is too large to be read twice.
    """
    if not any(path.startswith(root.rstrip("/") + "/") for root in roots):
        return None
    try:
        # Without waiting: a pipe would block whoever opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_PINNED:
            return None
        if found.st_size > MAX_KEPT_FILE_BYTES:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest(), None
        content = file.read()
    return digest_id(content), content


def cell_error(error: Any, source: monty_sandbox.Source) -> CellError:
    """Return Monty's account of an exception in the form of the port."""
    inner = error.exception()
    frames = error.traceback()
    shown = error.display()
    if frames:
        shown = source.as_written(shown, frames[0].filename)
    for frame in frames:
        shown = shown.replace(frame.filename, "<cell>")
    own = [frame.line for frame in frames if frame.filename == frames[0].filename]
    line = own[-1] if own else None
    gate = _denied_gate(inner)
    if gate is not None:
        shown = f"{shown.rstrip()}\n{gate}"
    return CellError(type(inner).__name__, str(inner), shown, line)


def _denied_gate(error: BaseException) -> str | None:
    """Return which gate a cell ran into; None where its error is another one."""
    said = str(error)
    if isinstance(error, ModuleNotFoundError):
        module = said.partition("'")[2].partition("'")[0].partition(".")[0]
        return _GATED_MODULES.get(module)
    if isinstance(error, PermissionError):
        if said.startswith("[Errno 30] Read-only file system"):
            return denied.WRITING
        if said.startswith("Permission denied: "):
            return denied.READING
    return None
