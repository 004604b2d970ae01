"""A seccomp filter that allows the system calls a Python interpreter needs, and no others.

An allow-list: a call that nobody thought of is refused, also one that a later kernel brings. Where
a call is only safe in one form (threads but not processes, a socket pair but not a socket, reading
but not writing) its arguments are checked. Refusals are errno values, so that code in a cell sees
a PermissionError instead of dying; a foreign architecture's call ends the process. Only the
standard library is used, so that a worker can load this file by its path.
"""

from __future__ import annotations

import os
import sys

if __package__:
    from holdfast.kernels import libc
else:
    import libc  # type: ignore[import-not-found,no-redef]

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Each entry: name, number on x86_64, number on aarch64 (which lacks the old calls marked "-").
_ALLOWED = """
read 0 63  write 1 64  close 3 57  lseek 8 62  readv 19 65  writev 20 66  pread64 17 67
pwrite64 18 68  preadv 295 69  pwritev 296 70  preadv2 327 286  pwritev2 328 287  dup 32 23
dup2 33 -  dup3 292 24  pipe 22 -  pipe2 293 59  close_range 436 436  poll 7 -  ppoll 271 73
select 23 -  pselect6 270 72  epoll_create 213 -  epoll_create1 291 20  epoll_ctl 233 21
epoll_wait 232 -  epoll_pwait 281 22  epoll_pwait2 441 441  eventfd 284 -  eventfd2 290 19

stat 4 -  lstat 6 -  fstat 5 80  newfstatat 262 79  statx 332 291  access 21 -  faccessat 269 48
faccessat2 439 439  readlink 89 -  readlinkat 267 78  getdents 78 -  getdents64 217 61
getcwd 79 17  chdir 80 49  fchdir 81 50  umask 95 166

mmap 9 222  munmap 11 215  mprotect 10 226  mremap 25 216  madvise 28 233  brk 12 214
msync 26 227  membarrier 324 283

futex 202 98  futex_waitv 449 449  set_robust_list 273 99  rseq 334 293  set_tid_address 218 96
exit 60 93  exit_group 231 94  restart_syscall 219 128  rt_sigaction 13 134
rt_sigprocmask 14 135  rt_sigreturn 15 139  rt_sigpending 127 136  rt_sigtimedwait 128 137
rt_sigsuspend 130 133  sigaltstack 131 132  getitimer 36 102  setitimer 38 103  alarm 37 -
pause 34 -  wait4 61 260  waitid 247 95

clock_gettime 228 113  clock_getres 229 114  clock_nanosleep 230 115  nanosleep 35 101
gettimeofday 96 169  time 201 -  times 100 153  getrusage 98 165  sched_yield 24 124
sched_getaffinity 204 123  getcpu 309 168  sysinfo 99 179  uname 63 160  getrandom 318 278

getpid 39 172  gettid 186 178  getppid 110 173  getuid 102 174  geteuid 107 175  getgid 104 176
getegid 108 177  getresuid 118 148  getresgid 120 150  getgroups 115 158  getpgrp 111 -
getpgid 121 155  getsid 124 156  getrlimit 97 163

recvfrom 45 207  shutdown 48 210  getsockname 51 204  getpeername 52 205  getsockopt 55 209
"""
_CHECKED = """
open 2 -  openat 257 56  socketpair 53 199  sendto 44 206  kill 62 129  tgkill 234 131
clone 56 220  fcntl 72 25  ioctl 16 29  prctl 157 167  prlimit64 302 261  arch_prctl 158 -
execve 59 221
"""
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CLONE3, _OPENAT2, _NEWEST = 435, 437, 450

_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SET_MODE_FILTER, _GET_ACTION_AVAIL, _TSYNC = 1, 2, 1
_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_X32_BIT = 0x40000000
_WHOLE = 0xFFFFFFFF

_OPEN_FOR_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000  # access mode, O_CREAT, O_TRUNC, O_TMPFILE
_CLONE_THREAD, _CLONE_OF_A_THREAD = 0x10000, 0x7D0F00  # what glibc and musl pass for a thread
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)  # F_DUPFD, F_GETFD … F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIO*
_PRCTL = (3, 15, 16, 21, 39, 0x53564D41)  # getters, PR_SET_NAME, PR_SET_VMA (names a mapping)

_Instruction = tuple[int, int, int, int]


def available(machine: str) -> bool:
    """Return whether this kernel can refuse system calls, and we know its numbers."""
    if machine not in ARCHITECTURES:
        return False
    action = _ERRNO.to_bytes(4, sys.byteorder)
    return libc.system_call(_SECCOMP[machine], _GET_ACTION_AVAIL, 0, action) == 0


