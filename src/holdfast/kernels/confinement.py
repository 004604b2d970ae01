"""Confinement of a worker by the operating system, applied from inside before any model code runs.

The worker gives everything up by itself: descriptors, environment, identity, capabilities, then
file, network and signal access (Landlock) and nearly all system calls (seccomp). Nothing of it can
be taken back. It needs no root and no helper program. `available` tells a host what this machine
can do; `confine` does it or raises, it never goes on half confined.

Only the standard library is used, and of it little: a worker loads this file by its path, without
the package, before anything that a session needs.
"""

from __future__ import annotations

import _thread
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

if __package__:
    from holdfast.kernels import landlock, libc, seccomp
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import landlock  # type: ignore[import-not-found,no-redef]
    import libc  # type: ignore[import-not-found,no-redef]
    import seccomp  # type: ignore[import-not-found,no-redef]

    del sys.path[0]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 1, 4, 8, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_LAST_POSSIBLE = 5, 6, 7, 63
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWUSER = 0x10000000
_M_ARENA_MAX = -8
_THREAD_STACK_BYTES = 2 << 20
_WORKER_UIDS = 0x70000000  # a range that distributions, containers and people leave alone
_NOBODY = 65534
_SIGKILL = 9
_PROGRAM_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
_NO_DESCRIPTOR_ABOVE = 0x7FFFFFFF

_prepared: landlock.Ruleset | None = None


class Unconfined(OSError):
    """The process could not be confined; no untrusted code may run in it."""


class Policy:
    """What a worker keeps: the paths it may read, its descriptors and its ceilings.

    What lies at `hidden_paths` is not readable although it lies below a path that is.

    The ceilings hold for the life of the process: `cpu_seconds` is a last resort behind the host's
    own count per cell. Dying with the parent means dying with the thread of it that started this
    process: only a host whose threads come and go turns it off.
    """

    def __init__(
        self,
        *,
        read_paths: tuple[str, ...] = (),
        hidden_paths: tuple[str, ...] = (),
        memory_bytes: int = 1 << 30,
        cpu_seconds: int | None = None,
        threads: int = 64,
        open_files: int = 128,
        keep_fds: tuple[int, ...] = (0, 1, 2),
        parent_pid: int | None = None,
        die_with_parent: bool = True,
    ) -> None:
        self.read_paths = read_paths
        self.hidden_paths = hidden_paths
        self.memory_bytes = memory_bytes
        self.cpu_seconds = cpu_seconds
        self.threads = threads
        self.open_files = open_files
        self.keep_fds = keep_fds
        self.parent_pid = parent_pid
        self.die_with_parent = die_with_parent


class Report:
    """What confinement there is (or would be) and what is lacking, with advice.

    `level` is "os" if untrusted code may run, else "none". `missing` says why not; `notes` are
    weaknesses that another barrier covers.
    """

    def __init__(
        self,
        landlock_abi: int,
        has_seccomp: bool,
        missing: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        uid: int | None = None,
    ) -> None:
        self.landlock_abi = landlock_abi
        self.seccomp = has_seccomp
        self.missing = missing
        self.notes = notes
        self.uid = uid

    @property
    def level(self) -> str:
        """Return "os" if the operating system confines, "none" if it does not."""
        return "none" if self.missing else "os"

    def to_record(self) -> dict[str, object]:
        """Return this report as plain data, for a frame or for `doctor`."""
        return {
            "level": self.level,
            "landlock_abi": self.landlock_abi,
            "seccomp": self.seccomp,
            "missing": list(self.missing),
            "notes": list(self.notes),
            "uid": self.uid,
        }


def available() -> Report:
    """Say what this machine can do, without starting a process or changing this one."""
    if sys.platform != "linux":
        return Report(0, False, (f"Linux (this is {sys.platform!r}); use kernel='monty' here",))
    machine = os.uname().machine
    version = landlock.abi()
    has_seccomp = seccomp.available(machine)
    missing, notes = [], []
    if version == 0:
        missing.append(
            "Landlock: needs Linux 5.13 or newer with 'landlock' in the kernel's lsm= list, "
            "and a container runtime that lets its system calls through"
        )
    if not has_seccomp:
        known = ", ".join(seccomp.ARCHITECTURES)
        missing.append(f"seccomp filters: need CONFIG_SECCOMP_FILTER on {known}, not {machine!r}")
    if 0 < version < 4:
        notes.append("Landlock before ABI 4 (Linux 6.7) has no TCP rules: only seccomp denies it")
    if 0 < version < 6:
        notes.append("Landlock before ABI 6 (Linux 6.12) has no signal scope: only seccomp has it")
    return Report(version, has_seccomp, tuple(missing), tuple(notes))


