"""What a re-run must find as it was: the wall clock, random numbers, the files read.

The wall clock stands at the recorded start of the eval, moves to the recorded time of each answer
and by what each wait asks for, and ticks one microsecond per reading, so that code which waits for
it still ends. Random numbers come from one keyed stream whose position is part of the checkpoint.
The process has one number in every worker. Monotonic clocks stay real: timeouts of threads and
event loops need them. Modules are patched when they are first imported, because importing them at
start would cost more than the interpreter itself.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
import time

from holdfast.kernels.worker.determinism.file_reads import FileReads
from holdfast.kernels.worker.determinism.timed_waits import TimedWaits, replace_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TICK_NS = 1000
# No system numbers its processes as high, so whoever uses it as a number meets nobody.
PROCESS = 1 << 22
_NODE = 0x0242AC110002


class Clock:
    """The pinned wall clock."""

    def __init__(self) -> None:
        self.now_ns = 0

    def advance_to(self, moment_ns: int) -> None:
        """Move to a recorded moment; never backwards."""
        self.now_ns = max(self.now_ns, moment_ns)

    def read_ns(self) -> int:
        """Return the time and let it tick."""
        self.now_ns += TICK_NS
        return self.now_ns


class RandomStream:
    """A stream of bytes that depends on the session's seed and on how much was drawn, only."""

    def __init__(self) -> None:
        self.seed = bytes(32)
        self.drawn = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes of the stream."""
        if size < 0:
            raise ValueError("negative argument not allowed")
        parts = []
        for _ in range(-(-size // 64)):
            self.drawn += 1
            parts.append(hashlib.blake2b(self.drawn.to_bytes(8, "big"), key=self.seed).digest())
        return b"".join(parts)[:size]


class Pins:
    """All pinned things of a session."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.waits = TimedWaits(self.clock)
        self.random_stream = RandomStream()
        self.files = FileReads()
        # What checkpoints keep of generators that modules have for everyone, by module; how to ask
        # each of them, and its state when it was last seeded or set.
        self._kept: dict[str, Any] = {}
        self._generators: dict[str, _Generator] = {}
        self._seeded: dict[str, Any] = {}

    def install(self, after_import: dict[str, Callable[[Any], None]]) -> None:
        """Patch what is loaded already and wait for the rest to be imported."""
        _pin_time(time, self.clock, self.waits)
        replace_function(os, "urandom", lambda size, /: self.random_stream.take(size))
        replace_function(os, "getrandom", lambda size, flags=0: self.random_stream.take(size))
        patches: dict[str, Callable[[Any], None]] = {
            "_datetime": lambda module: _pin_datetime(module, self.clock),
            "random": self._pin_random,
            "uuid": _pin_uuid,
            "numpy.random": self._pin_numpy,
            **self.waits.patches(),
        }
        for name, patch in after_import.items():
            patches[name] = _both(patches[name], patch) if name in patches else patch
        for name in list(patches):
            if name in sys.modules:
                patches.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, _AfterImport(patches, self.random_stream))

    def open(self, seed: bytes) -> None:
        """Begin with a session's seed."""
        self.random_stream.seed = seed
        self.random_stream.drawn = 0
        self._kept = {}
        for name in self._generators:
            self._seed(name)

    def pin_process(self) -> None:
        """Give this process the number that it has in every worker.

        Not before it is confined: the rules name the real one.
        """
        getpid, kill = os.getpid, os.kill
        replace_function(os, "getpid", lambda: PROCESS)
        replace_function(
            os, "kill", lambda pid, signal, /: kill(getpid() if pid == PROCESS else pid, signal)
        )

    def random_state(self) -> bytes:
        """Return what the checkpoint keeps of generators: nothing if the seed alone makes it."""
        for name, generator in self._generators.items():
            try:
                state = generator.get()
            except Exception:
                continue  # the model has put another one in its place
            if state != self._seeded[name]:
                self._kept[name] = self._seeded[name] = state
        if not self._kept:
            return b""
        # Version 2 writes equal states as equal bytes: the later ones mark shared objects.
        alone = self._kept.get("random") if len(self._kept) == 1 else None
        return marshal.dumps(alone or self._kept, 2)

    def restore(self, drawn: int, random_state: bytes) -> None:
        """Go on from a checkpoint."""
        self.random_stream.drawn = drawn
        kept = marshal.loads(random_state) if random_state else {}
        self._kept = kept if type(kept) is dict else {"random": kept}
        for name in self._generators:
            self._seed(name)

    def _pin_random(self, module: Any) -> None:
        seed = module.Random.seed

        def pinned(generator: Any, a: Any = None, version: int = 2) -> None:
            seed(generator, self.random_stream.take(32) if a is None else a, version)

        module.Random.seed = pinned
        # Kept here: a cell may put anything in the place of the module's own functions.
        own = module.getstate.__self__
        self._generators["random"] = _Generator(own.seed, module.getstate, module.setstate)
        self._seed("random")

    def _pin_numpy(self, module: Any) -> None:
        """Pin what `numpy.random` has for everyone; its new generators draw from the stream."""
        get_state, set_state, seed = module.get_state, module.set_state, module.seed
        as_array = sys.modules["numpy"].frombuffer

        def get() -> Any:
            name, words, position, has_gauss, gauss = get_state()
            return str(name), words.tobytes(), int(position), int(has_gauss), float(gauss)

        def set_(state: Any) -> None:
            name, words, *rest = state
            set_state((name, as_array(words, "uint32"), *rest))

        def seed_(key: bytes) -> None:
            seed([int.from_bytes(key[at : at + 4], "big") for at in range(0, len(key), 4)])

        self._generators["numpy"] = _Generator(seed_, get, set_)
        self._seed("numpy")

    def _seed(self, name: str) -> None:
        generator = self._generators[name]
        if name in self._kept:
            generator.set(self._kept[name])
        else:
            # Its own key, so that importing a module late or early draws nothing from the stream.
            generator.seed(self.random_stream.seed)
        self._seeded[name] = generator.get()


