"""The kernel port: model-written Python with a namespace that lasts for a session.

An engine opens sessions; a session evaluates one cell at a time and returns everything about it as
data: output, value, error, the calls it made and the checkpoint of its namespace. A cell may call
host functions; each call reaches the caller's `on_call`, which records it and answers. The last
checkpoint is the only truth about a namespace: a session may lose its process at any moment (a
kill, a limit, parking) and goes on from there. Nothing in this module runs or unpickles anything.

A call may wait for someone outside: a person, a child session. `on_call` says so with
`call.suspend()` and simply stays pending; if it answers while the worker is still there, the cell
goes on in place. When every open call of a cell is suspended and none of its threads can run, the
cell is given up: `evaluate` cancels the pending `on_call` tasks and returns with status `waiting`,
the namespace is as at the cell's start and no worker is held. The caller evaluates the same code
again once a whole wait is over, with the answers among `recorded`.

A re-run sees what the cell saw: recorded answers (those of pure calls too) and, where the caller
kept them, the contents of the files that it read. A caller that keeps them asks for them with
`call.contents()` before it records a call that the cell may have to be re-run for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

Confinement = Literal["os", "language", "none"]
CellStatus = Literal["ok", "error", "final", "limit", "diverged", "waiting"]
LimitName = Literal["memory", "cpu", "wall", "output", "unwind"]

MAX_KEPT_FILE_BYTES = 8 << 20
"""A larger file that a cell reads is pinned by its digest alone: its content is not kept."""
MAX_KEPT_BYTES = 32 << 20
"""How much of all files that one cell reads is kept."""


class Encoded(msgspec.Struct, frozen=True):
    """One value in the stored encoding (see `holdfast.core.values`)."""

    encoding: str
    data: bytes


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What one cell may use. No time counts while the cell waits for the host.

    Memory, processes (which are the threads of a worker: it never starts another process) and
    open files are fixed when a session's worker starts; the others may differ from cell to cell.
    """

    memory_bytes: int = 1 << 30
    cpu_seconds: float = 60.0
    wall_seconds: float = 600.0
    output_bytes: int = 4 << 20
    processes: int = 64
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the host that code may call by name; `pure` calls may be repeated freely.

    `module` places it under an importable module (`import github; github.search(...)`); without
    one it is a plain name of the namespace.
    """

    name: str
    module: str = ""
    pure: bool = False
    signature: str = "(*args, **kwargs)"
    doc: str = ""

    @property
    def path(self) -> str:
        """Return the name under which calls of this function are recorded."""
        return f"{self.module}.{self.name}" if self.module else self.name


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """What a session's cells get: host functions, readable paths, limits and a seed.

    `depth` is how many sessions are above this one: where workers are scarce, deeper sessions go
    first, so that a tree of children always ends.
    """

    functions: tuple[HostFunction, ...] = ()
    read_roots: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # installed ones that cells may import
    hidden: tuple[str, ...] = ()  # what stays unreadable although it lies below a read root
    limits: KernelLimits = field(default_factory=KernelLimits)
    seed: int = 0
    depth: int = 0
    final: bool = True


class FileRead(msgspec.Struct, frozen=True):
    """A file that a cell opened for reading, pinned by the digest of its bytes (`sha256:…`).

    In a record it may carry the content, which the cell is then served when it runs again; without
    it the file must still have this digest, else the cell has diverged. A file that changed while
    the cell ran is one read for each content.
    """

    path: str
    digest: str
    content: bytes | None = None


class CallKey(NamedTuple):
    """What identifies a call within its eval: never its position."""

    function: str
    digest: str
    ordinal: int


class OpenCall(Protocol):
    """What a kernel can do about a call of a running cell until it is answered."""

    def suspend(self) -> None:
        """See `HostCall.suspend`."""
        ...

    async def contents(self) -> dict[str, bytes]:
        """See `HostCall.contents`."""
        ...


class HostCall(msgspec.Struct, frozen=True):
    """One call of a host function from inside a cell.

    It is known by (function, digest, ordinal), never by its position: `ordinal` counts earlier
    calls of this eval with the same function and the same arguments, from 0. `files` are the
    reads since the last call that is not pure, to be recorded with this one.
    """

    function: str
    arguments: Encoded
    digest: str
    ordinal: int
    pure: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    files: tuple[FileRead, ...] = ()
    open: OpenCall | None = None

    @property
    def key(self) -> CallKey:
        """Return what identifies this call within its eval."""
        return CallKey(self.function, self.digest, self.ordinal)

    def suspend(self) -> None:
        """Say that this call waits for someone outside; `on_call` then stays pending.

        It may still answer at any time. Once every open call of the cell is suspended the cell may
        be given up, and `on_call` is cancelled where it waits.
        """
        if self.open is not None:
            self.open.suspend()

    async def contents(self) -> dict[str, bytes]:
        """Return the content of every file that the cell has read so far, by digest.

        Raise FileNotKept if one of them is too large to be kept: the cell could not be re-run
        faithfully, so the call should be refused.
        """
        return {} if self.open is None else await self.open.contents()


class HostAnswer(msgspec.Struct, frozen=True):
    """The outcome of a host call: a value, or an error that the cell can catch by its name.

    `at_ns` is the recorded wall-clock time of the answer; the cell's clock moves to it.
    """

    value: Encoded | None
    at_ns: int
    error: str = ""
    message: str = ""

    @classmethod
    def ok(cls, value: Encoded, at_ns: int) -> HostAnswer:
        """Answer with a value."""
        return cls(value, at_ns)

    @classmethod
    def failed(cls, error: str, message: str, at_ns: int) -> HostAnswer:
        """Answer with an error: a built-in exception name or a name of its own."""
        return cls(None, at_ns, error, message)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of an interrupted eval as the log has it.

    The order of a list of them is the order of the answers, as the log has it: that of sequence
    numbers, never of clocks. One without an answer was requested but never answered: when the cell
    makes it again it goes to `on_call`, which knows from the log what may be done about it.
    """

    function: str
    digest: str
    ordinal: int
    pure: bool
    answer: HostAnswer | None
    files: tuple[FileRead, ...] = ()

    @property
    def key(self) -> CallKey:
        """Return what identifies this call within its eval."""
        return CallKey(self.function, self.digest, self.ordinal)


