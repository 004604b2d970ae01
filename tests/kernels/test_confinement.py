"""What a process may still do after it has confined itself, as root and as nobody."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from identities import command_as, identities

from holdfast.kernels import confinement, landlock, seccomp

SOURCE = Path(confinement.__file__).parent
LOAD = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
import confinement, landlock
del sys.path[0]
from confinement import Policy, confine
"""

everybody = pytest.mark.parametrize("identity", identities())


def start(identity: str, script: str, **options: Any) -> subprocess.Popen[bytes]:
    # Without a site and in isolation, as a worker starts; without the package on the path.
    command = [sys.executable, "-I", "-S", "-B", "-c", LOAD + script]
    return subprocess.Popen(
        command_as(identity, command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"A_SECRET": "of the host"},
        **options,
    )


def run(identity: str, script: str, **options: Any) -> Any:
    output, errors = start(identity, script, **options).communicate(timeout=30)
    assert errors == b"", errors.decode()
    return json.loads(output)


@everybody
def test_it_loads_without_the_package_and_reports_what_it_did(identity: str) -> None:
    report = run(
        identity,
        """
report = confine(Policy())
import json
print(json.dumps([report.to_record(), "holdfast" in sys.modules]))
""",
    )
    record, package_loaded = report
    assert record["level"] == "os"
    assert record["missing"] == []
    assert record["landlock_abi"] == landlock.abi()
    assert not package_loaded
    if os.geteuid() == 0:
        assert record["uid"] != 0


@everybody
def test_the_host_sees_no_privileges_left(identity: str) -> None:
    worker = start(identity, "confine(Policy()); print('ready', flush=True); sys.stdin.read()")
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    worker.communicate(timeout=30)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert "0" not in status["Uid"].split()[:3]
    assert "0" not in status["Gid"].split()[:3]


@everybody
def test_environment_and_foreign_descriptors_are_gone(identity: str, public: Path) -> None:
    (public / "file").write_text("x")
    fd = os.open(public / "file", os.O_RDONLY)
    environment, open_fds = run(
        identity,
        """
import json, os
confine(Policy())
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
print(json.dumps([dict(os.environ), [fd for fd in range(256) if is_open(fd)]]))
""",
        pass_fds=(fd,),
    )
    os.close(fd)
    assert environment == {}
    assert open_fds == [0, 1, 2]


@everybody
def test_the_limits_are_in_force_and_hard(identity: str) -> None:
    limits = run(
        identity,
        """
confine(Policy(memory_bytes=300 << 20, cpu_seconds=7, open_files=50, threads=9))
import json, resource
names = ("AS", "CPU", "NOFILE", "NPROC", "FSIZE", "CORE")
print(json.dumps({n: resource.getrlimit(getattr(resource, "RLIMIT_" + n)) for n in names}))
""",
    )
    expected = {"AS": 300 << 20, "CPU": 7, "NOFILE": 50, "NPROC": 9, "FSIZE": 0, "CORE": 0}
    assert limits == {name: [value, value] for name, value in expected.items()}


@everybody
def test_the_standard_library_still_works(identity: str) -> None:
    outcome = run(
        identity,
        """
confine(Policy(memory_bytes=512 << 20))
import asyncio, concurrent.futures, importlib, json, threading
failed = []
for name in sorted(sys.stdlib_module_names):
    if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo", "turtle"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
    except ImportError as error:
        failed.append([name, str(error)])
async def both():
    return await asyncio.gather(asyncio.to_thread(lambda: 1), asyncio.sleep(0, 2))
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    squares = list(pool.map(lambda n: n * n, range(50)))
import sqlite3, zoneinfo, decimal, ctypes
print(json.dumps([
    [name for name, _ in failed if name not in ("msilib", "winreg", "tkinter", "curses")],
    asyncio.run(both()),
    squares[-1],
    sqlite3.connect(":memory:").execute("select 1").fetchall(),
    str(zoneinfo.ZoneInfo("Europe/Paris")),
]))
""",
    )
    assert outcome == [[], [1, 2], 2401, [[1]], "Europe/Paris"]


@everybody
def test_only_the_given_paths_are_read(identity: str, public: Path) -> None:
    area = public / "area"
    area.mkdir()
    (area / "inside").write_text("inside")
    (public / "single").write_text("single")
    (public / "outside").write_text("outside")
    paths = (str(area), str(public / "single"), str(public / "missing"))
    result = run(
        identity,
        f"""
confine(Policy(read_paths={paths!r}))
import json, os
def attempt(function, path):
    try:
        return function({str(public)!r} + path)
    except PermissionError:
        return "denied"
def read(path):
    return open(path).read()
print(json.dumps([
    attempt(read, "/area/inside"), attempt(read, "/single"), attempt(read, "/outside"),
    attempt(os.listdir, "/area"), attempt(os.listdir, ""),
]))
""",
    )
    assert result == ["inside", "single", "denied", ["inside"], "denied"]


