"""Who drives: the identity of this process as a lease holder, and how others see that it lives.

A lease is as alive as its owner's heartbeat. One thread per store handle renews it, so a busy
event loop loses nothing. Others judge a heartbeat by the clock that never jumps while they share
its boot, by the wall clock otherwise; and a holder whose process is gone from the same process
table is dead at once, without waiting for the expiry.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, HandleForked
from holdfast.core.ids import new_owner_id
from holdfast.stores.port import HEARTBEAT_SECONDS, LEASE_SECONDS
from holdfast.stores.threads import needing_thread

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last sign of life of an owner, as stored where other processes can read it."""

    owner: str
    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    ticks: float  # seconds since boot
    wall: float  # seconds since the epoch
    seconds: float  # how long this sign of life counts

    @property
    def holder(self) -> str:
        """Return who this is, for people."""
        return f"process {self.pid} on {self.host}"

    def expires_in(self) -> float:
        """Return the seconds until this heartbeat expires; negative once it has."""
        if self.boot and self.boot == boot_id():
            return self.ticks + self.seconds - ticks()
        return self.wall + self.seconds - time.time()

    def is_alive(self) -> bool:
        """Tell whether the owner must be taken for alive."""
        return self.expires_in() > 0 and not self._is_gone()

    def _is_gone(self) -> bool:
        same_table = (self.boot, self.namespace) == (boot_id(), pid_namespace())
        return same_table and self.boot != "" and process_start(self.pid) != self.started


_COLUMNS = tuple(field.name for field in fields(Heartbeat))


def read_heartbeat(columns: Sequence[Any]) -> Heartbeat:
    """Return a sign of life as it was stored; Corruption where it is damaged."""
    try:
        return msgspec.convert(dict(zip(_COLUMNS, columns, strict=True)), Heartbeat)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corruption(
            f"the heartbeat of owner {columns[0]!r} is damaged: {error}; if no process drives by "
            "it any more, acquire its sessions with takeover=True",
            owner=columns[0],
        ) from error


class Owner:
    """This process as a lease holder; `renew` stores its heartbeat and is called from a thread."""

    def __init__(
        self, renew: Callable[[Heartbeat], None], *, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self.id = new_owner_id()
        self._renew = renew
        self._seconds = lease_seconds
        self._interval = min(HEARTBEAT_SECONDS, lease_seconds / 3)
        self._pid = os.getpid()
        self._place = (socket.gethostname(), boot_id(), pid_namespace())
        self._started = process_start(self._pid) or ""
        self._stored_at = float("-inf")
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def check_process(self) -> None:
        """Raise HandleForked in a process that inherited this handle through fork()."""
        if os.getpid() != self._pid:
            check_process(self._pid)

    def heartbeat(self) -> Heartbeat:
        """Return a sign of life of this moment."""
        host, boot, namespace = self._place
        return Heartbeat(
            owner=self.id,
            host=host,
            boot=boot,
            namespace=namespace,
            pid=self._pid,
            started=self._started,
            ticks=ticks(),
            wall=time.time(),
            seconds=self._seconds,
        )

    def stored(self, sign: Heartbeat) -> None:
        """Note that a sign of life is stored."""
        self._stored_at = sign.ticks

    def is_fresh(self) -> bool:
        """Tell whether one was stored so lately that taking a lease needs none of its own."""
        return ticks() - self._stored_at < self._interval / 2

    @property
    def is_started(self) -> bool:
        """Tell whether the heartbeat is renewed, or was until it was stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to renew the heartbeat; harmless when it is running already.

        The caller has stored a heartbeat itself, in the transaction that takes the lease or lately.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._beat, name="holdfast-owner", daemon=True)
            with needing_thread("the heartbeat"):
                thread.start()
            self._thread = thread

    def stop(self) -> None:
        """End the renewing; blocks until a renewal under way is done."""
        self._stopped.set()
        if self._thread is not None and os.getpid() == self._pid:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._renew(self.heartbeat())
            except Exception:
                # The next beat tries again; appends are fenced by the epoch whatever happens here.
                _log.warning("the heartbeat of owner %s was not stored", self.id, exc_info=True)


def check_process(pid: int) -> None:
    """Raise HandleForked where a handle that one process opened is used in another."""
    if os.getpid() != pid:
        raise HandleForked(
            f"this store handle belongs to process {pid} and was used in its forked child "
            f"{os.getpid()}; open the store again there"
        )


def ticks() -> float:
    """Return seconds since boot, sleep included; comparable between processes of one boot."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of this machine, empty where the platform has none."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def pid_namespace() -> str:
    """Return which process table this process sees."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> str | None:
    """Return when a process started, in the platform's own terms; None where it is gone."""
    if sys.platform == "darwin":
        command = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    # Fields after the command name, which is in parentheses and may hold anything.
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    gone = not fields or fields[0] in ("Z", "X", "x")
    return None if gone else fields[19]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
