"""Connections to one `events.db`: how they are opened, migrated and how their failures are named.

SQL stands in `queries.sql` and in the numbered migrations, never in Python. The bundled SQLite of
apsw is used because older ones can corrupt a WAL that two processes reset at once.

A file that this user may not write is opened to look. SQLite keeps locks and an index beside a
write-ahead log, which a mere reader cannot make: where there is a log he uses what its writer left,
and where there is none he reads the file as one that does not change, and looks whether it did. One
of an older format is read from a temporary copy that is brought to this one.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    NothingWritten,
    StoreFailed,
    StoreNewer,
    StoreUnsafe,
)
from holdfast.core.events import now
from holdfast.core.ids import friendly_name
from holdfast.stores.place import denied_error
from holdfast.stores.relational.statements import Migration, load_migrations, load_queries

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

OLDEST_SQLITE = 3_051_003
BUSY_SECONDS = 30.0
TRUNCATE_SECONDS = 2.0
LOOKS = 20
"""How often a file that changed under one who looks is read again."""
CHECKPOINT_PAGES = 4096
APPLICATION_ID = 0x486F6C64  # "Hold"
NAMES_SINCE = 3
"""The migration that adds names of sessions, which SQL cannot compute."""

FAILURES = (apsw.Error, OSError, UnicodeDecodeError)
"""What SQLite and the disk raise; a text that does not decode is a damaged one."""

_PACKAGE = "holdfast.stores.sqlite"

SQL = load_queries(_PACKAGE)


@functools.cache
def migrations() -> list[Migration]:
    """Return every migration in order."""
    return load_migrations(_PACKAGE)


class BusyWait:
    """A busy handler: waits for another process's short transactions, 1 to 10 ms at a time."""

    def __init__(self) -> None:
        self.seconds = BUSY_SECONDS
        self._deadline = 0.0

    def __call__(self, attempt: int) -> bool:
        """Wait a little; tell whether to try again."""
        if attempt == 0:
            self._deadline = time.monotonic() + self.seconds
        if time.monotonic() > self._deadline:
            return False
        time.sleep(min(0.001 * (attempt + 1), 0.01))
        return True