class Excerpt(msgspec.Struct, frozen=True):
    """A text, whole in `head` if it fits, else its head and its tail; `size` is the true length."""

    head: str
    tail: str
    size: int

    @property
    def whole(self) -> bool:
        """Return whether nothing was left out."""
        return len(self.head) == self.size


class ValueView(msgspec.Struct, frozen=True):
    """The value of a cell's last expression: its kind and size, its text, and itself if small."""

    kind: str
    text: Excerpt
    encoded: Encoded | None


class CellError(msgspec.Struct, frozen=True):
    """The exception that ended a cell; the traceback holds only the model's own lines."""

    type: str
    message: str
    traceback: str
    line: int | None


class Unrestorable(msgspec.Struct, frozen=True):
    """A name whose value, or a part of whose value, cannot be kept, and why."""

    name: str
    reason: str
    partly: bool = False


class Checkpoint(msgspec.Struct, frozen=True):
    """A namespace as data.

    `manifest` is a record without floats in which every chunk stands as a payload ref;
    `chunks` holds the bytes of those that this session's earlier checkpoints do not have.
    """

    manifest: dict[str, Any]
    chunks: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Variable:
    """One line of a namespace listing; `size` counts bytes of its stored form."""

    name: str
    type: str
    size: int
    preview: str
    restorable: bool = True


class CellResult(msgspec.Struct, frozen=True):
    """Everything about one evaluated cell.

    `checkpoint` is None when the namespace is as it was at the cell's start; `namespace_kept`
    says the same for the observation. `calls` lists the calls made, in the order they were made,
    those of the record included where a re-run diverged; what they were made with reached
    `on_call` and is not kept. `waiting` lists the open calls of a cell that was given up.
    """

    status: CellStatus
    stdout: Excerpt
    stderr: Excerpt
    value: ValueView | None = None
    final: Encoded | None = None
    error: CellError | None = None
    limit: LimitName | None = None
    detail: str = ""
    calls: tuple[CallKey, ...] = ()
    waiting: tuple[CallKey, ...] = ()
    files: tuple[FileRead, ...] = ()
    checkpoint: Checkpoint | None = None
    namespace_kept: bool = True
    unrestorable: tuple[Unrestorable, ...] = ()
    repaired: tuple[str, ...] = ()
    cpu_ns: int = 0


OnCall = Callable[[HostCall], Awaitable[HostAnswer]]
Fetch = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class KernelFlags:
    """What an engine is and what it can do; differences are declared, not hidden."""

    engine: str
    version: str
    confinement: Confinement
    full_python: bool
    threads: bool
    functions_restorable: bool
    calls_anywhere: bool
    packages: bool = False


class KernelSession(Protocol):
    """One session's namespace. One evaluation at a time; every method but `close` may restore."""

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
        """Run one cell from the last checkpoint and return what happened.

        `started_at_ns` pins the wall clock. With `recorded` calls this is a re-run of an
        interrupted cell: they are answered from the record, in recorded order; other calls reach
        `on_call`. `recorded_files` are reads that no recorded call carries: they hold until all
        recorded calls were made again.

        A cell that only waits for someone outside is given up after `give_up_seconds`: at once,
        by default, or never by itself (None), but always by `give_up`. Raises KernelDied if the
        worker ended unasked, with the keys of the calls made in `details["calls"]`; the namespace
        is then as before. Cancelling stops the cell; the namespace is then as before, too.
        """
        ...

    async def set_variable(self, name: str, value: Encoded) -> None:
        """Bind an input; it is part of the next checkpoint."""
        ...

    async def checkpoint(self) -> Checkpoint:
        """Checkpoint now (after binding inputs; `evaluate` does it by itself)."""
        ...

    async def restore(self, manifest: Mapping[str, Any]) -> None:
        """Put this namespace in place of the present one. Raises NotRestorable."""
        ...

    async def variables(self) -> list[Variable]:
        """List the names of the namespace, from its last checkpoint."""
        ...

    async def interrupt(self) -> None:
        """Ask the running cell to stop with KeyboardInterrupt."""
        ...

    async def give_up(self) -> bool:
        """End the running cell if all its open calls are suspended, and tell whether they were.

        `evaluate` then returns with status `waiting`.
        """
        ...

    async def park(self) -> None:
        """Give the worker back; a waiting cell is run again from its start when it is needed."""
        ...

    async def close(self) -> None:
        """Let go of the worker and of everything in memory."""
        ...


class Kernel(Protocol):
    """An engine. It owns the worker processes of the sessions it opened."""

    @property
    def flags(self) -> KernelFlags:
        """Return what this engine is and can do."""
        ...

    async def open(
        self,
        settings: KernelSettings,
        *,
        fetch: Fetch | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> KernelSession:
        """Open a session, empty or from a checkpoint whose chunks `fetch` reads by id.

        A checkpoint that `evaluate` returned must be readable through `fetch` before the session
        is used again: the session itself keeps no copy of the chunks.
        """
        ...

    async def close(self) -> None:
        """Stop every worker."""
        ...
