"""Host calls from inside a cell: sync-looking functions, whichever thread calls them.

A call sends its arguments in the stored encoding and waits. Whoever waits first reads the pipe for
all that wait, so a single-threaded cell has no switch of threads in its way and a threaded one has
as many calls under way as it has threads.
"""

from __future__ import annotations

import _thread
import builtins

from holdfast.kernels.worker.determinism.pins import Pins
from holdfast.kernels.worker.wire.bounds import excess
from holdfast.kernels.worker.wire.channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMMAND = 0
PROBE = -2
CONTENTS = -3
_ENDED = {"id": 0, "error": "CallError", "message": "the cell has ended", "at_ns": 0, "claimed": 0}
_ARGUMENTS = b'{"args":%b,"kwargs":%b}'


class CallError(RuntimeError):
    """A call that the host could not answer with a value."""


class _Pending:
    __slots__ = ("answer", "lock")

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None
        self.lock = _thread.allocate_lock()
        self.lock.acquire()

    def give(self, answer: dict[str, Any]) -> None:
        if self.answer is None:
            self.answer = answer
            self.wake()

    def wake(self) -> bool:
        if not self.lock.locked():
            return False
        self.lock.release()
        return True


class HostCalls:
    """The calls of the running cell."""

    def __init__(self, channel: Channel, pins: Pins) -> None:
        self.channel = channel
        self.pins = pins
        self._values: Any = None
        self.refusal: Callable[[], BaseException] | None = None
        self._open = False
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._state = _thread.allocate_lock()
        self._reading = False
        self._errors: dict[str, type[Exception]] = {"CallError": CallError}

    @property
    def open(self) -> bool:
        """Return whether a cell is running."""
        return self._open

    def begin(self) -> None:
        """Accept calls: a cell begins."""
        self._open = True
        self.refusal = None

    def end(self) -> None:
        """Refuse calls: the cell has ended, and threads it left behind get no answers."""
        self._open = False
        with self._state:
            for pending in self._pending.values():
                pending.give(_ENDED)

    def command(self) -> dict[str, Any]:
        """Return the next command of the host."""
        while not _thread._count():
            message: dict[str, Any] = self.channel.receive()
            if message["id"] == COMMAND:
                return message
        # A thread that a cell has left behind may be reading.
        pending = _Pending()
        with self._state:
            self._pending[COMMAND] = pending
        return self._wait(COMMAND, pending)

    def call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the host and return its answer, or raise its error."""
        values = self._values
        if values is None:
            from holdfast.core import values

            self._values = values
        try:
            named = values.encode_json(kwargs) if kwargs else b"{}"
            arguments = _ARGUMENTS % (values.encode_json(list(args)), named)
        except Exception as error:
            raise TypeError(f"{path}: {error}") from None
        too_much = excess("json", arguments)
        if too_much:
            raise ValueError(f"{path}: {too_much}")
        if self.refusal is not None:
            raise self.refusal()
        if not self._open:
            raise CallError(f"{path} was called outside of a running cell")
        pending = _Pending()
        with self._state:
            self._number += 1
            number = self._number
            self._pending[number] = pending
            reads = self.pins.files.reads
            self.pins.files.reads = []
        self.channel.send_call(number, path, arguments, reads)
        answer = self._wait(number, pending)
        self.pins.clock.advance_to(answer["at_ns"])
        self.pins.files.claimed = max(self.pins.files.claimed, answer["claimed"])
        if answer["error"]:
            raise self.error(answer["error"], answer["message"])
        return values.decode(answer["encoding"], answer["data"])

    def _wait(self, number: int, pending: _Pending) -> dict[str, Any]:
        lead = False
        try:
            while pending.answer is None:
                with self._state:
                    if not self._reading:
                        self._reading = lead = True
                if lead:
                    self._read_for_all(pending)
                else:
                    pending.lock.acquire()
            return pending.answer
        finally:
            with self._state:
                self._pending.pop(number, None)
                if lead:
                    self._reading = False
                    # Wake one of those that still wait: it reads on for the rest.
                    for other in self._pending.values():
                        if other.answer is None and other.wake():
                            break

    def _read_for_all(self, pending: _Pending) -> None:
        while pending.answer is None:
            message = self.channel.receive()
            if message["id"] == PROBE and self._open:
                sleeping = len(self.pins.waits.under_way)
                self.channel.send({"kind": "sleeping", "threads": sleeping})
            elif message["id"] == CONTENTS:
                self._send_contents(message["digests"])
            with self._state:
                found = self._pending.get(message["id"])
                if found is not None:
                    found.give(message)

    def _send_contents(self, digests: list[str]) -> None:
        """Send the files that the cell has read, as far as they were kept."""
        missing = []
        for digest in digests:
            content = self.pins.files.content(digest)
            if content is None:
                missing.append(digest)
            else:
                self.channel.send_chunk(digest, [content])
        self.channel.send({"kind": "contents", "missing": missing})

    def error(self, name: str, message: str) -> Exception:
        """Return the exception that tells the cell of a host error."""
        return builtin_error(name, message) or self.error_type(name)(message)

    def error_type(self, name: str) -> type[Exception]:
        """Return the exception class that stands for a host error's name."""
        builtin = getattr(builtins, name, None)
        if isinstance(builtin, type) and issubclass(builtin, Exception):
            return builtin
        found = self._errors.get(name)
        if found is None:
            found = type(name, (CallError,), {"__module__": "_holdfast"})
            self._errors[name] = found
        return found


def builtin_error(name: str, message: str) -> Exception | None:
    """Return a built-in exception for a host error's name, or none where no built-in has it.

    A class that cannot be made of one message (UnicodeDecodeError, ExceptionGroup) is stood in
    for by its nearest ancestor that can, whose message begins with the name.
    """
    known = getattr(builtins, name, None)
    if not isinstance(known, type) or not issubclass(known, Exception):
        return None
    text = message
    for cls in known.__mro__:
        if issubclass(cls, Exception):
            try:
                return cls(text)
            except TypeError:
                text = f"{name}: {message}"
    return None


class HostFunction:
    """A function of the host as a cell sees it."""

    def __init__(self, host_calls: HostCalls, path: str, signature: str, doc: str) -> None:
        self.__name__ = self.__qualname__ = path.rpartition(".")[2]
        self.__doc__ = doc
        self._holdfast_path = path
        self._signature = signature
        self._host_calls = host_calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._host_calls.call(self._holdfast_path, args, kwargs)

    def __repr__(self) -> str:
        return f"<host function {self._holdfast_path}{self._signature}>"