class Database:
    """The file, and how to connect to it."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
            raise StoreUnsafe(
                f"SQLite {apsw.sqlite_lib_version()} can corrupt a shared database; install "
                "apsw 3.51.3 or newer"
            )
        self.path = path
        self._vfs = vfs
        self._log = path.with_name(path.name + "-wal")
        self._index = path.with_name(path.name + "-shm")
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        self.read_only = os.access(path, os.F_OK) and not writable
        self.complete_copy: Callable[[apsw.Connection], object] = lambda _: None
        """Makes what a migrated copy lacks that SQL alone cannot make."""
        self._copy: tuple[tuple[int, ...], apsw.Connection] | None = None
        self._copying = threading.Lock()

    def connect(self) -> apsw.Connection:
        """Return a new connection with this store's settings."""
        with self.failures(StoreFailed, "open"):
            connection = apsw.Connection(str(self.path), vfs=self._vfs)
            connection.set_busy_handler(BusyWait())
            connection.pragma("synchronous", "FULL")
            connection.pragma("secure_delete", "ON")
            connection.pragma("trusted_schema", "OFF")
            connection.wal_autocheckpoint(CHECKPOINT_PAGES)
        return connection

    def look(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do something with a connection that only reads, over one moment of the file.

        It has a connection of its own: what an older one holds may be of another moment.
        """
        for _ in range(LOOKS):
            before = self._mark()
            failure: Exception | None = None
            try:
                connection = self._connect_to_look()
                try:
                    if int(connection.pragma("user_version")) in range(1, migrations()[-1][0]):
                        result = self._look_at_copy(connection, before, work)
                    else:
                        result = work(connection)
                finally:
                    connection.close(True)
            except (HoldfastError, *FAILURES) as error:
                failure = error
            if self._mark() == before:
                if failure is not None:
                    raise failure
                return result
        raise StoreFailed(
            f"{str(self.path)!r} cannot be written by this user and changed under every read of "
            "it; try again, or copy the folder to where you can write",
            path=str(self.path),
        )

    def _look_at_copy(
        self,
        connection: apsw.Connection,
        mark: tuple[int, ...],
        work: Callable[[apsw.Connection], T],
    ) -> T:
        """Do something with a copy of a database of an older format, brought to this one."""
        with self._copying:
            if self._copy is None or self._copy[0] != mark or self._find_log() is not None:
                copy = apsw.Connection("")  # a temporary file that goes with its connection
                with self.failures(StoreFailed, "copy"):
                    with copy.backup("main", connection, "main") as backup:
                        backup.step()
                    self._migrate(copy, migrations())
                    self.complete_copy(copy)
                self._copy = (mark, copy)
            return work(self._copy[1])

    def _connect_to_look(self) -> apsw.Connection:
        if not os.access(self.path, os.R_OK):
            raise denied_error(self.path)
        has_log = self._find_log() is not None
        # Whatever SQLite could still make beside the file would be in its owner's way.
        options = "mode=ro&readonly_shm=1" if has_log else "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        uri = f"{self.path.absolute().as_uri()}?{options}"
        if has_log and not os.access(self._index, os.R_OK):
            raise StoreFailed(
                f"{str(self.path)!r} cannot be written by this user, and {self._index.name!r}, "
                "without which its write-ahead log cannot be read, is not readable here; copy the "
                "folder to where you can write, or let its owner close or export it",
                path=str(self.path),
            )
        with self.failures(StoreFailed, "open"):
            connection = apsw.Connection(uri, flags=flags, vfs=self._vfs)
            connection.set_busy_handler(BusyWait())
            connection.pragma("trusted_schema", "OFF")
        return connection

    def _mark(self) -> tuple[int, ...]:
        """Return what stays the same while one who looks sees one moment of the file."""
        with self.failures(StoreFailed, "open"):
            log = self._find_log()
            if log is not None:
                return (log,)  # here SQLite keeps reads and writes apart
            found = self.path.stat()
            return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _find_log(self) -> int | None:
        """Return which file the write-ahead log is, None where nothing is in one."""
        try:
            found = self._log.stat()
        except FileNotFoundError:
            return None
        return found.st_ino if found.st_size else None

    def read_only_error(self, session: str | None = None) -> NothingWritten:
        """Return what a write meets where this user may only look."""
        return NothingWritten(
            f"{str(self.path)!r} cannot be written by this user: the store is read-only here and "
            "nothing was written; ask its owner for write permission, or copy the folder to where "
            "you can write",
            path=str(self.path),
            session=session,
        )

    def close(self, connection: apsw.Connection) -> None:
        """Close a connection; its last checkpoint may fail, the next opening makes that good."""
        try:
            connection.close(True)
        except apsw.Error:
            logger.warning("closing %r left its write-ahead log", str(self.path), exc_info=True)

    def prepare(self, connection: apsw.Connection) -> None:
        """Bring a database to this release's format; refuse a newer one."""
        with self.failures(NothingWritten, "prepare"):
            known = migrations()
            version = int(connection.pragma("user_version"))
            self._check_version(version, known[-1][0])
            if not self.read_only and connection.pragma("journal_mode") != "wal":
                self._enter_wal(connection)
            if version < known[-1][0]:
                self._migrate(connection, known)
            checksums = {migration.version: migration.checksum for migration in known}
            for number, checksum in connection.execute(SQL["list_migrations"]):
                if checksums.get(number) != checksum:
                    raise Corruption(
                        f"migration {number} of {str(self.path)!r} was applied with other content "
                        "than this release has; restore the store from an export"
                    )

    def truncate_log(self, connection: apsw.Connection, busy_wait: BusyWait) -> None:
        """Empty the write-ahead log, so that no erased byte is left in it."""
        busy_wait.seconds = TRUNCATE_SECONDS
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:
            # Another process reads; the log is emptied when the last one closes the store.
            logger.warning("the write-ahead log of %r was not emptied yet", str(self.path))
        finally:
            busy_wait.seconds = BUSY_SECONDS

    def _enter_wal(self, connection: apsw.Connection) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                mode = connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                # The busy handler is not asked here: two processes may be creating the store.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
                continue
            if mode != "wal":
                raise StoreUnsafe(
                    f"{str(self.path)!r} cannot use a write-ahead log here (journal mode "
                    f"{mode!r}); choose a local directory"
                )
            return

    def _migrate(self, connection: apsw.Connection, known: list[Migration]) -> None:
        for migration in known:
            number, name, text = migration
            connection.execute(SQL["begin_write"])
            try:
                version = int(connection.pragma("user_version"))
                self._check_version(version, known[-1][0])
                if version == 0 and connection.execute(SQL["schema_objects"]).get:
                    raise StoreUnsafe(f"{str(self.path)!r} is a database of something else")
                if version < number:
                    connection.execute(text)
                    if number == NAMES_SINCE:
                        _fill_in_names(connection)
                    record = (number, name, migration.checksum, now())
                    connection.execute(SQL["insert_migration"], record)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", number)
                connection.execute(SQL["commit"])
            except BaseException:
                if connection.in_transaction:
                    connection.execute(SQL["rollback"])
                raise

    def _check_version(self, found: int, newest: int) -> None:
        if found > newest:
            raise StoreNewer(
                f"{str(self.path)!r} has format {found}; this release knows {newest}: upgrade "
                "Holdfast to open it",
                format=found,
            )

    @contextmanager
    def failures(
        self, kind: type[StoreFailed], doing: str, session: str | None = None
    ) -> Iterator[None]:
        """Turn SQLite's failures into this store's errors."""
        try:
            yield
        except FAILURES as error:
            raise self.named(error, kind, doing, session) from error

    def named(
        self, error: Exception, kind: type[StoreFailed], doing: str, session: str | None = None
    ) -> HoldfastError:
        """Return what a failure of SQLite or the disk means to the caller."""
        of = f" of session {session!r}" if session else ""
        if isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError):
            return Corruption(
                f"{str(self.path)!r} is damaged: {doing}{of} failed with {error}; run `holdfast "
                "verify` and restore from an export",
                path=str(self.path),
                session=session,
            )
        why = next((text for cls, text in _REASONS if isinstance(error, cls)), "the storage failed")
        return kind(
            f"could not {doing}{of} in {str(self.path)!r}: {why} ({error}); {_NEXT[kind]}",
            path=str(self.path),
            session=session,
        )


_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (apsw.FullError, "the disk is full"),
    (apsw.ReadOnlyError, "it is read-only"),
    (apsw.PermissionsError, "access is denied"),
    (apsw.CantOpenError, "it cannot be opened"),
    (apsw.BusyError, "another process kept it locked"),
    (apsw.IOError, "reading or writing failed"),
    (OSError, "reading or writing failed"),
)
_NEXT: dict[Any, str] = {
    StoreFailed: "check the disk, then try again",
    NothingWritten: "nothing was written, try again once the cause is gone",
}


def _fill_in_names(connection: apsw.Connection) -> None:
    found: Any = connection.execute(SQL["all_sessions"]).fetchall()
    names = [(friendly_name(session_id), session_id) for _, session_id, _ in found]
    connection.executemany(SQL["name_session"], names)