@everybody
def test_installed_packages_are_not_read_with_the_standard_library(identity: str) -> None:
    site = Path(os.__file__).parent / "site-packages"
    package = next(site.rglob("__init__.py"), None)
    if package is None:
        package = site / "README.txt"
    denied = run(
        identity,
        f"""
confine(Policy())
import json
try:
    open({str(package)!r})
    print(json.dumps("read"))
except OSError as error:
    print(json.dumps(type(error).__name__))
""",
    )
    assert denied == ("PermissionError" if package.exists() else "FileNotFoundError")


@everybody
def test_rules_that_were_prepared_before_a_fork_are_renewed_for_the_next(
    identity: str, public: Path
) -> None:
    # The rules are one kernel object: what one child adds, its parent and its siblings have, too.
    (public / "first").write_text("of the first")
    (public / "second").write_text("of the second")
    lines = run(
        identity,
        f"""
import json, os
def child(own, other, write):
    confine(Policy(read_paths=({str(public)!r} + "/" + own,), keep_fds=(0, 1, 2, write)))
    told = [open({str(public)!r} + "/" + own).read()]
    try:
        told.append(open({str(public)!r} + "/" + other).read())
    except PermissionError:
        told.append("denied")
    os.write(write, json.dumps(told).encode())
    os._exit(0)
said = []
confinement.prepare()
for own, other in (("first", "second"), ("second", "first")):
    read, write = os.pipe()
    if os.fork() == 0:
        child(own, other, write)
    os.wait()
    confinement.prepare(renew=True)
    said.append(json.loads(os.read(read, 1000)))
print(json.dumps(said))
""",
    )
    assert lines == [["of the first", "denied"], ["of the second", "denied"]]


@everybody
def test_a_process_with_threads_is_refused(identity: str) -> None:
    refusal = run(
        identity,
        """
import json, threading
stop = threading.Event()
threading.Thread(target=stop.wait).start()
try:
    confine(Policy())
except confinement.Unconfined as error:
    print(json.dumps(str(error)))
stop.set()
""",
    )
    assert "threads" in refusal


@everybody
def test_without_landlock_nothing_is_confined_and_the_message_says_what_to_do(
    identity: str,
) -> None:
    refusal = run(
        identity,
        """
import json
landlock.abi = lambda: 0
try:
    confine(Policy())
except confinement.Unconfined as error:
    print(json.dumps(str(error)))
""",
    )
    assert "Landlock" in refusal
    assert "5.13" in refusal


@everybody
def test_the_worker_dies_with_its_parent(identity: str) -> None:
    worker = "confine(Policy(parent_pid=os.getppid())); print(os.getpid(), flush=True); spin()"
    parent = start(
        identity,
        f"""
import os, subprocess, time
def spin():
    while True:
        pass
if sys.argv[1:] == []:
    code = {LOAD!r} + "import os\\ndef spin():\\n    while True: pass\\n" + {worker!r}
    subprocess.Popen([sys.executable, "-I", "-S", "-B", "-c", code])
    time.sleep(1000)
""",
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watched = os.pidfd_open(pid)
    parent.kill()
    parent.communicate(timeout=30)
    ended, _, _ = select.select([watched], [], [], 10)
    if not ended:
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    os.close(watched)
    assert ended


@everybody
def test_an_orphan_does_not_start(identity: str) -> None:
    refusal = run(
        identity,
        """
import json
try:
    confine(Policy(parent_pid=1 << 22))
except confinement.Unconfined as error:
    print(json.dumps(str(error)))
""",
    )
    assert "has ended" in refusal


@everybody
def test_a_launcher_goes_on_as_one_program_that_is_confined(identity: str, public: Path) -> None:
    (public / "inside").write_text("inside")
    (public / "outside").write_text("outside")
    launcher = start(
        identity,
        f"""
confinement.become(
    "/bin/cat",
    [{str(public / "inside")!r}, {str(public / "outside")!r}],
    Policy(read_paths=({str(public / "inside")!r},)),
)
""",
    )
    output, errors = launcher.communicate(timeout=30)
    assert output == b"inside"
    assert b"Permission denied" in errors


@everybody
def test_a_launcher_can_execute_nothing_else(identity: str) -> None:
    # env is a program that executes another one.
    launcher = start(identity, "confinement.become('/usr/bin/env', ['/bin/echo', 'out'], Policy())")
    output, errors = launcher.communicate(timeout=30)
    assert output == b""
    assert b"not permitted" in errors or b"denied" in errors


def test_the_probe_says_what_is_here_without_changing_this_process() -> None:
    report = confinement.available()
    assert report.level == "os", report.missing
    assert Path("/etc/passwd").read_text()


def test_the_probe_advises_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    monkeypatch.setattr(seccomp, "available", lambda machine: False)
    report = confinement.available()
    assert report.level == "none"
    assert len(report.missing) == 2
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "monty" in confinement.available().missing[0]


def test_an_old_landlock_is_enough_but_its_gaps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 3)
    report = confinement.available()
    assert report.level == "os"
    assert len(report.notes) == 2


