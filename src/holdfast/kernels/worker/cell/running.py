"""One cell: compile, run, take the value of its last expression, say how it ended.

Everything a cell prints is captured within bounds, head and tail, with its true size. `FINAL` and
interrupts unwind by BaseException, so that `except Exception` in the cell does not stop them.
"""

from __future__ import annotations

import sys

from holdfast.kernels.worker.cell import render
from holdfast.kernels.worker.cell.denied import denied_gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AWAIT_AT_TOP = 0x2000
AST_ONLY = 0x0400
COROUTINE = 0x0080


class Stopped(BaseException):
    """The cell is over; not for the cell to catch."""


class Final(Stopped):
    """`FINAL` was called."""


class OutputLimit(Stopped):
    """The cell printed more than its limit."""


class Interrupted(KeyboardInterrupt):
    """The host asked the cell to stop."""


class _Output:
    """What every stream has that only takes what is written to it."""

    closed = False

    if TYPE_CHECKING:

        def write(self, given: Any) -> int: ...

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Capture(_Output):
    """A text stream that keeps its head and its tail and counts everything."""

    encoding = "utf-8"
    errors = "replace"
    newlines = None
    line_buffering = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer = BinaryCapture(self)
        self.reset(0, 0)

    def reset(self, fit: int, limit: int) -> None:
        """Begin with nothing captured."""
        self._fit, self._limit = fit, limit
        self._parts: list[str] = []
        self._kept = 0
        self._tail: list[str] = []
        self._tail_kept = 0
        self._bytes = 0
        self.size = 0
        self.buffer.reset()

    @property
    def overflowed(self) -> bool:
        """Return whether more was printed than the limit allows, in whichever thread."""
        return 0 < self._limit < self._bytes

    def unlimit(self) -> None:
        """Take what comes after the cell's own end without raising."""
        self._limit = 0

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.size += len(text)
        self._bytes += len(text if text.isascii() else text.encode("utf-8", "surrogatepass"))
        room = self._fit - self._kept
        head, rest = text[:room], text[room:]
        if head:
            self._parts.append(head)
            self._kept += len(head)
        if rest:
            self._tail.append(rest[-self._fit :])
            self._tail_kept += len(self._tail[-1])
            if self._tail_kept > 4 * self._fit:
                joined = "".join(self._tail)[-self._fit :]
                self._tail, self._tail_kept = [joined], len(joined)
        if self.overflowed:
            raise OutputLimit
        return len(text)

    def excerpt(self) -> list[Any]:
        """Return [head, tail, size]."""
        self.unlimit()
        self.buffer.finish()
        head, tail = "".join(self._parts), "".join(self._tail)
        if self.size <= len(head):
            return [head, "", self.size]
        if len(head) + len(tail) == self.size and self.size <= self._fit:
            return [head + tail, "", self.size]
        half = self._fit // 2
        return [head[:half], (head[half:] + tail)[-half:], self.size]

    def reconfigure(self, **options: Any) -> None:
        pass


class BinaryCapture(_Output):
    """What programs write bytes to: they are text of the stream, whatever they are."""

    def __init__(self, stream: Capture) -> None:
        self._stream = stream
        self._decoder: Any = None

    def reset(self) -> None:
        """Begin with nothing written."""
        self._decoder = None

    def finish(self) -> None:
        """Show the beginning of a character that never ended."""
        if self._decoder is not None:
            self._stream.write(self._decoder.decode(b"", True))

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self._decoder is None:
            import codecs

            # A character may be written in parts.
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream.write(self._decoder.decode(view))
        return view.nbytes

    def __reduce__(self) -> Any:
        return getattr, (self._stream, "buffer")


