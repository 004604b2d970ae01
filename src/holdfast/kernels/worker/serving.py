"""The worker's loop: open and confine once, then run cells as the host asks."""

from __future__ import annotations

import _thread
import builtins
import os
import signal
import sys
import types
from time import monotonic_ns

from holdfast.kernels.worker.cell import interactive, render, running
from holdfast.kernels.worker.cell.host_calls import CallError, HostCalls, HostFunction
from holdfast.kernels.worker.cell.paging import Inspect
from holdfast.kernels.worker.cell.running import Capture, Final, Interrupted, OutputLimit, Sources
from holdfast.kernels.worker.checkpoint.interpreter_settings import Interpreter
from holdfast.kernels.worker.checkpoint.makers import MAIN
from holdfast.kernels.worker.checkpoint.namespace import Namespace
from holdfast.kernels.worker.checkpoint.process_settings import ProcessSettings
from holdfast.kernels.worker.checkpoint.reduction import Reduction
from holdfast.kernels.worker.determinism.file_versions import FileVersions
from holdfast.kernels.worker.determinism.pins import Pins
from holdfast.kernels.worker.wire.bounds import excess
from holdfast.kernels.worker.wire.channel import Channel, InterruptMask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

STACK_BYTES = 96 << 20
QUICK_NS = 50_000_000
_ROOM_FILES = 4
_RESERVED_FILES = 2
ENCODED_CHARACTERS = 1 << 16
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Worker:
    """One session's interpreter."""

    def __init__(self) -> None:
        # As in an interactive session: what the worker was started with is not the cell's.
        sys.argv = [""]
        self.mask = InterruptMask(Interrupted)
        signal.signal(signal.SIGINT, self.mask.interrupt)
        self.channel = Channel(self.mask)
        self.interpreter = Interpreter()
        self.sources = Sources()
        self.pins = Pins()
        self.pins.install(
            {
                "linecache": lambda module: self.sources.publish(),
                "threading": lambda module: running.show_thread_errors(module, self.sources),
                "warnings": lambda module: running.show_warnings(module, self.sources),
            }
        )
        self.host_calls = HostCalls(self.channel, self.pins)
        main = types.ModuleType(MAIN)
        sys.modules[MAIN] = main
        self.variables = main.__dict__
        # The model's own copy: what it patches there does not reach the engine.
        self.builtins = types.ModuleType("builtins", builtins.__doc__)
        self.builtins.__dict__.update(vars(builtins))
        interactive.offer(self.builtins)
        sys.modules["builtins"] = self.builtins
        self.variables["__builtins__"] = self.builtins
        self.reduction = Reduction(self.variables, self.sources)
        self.reduction.error_type = self.host_calls.error_type
        self.namespace = Namespace(self.variables, self.reduction, self.channel.send_chunk)
        self.stdout, self.stderr = Capture("<stdout>"), Capture("<stderr>")
        self.process_settings = ProcessSettings({"stdout": self.stdout, "stderr": self.stderr})
        self.engine_names: dict[str, Any] = {}
        self.final: dict[str, Any] | None = None
        # Held by the thread that fixes the answer: the first one does.
        self._fixing = _thread.allocate_lock()
        # Descriptors to let go of when a cell has used up its own: telling of it takes some.
        self._reserve: list[int] = []
        # Whether the last checkpoint lacks something that this process still holds.
        self._stale = False
        self.cells = 0

    def serve(self, incoming: int, outgoing: int) -> NoReturn:
        """Do what the host asks over two pipes until it goes away."""
        self.channel.incoming, self.channel.outgoing = incoming, outgoing
        does = {
            "open": self.open,
            "load": self.load,
            "bind": self.bind,
            "checkpoint": self.checkpoint,
            "eval": self.evaluate,
        }
        while True:
            command = self.host_calls.command()
            try:
                does[command["do"]](command)
                self._make_ready()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
                self.channel.send({"kind": "failed", "message": text[:2000]})

    def open(self, command: dict[str, Any]) -> None:
        """Confine this process and offer the engine's names."""
        self.pins.open(command["seed"])
        self.pins.files.watch(
            tuple(
                root.rstrip("/") + "/" if os.path.isdir(root) else root for root in command["roots"]
            )
        )
        report = self._confine(command["policy"])
        self.sources.confined = report is not None
        self._admit(command["packages"])
        self.pins.pin_process()
        self._offer(command)
        self.process_settings.begin()
        self.channel.send({"kind": "opened", "confinement": report})

    def _confine(self, policy: dict[str, Any] | None) -> dict[str, Any] | None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        if hard == resource.RLIM_INFINITY or hard >= STACK_BYTES:
            # Deeply nested data is pickled on the machine stack.
            resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, hard))
        if policy is None:
            os.environ.clear()
            return None
        from holdfast.kernels import confinement

        keep = (0, 1, 2, self.channel.incoming, self.channel.outgoing)
        return confinement.confine(confinement.Policy(**policy, keep_fds=keep)).to_record()

    def _admit(self, packages: str) -> None:
        """Let packages be imported from a directory; before a namespace is loaded that needs them.

        Each thread of their libraries would take tens of megabytes of the memory limit, and sums
        that depend on how many there are would not be the same in a re-run.
        """
        if packages:
            sys.path.append(packages)
            self.process_settings.own_paths.add(packages)
            for name in _THREADS:
                os.environ[name] = "1"

    def _offer(self, command: dict[str, Any]) -> None:
        names: dict[str, Any] = {"inspect": Inspect(), "CallError": CallError}
        if command["final"]:
            names["FINAL"] = self._final
        for module, name, signature, doc in command["functions"]:
            path = f"{module}.{name}" if module else name
            function = HostFunction(self.host_calls, path, signature, doc)
            self.reduction.functions[path] = function
            if not module:
                names[name] = function
                continue
            holder = sys.modules.get(module)
            if holder is None:
                holder = sys.modules[module] = types.ModuleType(module)
            setattr(holder, name, function)
        CallError.__module__ = "_holdfast"
        self.reduction.engine = {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "bridge": self.host_calls,  # its name in stored checkpoints
            "inspect": names["inspect"],
        }
        if command["final"]:
            self.reduction.engine["FINAL"] = names["FINAL"]
        self.engine_names = names
        self._repair()

    def _final(self, value: Any = None, *more: Any, **named: Any) -> None:
        """Fix the answer of this turn and end the cell."""
        if more or named:
            raise TypeError("FINAL(value) takes one value; pass a tuple or a dict for several")
        if not self.host_calls.open:
            raise CallError("FINAL was called outside of a running cell")
        if self.final is None:
            encoded = self._encoded(value)
            with self._fixing:
                first = self.final is None
                if first:
                    self.final, self.host_calls.refusal = encoded, Final
            if first:
                self.channel.send({"kind": "final", "value": encoded})
        raise Final

    def _encoded(self, value: Any) -> dict[str, Any]:
        from holdfast.core import values

        try:
            encoding, data = values.encode(value)
        except Exception as error:
            raise TypeError(f"FINAL: {error}") from None
        too_much = excess(encoding, data)
        if too_much:
            raise TypeError(f"FINAL: {too_much}")
        return {"encoding": encoding, "data": data}

    def load(self, command: dict[str, Any]) -> None:
        """Fill the empty namespace from a checkpoint whose chunks follow in order."""
        take, careful = self.channel.receive_bytes, command["careful"]
        lost = self.namespace.load(command["stored"], take, careful=careful)
        self.pins.restore(command["drawn"], command["random"])
        self.interpreter.restore(command["recursion_limit"], command["decimal"])
        self.process_settings.restore(command["surroundings"])
        self.cells = command["cells"]
        self.channel.send({"kind": "loaded", "lost": lost})

    def bind(self, command: dict[str, Any]) -> None:
        """Bind an input."""
        from holdfast.core import values

        self.variables[command["name"]] = values.decode(command["encoding"], command["data"])
        self.channel.send({"kind": "bound"})

    def checkpoint(self, command: dict[str, Any]) -> None:
        """Send a checkpoint of the namespace as it is."""
        self.channel.send({"kind": "checkpoint", "checkpoint": self._checkpoint()})

    def _checkpoint(self) -> dict[str, Any]:
        dumped = self.namespace.dump()
        self._stale = not self.namespace.drop_unrestorable(dumped["variables"])
        drawn, random = self.pins.random_stream.drawn, self.pins.random_state()
        kept = {"cells": self.cells, "drawn": drawn, "random": random}
        kept["surroundings"] = self.process_settings.text()
        return dumped | kept | self.interpreter.settings()

    def evaluate(self, command: dict[str, Any]) -> None:
        """Run one cell and send everything about it."""
        self.cells += 1
        filename = f"<cell {self.cells}>"
        self.sources.add(filename, command["source"])
        self.reduction.forget_sources(filename)
        self.pins.clock.now_ns = command["started_at_ns"]
        self.pins.files.reset()
        served = command.get("served")
        if served is not None:
            versions = FileVersions(served["versions"], served["total"])
            self.pins.files.serve(versions, (self.builtins,))
        self.final = None
        sys.stdout, sys.stderr = self.stdout, self.stderr
        for stream in (self.stdout, self.stderr):
            stream.reset(command["output_fit"], command["output_limit"])
        self.host_calls.begin()
        began = monotonic_ns()
        outcome: dict[str, Any] = {"status": "ok", "value": None, "error": None}
        try:
            self.mask.unblock()
            try:
                value = running.run(command["source"], filename, self.variables)
                _join_threads()
                if self.stdout.overflowed or self.stderr.overflowed:
                    # It was raised in a thread, or the cell went on in spite of it.
                    raise OutputLimit
                outcome["value"] = self._view(value, command["value_fit"])
            finally:
                self.mask.block()
                self.interpreter.bound()
        except Final:
            pass
        except OutputLimit:
            outcome["status"] = "output"
        except BaseException as error:
            _close(self._reserve)
            for stream in (self.stdout, self.stderr):
                stream.unlimit()
            outcome["status"] = _failure(error)
            outcome["error"] = running.describe_error(error, self.sources)
        self.host_calls.end()
        if monotonic_ns() - began > QUICK_NS:
            self.channel.send({"kind": "ended"})
        self._finish(outcome)

    def _make_ready(self) -> None:
        """Do what the next cell needs and nobody waits for: the host has its answer."""
        self._repair()
        try:
            while len(self._reserve) < _RESERVED_FILES:
                self._reserve.append(os.dup(self.channel.incoming))
        except OSError:
            return  # The host was told that nothing more can be opened here.

    def _finish(self, outcome: dict[str, Any]) -> None:
        if self.final is not None:
            outcome["status"] = "final"
        repaired = self._repair()
        # Before the dump: one that ends during it may have changed what was dumped already.
        threads = _thread._count()
        # Whether a few files can be opened: nothing else closes what a cell has lost.
        has_room = _can_open(_ROOM_FILES - len(self._reserve), self.channel.incoming)
        if not has_room:
            _close(self._reserve)
        try:
            checkpoint = self._checkpoint()
        except MemoryError:
            checkpoint = None
            outcome["status"] = "memory"
        message = {
            "kind": "done",
            **outcome,
            "stdout": self.stdout.excerpt(),
            "stderr": self.stderr.excerpt(),
            "files": self.pins.files.reads,
            "repaired": repaired,
            "checkpoint": checkpoint,
            "threads": max(threads, _thread._count()),
            "stale": self._stale or not has_room,
        }
        self.channel.send(message)

    def _view(self, value: Any, fit: int) -> dict[str, Any] | None:
        if value is None:
            return None
        encoded: dict[str, Any] | None = None
        text, whole = render.bounded(value, ENCODED_CHARACTERS)
        if whole and type(value) is int and abs(value) < 2**53:
            # Loading what encodes values takes a new worker as long as all the rest.
            encoded = {"encoding": "json", "data": b"%d" % value}
        elif whole:
            try:
                encoded = self._encoded(value)
            except TypeError:
                encoded = None
        fits = whole and len(text) <= fit
        shown = (text, "", len(text)) if fits else render.excerpt(value, fit)
        return {"kind": render.kind_of(value), "text": shown, "encoded": encoded}

    def _repair(self) -> list[str]:
        """Put the engine's names back where the model assigned to them."""
        repaired = []
        self.variables["__name__"] = MAIN
        self.variables["__builtins__"] = self.builtins
        space = self.builtins.__dict__
        for name, value in self.engine_names.items():
            if space.get(name) is not value:
                space[name] = value
            if name in self.variables:
                if self.variables[name] is not value and not _is_module(self.variables[name], name):
                    repaired.append(name)
                del self.variables[name]
        return repaired


def _close(descriptors: list[int]) -> None:
    while descriptors:
        try:
            os.close(descriptors.pop())
        except OSError:
            continue


def _can_open(count: int, descriptor: int) -> bool:
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.dup(descriptor))
    except OSError:
        return False
    finally:
        _close(opened)
    return True


def _is_module(value: Any, name: str) -> bool:
    # `import inspect` binds a name of the engine; the engine's own object serves both.
    return type(value) is types.ModuleType and value.__name__ == name


def _failure(error: BaseException) -> str:
    if isinstance(error, Interrupted):
        return "interrupted"
    return "memory" if isinstance(error, MemoryError) else "error"


def _join_threads() -> None:
    """Wait for the threads the cell started, as a script does at its end."""
    threading = sys.modules.get("threading")
    if threading is None or threading.active_count() == 1:
        return
    pool = sys.modules.get("concurrent.futures.thread")
    idle = getattr(pool, "_threads_queues", ())
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread() and thread not in idle:
            thread.join()