def prepare(read_paths: tuple[str, ...] = (), *, renew: bool = False) -> None:
    """Collect the rules that every worker has, ahead of `confine`, while nobody waits for it.

    Processes that are forked from here share one collection: only one of them may add to it, and
    `renew` makes another for the next.
    """
    global _prepared
    version = landlock.abi()
    if renew and _prepared is not None:
        os.close(_prepared.descriptor)
        _prepared = None
    if version and _prepared is None:
        _prepared = landlock.Ruleset(version)
        for path, access in _interpreter_paths():
            _prepared.allow(path, access)
        for path in read_paths:
            _prepared.allow(path, landlock.READ)


def confine(policy: Policy) -> Report:
    """Confine this process for good and say how; raise Unconfined if any part fails."""
    return _confine(policy, None)


def become(executable: str, arguments: list[str], policy: Policy) -> NoReturn:
    """Confine this process, then go on as another program; its own code is all it may execute.

    The filter knows the path by its address, Landlock by its file: what the program might execute
    later is itself again, as confined as before.
    """
    path = libc.buffer(os.fsencode(executable))
    argv = libc.texts([os.fsencode(argument) for argument in (executable, *arguments)])
    environment = libc.texts([])
    _confine(policy, path)
    libc.call("execve", path, argv, environment)
    raise Unconfined(libc.errno(), f"cannot execute {executable!r} confined")


def _confine(policy: Policy, executable: Any) -> Report:
    try:
        return _give_everything_up(policy, executable)
    except Unconfined:
        raise
    except OSError as error:
        raise Unconfined(error.errno, f"cannot confine: {error}") from error


def _give_everything_up(policy: Policy, executable: Any) -> Report:
    found = available()
    if found.missing:
        raise Unconfined(f"cannot confine: missing {'; '.join(found.missing)}")
    if len(os.listdir("/proc/self/task")) != 1:
        raise Unconfined("cannot confine a process that has started threads: confine it first")
    notes = list(found.notes)
    os.environ.clear()
    prepared = () if _prepared is None else (_prepared.descriptor,)
    _close_descriptors((*policy.keep_fds, *prepared))
    ruleset = _rules(found.landlock_abi, policy, executable)
    _be_the_first_to_be_killed()
    _limit(policy)
    uid = _give_up_identity(notes)
    _count_threads_alone(policy.threads, notes)
    _drop_capabilities()
    if policy.die_with_parent:
        _die_with_parent(policy.parent_pid)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    ruleset.restrict_self()
    path = None if executable is None else libc.address(executable)
    seccomp.install(os.uname().machine, execve_path=path)
    return Report(found.landlock_abi, True, (), tuple(notes), uid)


def _close_descriptors(keep: tuple[int, ...]) -> None:
    start = 0
    for fd in sorted(keep):
        if start < fd:  # an empty range would close everything
            os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, _NO_DESCRIPTOR_ABOVE)


def _rules(version: int, policy: Policy, executable: Any) -> landlock.Ruleset:
    if executable is None:
        prepare()
        ruleset = _prepared or landlock.Ruleset(version)
    else:
        ruleset = landlock.Ruleset(version)
        for path in (*_shared_libraries(), "/etc/ld.so.cache"):
            ruleset.allow(path, landlock.READ_FILE)
        for path in (os.fsdecode(executable.value), *_PROGRAM_LOADERS):
            ruleset.allow(path, landlock.READ_FILE | landlock.EXECUTE)
    for path in policy.read_paths:
        for visible, access in grants(path, policy.hidden_paths):
            ruleset.allow(visible, access)
    return ruleset


def grants(path: str, hidden: tuple[str, ...]) -> list[tuple[str, int]]:
    """List what may be read at and below a path when some of it is hidden.

    Landlock grants whole trees and takes nothing back: where a hidden path lies inside, each of
    the other entries is granted by itself, as they are now. The names in it can still be listed.
    """
    inside = [h for h in hidden if (h + "/").startswith(path.rstrip("/") + "/")]
    if not inside:
        return [(path, landlock.READ)]
    if path in inside:
        return []
    found = [(path, landlock.READ_DIR)]
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_symlink():  # its target may lie anywhere
                found += grants(entry.path, hidden)
    return found


def _interpreter_paths() -> list[tuple[str, int]]:
    """List what imports of the standard library read, and leave out installed packages."""
    library = _library()
    paths = [(library, landlock.READ_DIR), ("/usr/share/zoneinfo", landlock.READ)]
    with os.scandir(library) as entries:
        for entry in entries:
            if entry.name not in ("site-packages", "dist-packages"):
                is_file = entry.is_file(follow_symlinks=False)
                paths.append((entry.path, landlock.READ_FILE if is_file else landlock.READ))
    # Some distributions keep the compiled part of the library elsewhere.
    paths += [(path, landlock.READ) for path in sys.path if path.endswith("/lib-dynload")]
    paths += [(path, landlock.READ_FILE) for path in _shared_libraries()]
    return [*paths, ("/etc/ld.so.cache", landlock.READ_FILE)]