class Sources:
    """The text of every cell that functions still come from, for tracebacks and checkpoints."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        self.confined = False
        """Whether an operation that is not permitted was refused by the capability."""

    def add(self, filename: str, text: str, offset: int = 0) -> None:
        """Keep a text; `offset` is how many lines of its cell came before it."""
        new = [line + "\n" for line in text.split("\n")]
        end = offset + len(new)
        lines = self.lines.setdefault(filename, [])
        lines.extend(["\n"] * (end - len(lines)))
        lines[offset:end] = new
        linecache = sys.modules.get("linecache")
        if linecache is not None:
            self._publish(linecache, filename)

    def publish(self) -> None:
        """Let tracebacks and `inspect.getsource` see the cells."""
        import linecache

        for filename in self.lines:
            self._publish(linecache, filename)

    def _publish(self, linecache: Any, filename: str) -> None:
        lines = self.lines[filename]
        linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)


def run(source: str, filename: str, namespace: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression, or None."""
    flags = AWAIT_AT_TOP
    text = source.rstrip()
    body, newline, last_line = text.rpartition("\n")
    if not newline:
        last_line = last_line.lstrip()
    if last_line[:1].strip():
        # A line that is an expression, below lines that are statements, needs no tree to be found.
        try:
            value = compile("\n" * text.count("\n") + last_line, filename, "eval", flags, True)
            before = compile(body, filename, "exec", flags, True) if newline else None
        except SyntaxError:
            pass
        else:
            return _execute([before, value] if before is not None else [value], namespace)
    import ast

    tree: Any = compile(source, filename, "exec", AST_ONLY | flags, True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    codes = [compile(tree, filename, "exec", flags, True)] if tree.body else []
    if last is not None:
        codes.append(compile(last, filename, "eval", flags, True))
    return _execute(codes, namespace)


def _execute(codes: list[Any], namespace: dict[str, Any]) -> Any:
    """Run the parts of a cell and return the value of the last."""
    result = None
    if not any(code.co_flags & COROUTINE for code in codes):
        for code in codes:
            result = eval(code, namespace)
        return result
    import asyncio

    async def main() -> Any:
        # All in one event loop: what a line starts or waits on may be awaited in the last one.
        result = None
        for code in codes:
            result = eval(code, namespace)
            if code.co_flags & COROUTINE:
                result = await result
        return result

    return asyncio.run(main())


def describe_error(error: BaseException, sources: Sources) -> dict[str, Any]:
    """Return type, message, traceback and line of an error; only the model's lines are shown."""
    message, line = "", None
    try:
        import traceback

        sources.publish()
        summary = traceback.TracebackException.from_exception(error, limit=-200)
        line = _only_cells(summary, sources, set())
        text = "".join(summary.format())
        message = str(error)
        gate = denied_gate(error, sources.lines) if sources.confined else None
        text += "" if gate is None else f"({gate})\n"
    except Exception as failure:
        message = f"(no traceback: {type(failure).__name__})"
        text = f"{type(error).__qualname__}: {message}\n"
    return {
        "type": type(error).__qualname__,
        "message": _cut(message, 4000),
        "traceback": _cut(text, 12000),
        "line": line,
    }


def show_thread_errors(threading: Any, sources: Sources) -> None:
    """Show an error that ends a thread in the way of one that ends the cell."""

    def excepthook(args: Any, /) -> None:
        # These end the cell itself, or a thread on purpose.
        if args.exc_value is None or isinstance(args.exc_value, (Stopped, SystemExit)):
            return
        name = args.thread.name if args.thread is not None else threading.get_ident()
        text = describe_error(args.exc_value, sources)["traceback"]
        try:
            print(f"Exception in thread {name}:\n{text}", end="", file=sys.stderr)
        except OutputLimit:
            return  # The stream is known to have overflowed.

    threading.excepthook = excepthook


def show_warnings(warnings: Any, sources: Sources) -> None:
    """Let a warning name its place only if that is a line of the model."""
    plain = warnings.formatwarning

    def formatwarning(
        message: Any, category: Any, filename: str, lineno: int, line: str | None = None
    ) -> str:
        if filename in sources.lines:
            return str(plain(message, category, filename, lineno, line))
        return f"{category.__name__}: {message}\n"

    warnings.formatwarning = formatwarning


def _cut(text: str, fit: int) -> str:
    head, tail, size = render.text_excerpt(text, fit)
    if not tail:
        return head
    return f"{head}\n… {size - len(head) - len(tail)} characters left out …\n{tail}"


def _only_cells(summary: Any, sources: Sources, seen: set[int]) -> int | None:
    if summary is None or id(summary) in seen:
        return None
    seen.add(id(summary))
    summary.stack[:] = [frame for frame in summary.stack if frame.filename in sources.lines]
    for other in (
        summary.__cause__,
        summary.__context__,
        *(getattr(summary, "exceptions", None) or ()),
    ):
        _only_cells(other, sources, seen)
    lineno = summary.stack[-1].lineno if summary.stack else getattr(summary, "lineno", None)
    return int(lineno) if lineno is not None else None