ALLOW, KILL, EPERM, EACCES, ENOSYS = 0x7FFF0000, 0x80000000, 0x50001, 0x5000D, 0x50026
_PID = 4242


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the filter on a system call, as the kernel would."""
    audit = seccomp.ARCHITECTURES[machine][1] if architecture is None else architecture
    words = {0: number, 4: audit}
    for index in range(6):
        argument = arguments[index] if index < len(arguments) else 0
        words[16 + 8 * index] = argument & 0xFFFFFFFF
        words[20 + 8 * index] = argument >> 32
    program = seccomp.program(machine, _PID, execve_path=0x7F0012345678)
    accumulator, position = 0, 0
    while True:
        code, jump_true, jump_false, operand = program[position]
        position += 1
        if code == 0x20:
            accumulator = words[operand]
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x15:
            position += jump_true if accumulator == operand else jump_false
        elif code == 0x35:
            position += jump_true if accumulator >= operand else jump_false
        else:
            assert code == 0x06
            return operand


# The numbers of the calls on (x86_64, aarch64), their arguments, and what the filter says.
CALLS = {
    "read": ((0, 63), (), ALLOW),
    "getsockopt": ((55, 209), (), ALLOW),
    "open to read": ((257, 56), (0, 0, 0o2000000), ALLOW),
    "open to write": ((257, 56), (0, 0, 1), EACCES),
    "open to append": ((257, 56), (0, 0, 0o2002), EACCES),
    "open to create": ((257, 56), (0, 0, 0o100), EACCES),
    "open to truncate": ((257, 56), (0, 0, 0o1000), EACCES),
    "newer open": ((437, 437), (), ENOSYS),
    "stream pair": ((53, 199), (1, 1 | 0o2000000), ALLOW),
    "datagram pair": ((53, 199), (1, 2), EPERM),
    "internet pair": ((53, 199), (2, 1), EPERM),
    "socket": ((41, 198), (2, 1), EPERM),
    "connect": ((42, 203), (), EPERM),
    "send": ((44, 206), (3, 0, 1, 0, 0, 0), ALLOW),
    "send to an address": ((44, 206), (3, 0, 1, 0, 0x7F0000000000, 16), EPERM),
    "send a message": ((46, 211), (), EPERM),
    "thread": ((56, 220), (0x3D0F00,), ALLOW),
    "fork": ((56, 220), (17,), EPERM),
    "thread in a namespace": ((56, 220), (0x103D0F00,), EPERM),
    "newer clone": ((435, 435), (), ENOSYS),
    "own signal": ((62, 129), (_PID, 9), ALLOW),
    "signal to another": ((62, 129), (_PID + 1, 9), EPERM),
    "signal to all": ((62, 129), (0xFFFFFFFF, 9), EPERM),
    "own thread": ((234, 131), (_PID, 7, 9), ALLOW),
    "own limits read": ((302, 261), (0, 9, 0, 0x7F0000000000), ALLOW),
    "own limits set": ((302, 261), (0, 9, 0x7F0000000000, 0), EPERM),
    "limits of another": ((302, 261), (1, 9, 0, 0), EPERM),
    "duplicate": ((72, 25), (0, 1030), ALLOW),
    "owner of signals": ((72, 25), (0, 8), EPERM),
    "is it a terminal": ((16, 29), (0, 0x5401), ALLOW),
    "type into a terminal": ((16, 29), (0, 0x5412), EPERM),
    "name a thread": ((157, 167), (15,), ALLOW),
    "survive the parent": ((157, 167), (1,), EPERM),
    "execute": ((59, 221), (0x7F0012345678,), ALLOW),
    "execute another": ((59, 221), (0x7F0012345679,), EPERM),
    "execute at the same low address": ((59, 221), (0x12345678,), EPERM),
    "execute at": ((322, 281), (0x7F0012345678,), EPERM),
    "change mode": ((90, 52), (), EPERM),
    "io_uring": ((425, 425), (), EPERM),
    "newest": ((462, 462), (), ENOSYS),
}


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("call", CALLS)
def test_the_filter_decides_as_meant(machine: str, call: str) -> None:
    numbers, arguments, expected = CALLS[call]
    column = seccomp.ARCHITECTURES[machine][0]
    assert verdict(machine, numbers[column], *arguments) == expected


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_a_call_of_another_architecture_ends_the_process(machine: str) -> None:
    assert verdict(machine, 0, architecture=0x40000003) == KILL
    if machine == "x86_64":
        assert verdict(machine, 0x40000000) == KILL


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_without_a_launcher_nothing_is_executed(machine: str) -> None:
    program = seccomp.program(machine, _PID)
    number = {"x86_64": 59, "aarch64": 221}[machine]
    assert all(operand != number for _, _, _, operand in program)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that every user of the machine can reach."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


ELSEWHERE = """
import _ctypes, sys
found = _ctypes.dlsym
def dlsym(library, name):
    if name in {"prctl", "mallopt", "capset", "unshare", "setfsuid", "syscall"}:
        raise OSError(f"dlsym: {name}: symbol not found")
    return found(library, name)
_ctypes.dlsym = dlsym
import holdfast.kernels.choose
sys.platform = "darwin"
print(holdfast.kernels.choose.confinement.available().missing)
"""


def test_a_c_library_without_linux_calls_is_no_obstacle_before_they_are_made():
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "use kernel='monty' here" in done.stdout