class _Generator:
    """How to seed, ask and set the generator that a module has for everyone."""

    def __init__(
        self,
        seed: Callable[[bytes], None],
        get: Callable[[], Any],
        set_: Callable[[Any], None],
    ) -> None:
        self.seed, self.get, self.set = seed, get, set_


def _both(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    def patch(module: Any) -> None:
        first(module)
        second(module)

    return patch


class _AfterImport:
    """A finder that finds nothing itself and patches a module once it has been loaded."""

    def __init__(
        self, patches: dict[str, Callable[[Any], None]], random_stream: RandomStream
    ) -> None:
        self._patches = patches
        self._random_stream = random_stream

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader = _Loader(spec.loader, patch, self._random_stream)
                spec.loader = loader  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    def __init__(
        self, loader: Any, patch: Callable[[Any], None], random_stream: RandomStream
    ) -> None:
        self._loader = loader
        self._patch = patch
        self._random_stream = random_stream

    def exec_module(self, module: Any) -> None:
        # A restored worker may have imported it before: what that drew must make no difference.
        drawn = self._random_stream.drawn
        self._loader.exec_module(module)
        self._patch(module)
        self._random_stream.drawn = drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)


def _pin_time(module: Any, clock: Clock, waits: TimedWaits) -> None:
    gmtime, localtime, ctime, strftime = (
        module.gmtime,
        module.localtime,
        module.ctime,
        module.strftime,
    )
    asctime, sleep, clock_gettime = module.asctime, module.sleep, module.clock_gettime
    clock_gettime_ns = module.clock_gettime_ns

    def now() -> float:
        return clock.read_ns() / 1e9

    pinned: dict[str, Any] = {
        "time": now,
        "time_ns": lambda: clock.read_ns(),
        "sleep": lambda seconds, /: waits.sleep(sleep, seconds),
        "gmtime": lambda seconds=None: gmtime(now() if seconds is None else seconds),
        "localtime": lambda seconds=None: localtime(now() if seconds is None else seconds),
        "ctime": lambda seconds=None: ctime(now() if seconds is None else seconds),
        "asctime": lambda t=None: asctime(localtime(now()) if t is None else t),
        "strftime": lambda format, t=None: strftime(format, localtime(now()) if t is None else t),
        "clock_gettime": lambda which: now() if which == 0 else clock_gettime(which),
        "clock_gettime_ns": lambda which: (
            clock.read_ns() if which == 0 else clock_gettime_ns(which)
        ),
    }
    for name, function in pinned.items():
        replace_function(module, name, function)


def _pin_datetime(module: Any, clock: Clock) -> None:
    """Pin `datetime.now` and its like on the type itself, so that its instances stay its own."""
    import ctypes
    import gc

    real, utc = module.datetime, module.timezone.utc
    epoch = real(1970, 1, 1, tzinfo=utc)
    delta = module.timedelta

    def now(cls: Any, tz: Any = None) -> Any:
        moment = epoch + delta(microseconds=clock.read_ns() // 1000)
        if tz is None:
            return cls.fromtimestamp(moment.timestamp())
        return cls.fromtimestamp(moment.timestamp(), tz)

    def utcnow(cls: Any) -> Any:
        moment = (epoch + delta(microseconds=clock.read_ns() // 1000)).replace(tzinfo=None)
        return moment if cls is real else cls.combine(moment.date(), moment.time())

    def today(cls: Any) -> Any:
        return cls.now()

    attributes = gc.get_referents(real.__dict__)[0]
    for function in (now, utcnow, today):
        attributes[function.__name__] = classmethod(function)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(real))


def _pin_uuid(module: Any) -> None:
    # The node is this machine's network address by default; with one given, no system library is
    # asked, whose clock is the real one.
    uuid1 = module.uuid1
    replace_function(module, "getnode", lambda: _NODE)
    replace_function(
        module,
        "uuid1",
        lambda node=None, clock_seq=None: uuid1(_NODE if node is None else node, clock_seq),
    )
