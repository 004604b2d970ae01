"""What goes wrong with PostgreSQL, in the terms of a store: what was written, what to do next."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast.core.errors import Corruption, HoldfastError, InvalidInput, StoreDenied, StoreFailed

FAILURES = (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests, OSError)
"""What the driver, its pool and the network raise."""

CLASHES = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.UniqueViolation,
    errors.LockNotAvailable,
)
"""Two transactions were in each other's way: this one wrote nothing and may be tried again."""

DENIED = (
    errors.InsufficientPrivilege,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidPassword,
)

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.DiskFull, "the disk of the database is full"),
    (errors.QueryCanceled, "a statement took longer than its time limit"),
    (errors.ReadOnlySqlTransaction, "the server only takes reads, as a standby does"),
    (errors.TooManyConnections, "the server has no free connection"),
    (errors.DeadlockDetected, "other transactions were in the way"),
    (errors.SerializationFailure, "other transactions were in the way"),
    (errors.UniqueViolation, "other transactions were in the way"),
    (errors.InvalidCatalogName, "there is no such database"),
    (PoolTimeout, "the server could not be reached in time"),
    (psycopg.OperationalError, "the connection failed"),
)


def is_lost(error: BaseException) -> bool:
    """Tell whether a failure is that of a connection, not of what was asked through it."""
    if isinstance(error, PoolTimeout | PoolClosed | TooManyRequests):
        return False  # there was none
    if isinstance(error, psycopg.Error):
        state = error.sqlstate
        # 08 connection, 57P admin shutdown and crash, 25P03 idle in transaction for too long.
        ended = state is not None and (state[:2] == "08" or state[:3] == "57P" or state == "25P03")
        return ended or (state is None and isinstance(error, psycopg.OperationalError))
    return isinstance(error, OSError)


def named(
    error: BaseException, where: str, kind: type[StoreFailed], doing: str, session: str | None
) -> HoldfastError:
    """Return what a failure means to the caller."""
    of = f" of session {session!r}" if session else ""
    text = " ".join(str(error).split())
    if isinstance(error, DENIED) or "authentication failed" in text:
        return StoreDenied(
            f"could not {doing}{of} in {where!r}: {text}; give the role the right it lacks, or "
            "connect as another",
            session=session,
        )
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return InvalidInput(f"PostgreSQL cannot store this value{of}: {text}; change it")
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn | errors.DataCorrupted):
        return Corruption(
            f"{where!r} is damaged: {doing}{of} failed with {text}; restore it from a backup",
            session=session,
        )
    why = next((reason for cls, reason in _REASONS if isinstance(error, cls)), "the server failed")
    return kind(
        f"could not {doing}{of} in {where!r}: {why} ({text}); try again once the server is well",
        session=session,
    )
