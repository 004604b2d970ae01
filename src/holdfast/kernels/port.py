"""The kernel port: model-written Python with a namespace that lasts for a session.

An engine opens sessions; a session evaluates one cell at a time and returns everything about it as
data: output, value, error, the calls it made and the checkpoint of its namespace. A cell may call
host functions; each call reaches the caller's `on_call`, which records it and answers. The last
checkpoint is the only truth about a namespace: a session may lose its process at any moment (a
kill, a limit, parking) and goes on from there. Nothing in this module runs or unpickles anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

Confinement = Literal["os", "language", "none"]
CellStatus = Literal["ok", "error", "final", "limit", "diverged"]
LimitName = Literal["memory", "cpu", "wall", "output", "unwind"]


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
    hidden: tuple[str, ...] = ()  # what stays unreadable although it lies below a read root
    limits: KernelLimits = field(default_factory=KernelLimits)
    seed: int = 0
    depth: int = 0
    final: bool = True


class FileRead(msgspec.Struct, frozen=True):
    """A file that a cell opened for reading, pinned by the digest of its bytes."""

    path: str
    digest: str


class CallKey(NamedTuple):
    """What identifies a call within its eval: never its position."""

    function: str
    digest: str
    ordinal: int


class HostCall(msgspec.Struct, frozen=True):
    """One call of a host function from inside a cell.

    It is known by (function, digest, ordinal), never by its position: `ordinal` counts earlier
    calls of this eval with the same function and the same arguments, from 0. `files` are the
    reads since the previous call, to be recorded with it.
    """

    function: str
    arguments: Encoded
    digest: str
    ordinal: int
    pure: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    files: tuple[FileRead, ...] = ()

    @property
    def key(self) -> CallKey:
        """Return what identifies this call within its eval."""
        return CallKey(self.function, self.digest, self.ordinal)


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
    """A call of an interrupted eval as the log has it, in the order of the answers.

    One without an answer was requested but never answered: when the cell makes it again it goes
    to `on_call`, which knows from the log what may be done about it.
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
    says the same for the observation. `calls` lists the calls made, in the order they were made;
    what they were made with reached `on_call` and is not kept.
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
    ) -> CellResult:
        """Run one cell from the last checkpoint and return what happened.

        `started_at_ns` pins the wall clock. With `recorded` calls this is a re-run of an
        interrupted cell: they are answered from the record, in recorded order; other calls reach
        `on_call`. Raises KernelDied if the worker ended unasked; the namespace is then as before.
        Cancelling stops the cell; the namespace is then as before, too.
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