def _library() -> str:
    return os.path.dirname(os.path.realpath(os.__file__))


def _shared_libraries() -> list[str]:
    """List the places of shared objects: the directories of those that are mapped already.

    A directory that holds the whole Python installation counts only by its own `.so` files.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if ".so" in line}
    paths = []
    for directory in {os.path.dirname(path) for path in mapped if path.startswith("/")}:
        if _library().startswith(directory + "/"):
            with os.scandir(directory) as entries:
                paths += [entry.path for entry in entries if ".so" in entry.name]
        else:
            paths.append(directory)
    return paths


def _be_the_first_to_be_killed() -> None:
    """Offer this process to the kernel when the machine runs out of memory, not its host."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    os.write(fd, b"1000")
    os.close(fd)


def _limit(policy: Policy) -> None:
    # Each arena of the allocator and each thread's stack reserves address space by the megabyte.
    if libc.has("mallopt"):
        libc.call("mallopt", _M_ARENA_MAX, 2)
    _thread.stack_size(_THREAD_STACK_BYTES)
    limits = {
        resource.RLIMIT_AS: policy.memory_bytes,
        resource.RLIMIT_NOFILE: policy.open_files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if policy.cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = policy.cpu_seconds
    for kind, value in limits.items():
        _lower(kind, value)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _give_up_identity(notes: list[str]) -> int:
    """Let root go on as a user of its own, and return who this process is then.

    Only the file system identity stays: an interpreter or a work area below a directory that is
    closed to others must stay readable, and Landlock decides what is read anyway. The user is this
    worker's own, so that no other process may be signalled and its threads are counted alone.
    """
    if os.getuid() != 0:
        return os.getuid()
    # A parent that holds no CAP_KILL could not end a worker of another user.
    if not {_CAP_KILL, _CAP_SETGID, _CAP_SETUID} <= _held_capabilities():
        notes.append("runs as root without capabilities: this container cannot change users")
        return 0
    try:
        os.setgroups([])
    except OSError:
        notes.append("keeps its groups: this user namespace does not let them go")
    _prctl(_PR_SET_KEEPCAPS, 1)
    for uid in (_WORKER_UIDS + os.getpid(), _NOBODY):
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:
            continue
        _set_capabilities({_CAP_SETUID})
        libc.call("setfsuid", 0)
        return uid
    notes.append("runs as root without capabilities: this user namespace maps no other user")
    return 0


def _count_threads_alone(threads: int, notes: list[str]) -> None:
    """Limit this worker's threads, in a user namespace of its own where that is possible.

    The kernel counts threads per user and namespace: without a user or a namespace of its own the
    worker would be limited by what its user runs elsewhere.
    """
    alone = libc.call("unshare", _CLONE_NEWUSER) == 0
    if alone or os.getuid() >= _WORKER_UIDS:
        _lower(resource.RLIMIT_NPROC, threads)
    else:
        notes.append("threads are limited by memory only: user namespaces are not available")


def _held_capabilities() -> set[int]:
    with open("/proc/self/status", "rb") as status:
        line = next(line for line in status if line.startswith(b"CapPrm:"))
    mask = int(line.split()[1], 16)
    return {bit for bit in range(_CAP_LAST_POSSIBLE + 1) if mask >> bit & 1}


def _drop_capabilities() -> None:
    for capability in range(_CAP_LAST_POSSIBLE + 1):
        # Fails past the last capability, and without CAP_SETPCAP, when there is none to drop.
        libc.call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(set())


def _set_capabilities(capabilities: set[int]) -> None:
    low = sum(1 << bit for bit in capabilities if bit < 32)
    header, data = _words(_CAPABILITY_VERSION_3, 0), _words(low, low, 0, 0, 0, 0)
    if libc.call("capset", header, data) != 0:
        raise Unconfined(libc.errno(), "cannot set capabilities")


def _words(*numbers: int) -> Any:
    return libc.buffer(b"".join(number.to_bytes(4, sys.byteorder) for number in numbers))


def _die_with_parent(parent_pid: int | None) -> None:
    # Set after the change of user, which clears it; checked after it is set, lest a parent that
    # died in between leaves an orphan.
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if parent_pid is not None and os.getppid() != parent_pid:
        raise Unconfined(f"the parent {parent_pid} has ended")


def _prctl(option: int, value: int) -> None:
    if libc.call("prctl", option, value, 0, 0, 0) != 0:
        number = libc.errno()
        raise Unconfined(number, f"prctl {option}: {os.strerror(number)}")