def install(machine: str, *, execve_path: int | None = None) -> None:
    """Put the filter in force for every thread of this process.

    `execve_path` is the address of a path: an execve of exactly that pointer stays possible, for a
    launcher that goes on as another program.
    """
    instructions = program(machine, os.getpid(), execve_path)
    order = sys.byteorder
    code = b"".join(
        operation.to_bytes(2, order) + bytes((jump_true, jump_false)) + operand.to_bytes(4, order)
        for operation, jump_true, jump_false, operand in instructions
    )
    held = libc.buffer(code)
    # The length, and the pointer where the machine aligns it.
    block = len(instructions).to_bytes(2, order) + bytes(6) + libc.address(held).to_bytes(8, order)
    if libc.system_call(_SECCOMP[machine], _SET_MODE_FILTER, _TSYNC, block) != 0:
        error = libc.errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")


def program(machine: str, pid: int, execve_path: int | None = None) -> list[_Instruction]:
    """Assemble the filter for one machine and one process."""
    column, architecture = ARCHITECTURES[machine]
    numbers = _numbers(_CHECKED, column)
    checks: dict[str, list[_Instruction]] = {
        "open": _every([(_low(1), _OPEN_FOR_WRITING, 0)], _EACCES),
        "openat": _every([(_low(2), _OPEN_FOR_WRITING, 0)], _EACCES),
        # Stream pairs only: a datagram pair could be aimed at another socket's address.
        "socketpair": _every([(_low(0), _WHOLE, 1), (_low(1), 0xF, 1)]),
        "sendto": _every([(_low(4), _WHOLE, 0), (_high(4), _WHOLE, 0)]),
        "kill": _every([(_low(0), _WHOLE, pid)]),
        "tgkill": _every([(_low(0), _WHOLE, pid)]),
        "clone": _every([(_low(0), ~_CLONE_OF_A_THREAD & _WHOLE | _CLONE_THREAD, _CLONE_THREAD)]),
        "fcntl": _one_of(_low(1), _FCNTL),
        "ioctl": _one_of(_low(1), _IOCTL),
        "prctl": _one_of(_low(0), _PRCTL),
        "arch_prctl": _every([(_low(0), _WHOLE, 0x1002)]),  # ARCH_SET_FS, as a program starts
        "prlimit64": _every([(_low(0), _WHOLE, 0), (_low(2), _WHOLE, 0), (_high(2), _WHOLE, 0)]),
    }
    if execve_path is not None:
        low, high = execve_path & _WHOLE, execve_path >> 32
        checks["execve"] = _every([(_low(0), _WHOLE, low), (_high(0), _WHOLE, high)])

    body: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        body += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    for name, check in checks.items():
        if name in numbers:
            body += [(_JUMP_EQUAL, 0, len(check), numbers[name]), *check]
    allowed = sorted(_numbers(_ALLOWED, column).values())
    # The C library falls back to older calls when it is told that a newer one does not exist.
    tail: list[_Instruction] = [
        (_JUMP_EQUAL, 3, 0, _CLONE3),
        (_JUMP_EQUAL, 2, 0, _OPENAT2),
        (_JUMP_GREATER_EQUAL, 1, 0, _NEWEST + 1),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for index, number in enumerate(allowed):
        to_allow = len(allowed) - index - 1 + len(tail) - 1
        body.append((_JUMP_EQUAL, to_allow, 0, number))
    return body + tail


def _numbers(table: str, column: int) -> dict[str, int]:
    words = table.split()
    entries = zip(words[::3], words[1 + column :: 3], strict=True)
    return {name: int(number) for name, number in entries if number != "-"}


def _low(argument: int) -> int:
    return 16 + 8 * argument


def _high(argument: int) -> int:
    return 20 + 8 * argument


def _every(tests: list[tuple[int, int, int]], otherwise: int = _EPERM) -> list[_Instruction]:
    """Allow if each (word, mask, value) has word & mask == value."""
    body: list[_Instruction] = []
    for position, (word, mask, value) in enumerate(tests):
        to_refusal = 3 * (len(tests) - position - 1) + 1
        body += [(_LOAD, 0, 0, word), (_AND, 0, 0, mask), (_JUMP_EQUAL, 0, to_refusal, value)]
    return [*body, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | otherwise)]


def _one_of(word: int, values: tuple[int, ...]) -> list[_Instruction]:
    body: list[_Instruction] = [(_LOAD, 0, 0, word)]
    body += [(_JUMP_EQUAL, len(values) - index, 0, v) for index, v in enumerate(values)]
    return [*body, (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)]
