"""Landlock: the kernel refuses file, TCP and signal access that no rule grants.

A ruleset names what it handles; everything handled and not granted is denied, for this process and
for all that it starts, for good. We handle everything the running kernel knows and grant reading
only. Only the standard library is used, so that a worker can load this file by its path.
"""

from __future__ import annotations

import os
import stat
import sys

if __package__:
    from holdfast.kernels import libc
else:
    import libc  # type: ignore[import-not-found,no-redef]

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
EXECUTE = 1 << 0
READ_FILE = 1 << 2
READ_DIR = 1 << 3
READ = READ_FILE | READ_DIR

_RULE_PATH_BENEATH = 1
_VERSION_QUERY = 1
_LOG_SAME_EXEC_OFF = 1 << 0
_FILE_ONLY = EXECUTE | 1 << 1 | READ_FILE | 1 << 14 | 1 << 15

# How many kinds of file access each ABI knows: bit 13 is REFER, 14 TRUNCATE, 15 IOCTL_DEV.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_TCP_BIND_CONNECT = 0b11
_SCOPE_ABSTRACT_UNIX_SIGNAL = 0b11


def abi() -> int:
    """Return the newest Landlock ABI of this kernel, 0 if there is none that we may use."""
    return max(libc.system_call(CREATE_RULESET, None, 0, _VERSION_QUERY), 0)


class Ruleset:
    """Rules being collected; `restrict_self` puts them in force for the calling thread."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
        attributes = (
            self._handled,
            _TCP_BIND_CONNECT if version >= 4 else 0,
            _SCOPE_ABSTRACT_UNIX_SIGNAL if version >= 6 else 0,
        )
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        self.descriptor = self._fd = _checked(
            libc.system_call(CREATE_RULESET, b"".join(map(_u64, attributes)), size, 0),
            "landlock_create_ruleset",
        )

    def allow(self, path: str, access: int) -> bool:
        """Grant access to what lies at and below a path; False if nothing is there."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if access & ~_FILE_ONLY and not stat.S_ISDIR(os.fstat(fd).st_mode):
                access &= _FILE_ONLY
            rule = _u64(access & self._handled) + fd.to_bytes(4, sys.byteorder)
            if libc.system_call(ADD_RULE, self._fd, _RULE_PATH_BENEATH, rule, 0) != 0:
                raise _failure(f"landlock_add_rule for {path!r}")
        finally:
            os.close(fd)
        return True

    def restrict_self(self) -> None:
        """Put the rules in force. The process must have no_new_privs set."""
        # Denials are not audited: code in a cell could fill the host's audit log with them.
        flags = _LOG_SAME_EXEC_OFF if self._version >= 7 else 0
        _checked(libc.system_call(RESTRICT_SELF, self._fd, flags), "landlock_restrict_self")
        os.close(self._fd)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise _failure(what)
    return result


def _failure(what: str) -> OSError:
    number = libc.errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _u64(number: int) -> bytes:
    return number.to_bytes(8, sys.byteorder)
