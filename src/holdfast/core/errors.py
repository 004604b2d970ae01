"""Every error Holdfast raises, in one tree split by what the caller can do about it.

HoldfastError
├── InvalidInput                fix what you passed
│   ├── InvalidId
│   ├── InvalidRecord
│   ├── InvalidRef
│   ├── UnsupportedValue
│   ├── IllegalTransition
│   └── InvalidSettings
├── NotFound                    name something that exists
│   ├── SessionNotFound · HeadNotFound · PayloadNotFound · InboxItemNotFound · StoreNotFound
├── Conflict                    someone else moved: read again, then decide
│   ├── PositionConflict · HeadConflict · SettingsConflict · ImportConflict
│   ├── LeaseHeld · LeaseLost · SessionBusy
│   ├── InboxConflict · InboxConsumed · RecordConflict · CallConflict
│   └── SessionDeleted
├── Refused                     not here, not like this: the message says what would work
│   ├── ReadOnlySession · StoreNewer · StoreUnsafe · HandleForked · CapabilityDenied
│   ├── ConfinementMissing · AgentMissing · NotRestorable · WorkerRefused
│   ├── ExtraMissing · VersionUnsupported · InputFileChanged
├── StoreFailed                 the storage failed
│   ├── NothingWritten          safe to try again
│   └── OutcomeUnknown          read again before anything else
├── Corruption                  stored data does not check out; names the first bad place
├── KernelError                 the worker that runs model-written code failed
│   ├── KernelDied · KernelProtocolError · KernelLimit · FileNotKept
├── CallFailed                  a call of a program has another outcome than a value
├── CallWaits                   a call of a program waits for someone: ask again once it is answered
└── ModelError                  the model provider failed
    └── (see holdfast.models.errors)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.details: dict[str, Any] = details

    @property
    def code(self) -> str:
        """Return the stable name of this error as printed by `--json`."""
        name = type(self).__name__
        return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class InvalidInput(HoldfastError):
    """What was passed cannot be used."""


class InvalidId(InvalidInput):
    """An id breaks the id rules."""


class InvalidRecord(InvalidInput):
    """A record holds something that canonical records cannot hold."""


class InvalidRef(InvalidInput):
    """A payload ref is malformed or refers to what this session may not read."""


class UnsupportedValue(InvalidInput):
    """A value has a type that cannot be stored faithfully."""


class IllegalTransition(InvalidInput):
    """An event is not legal in the session's present status."""


class InvalidSettings(InvalidInput):
    """A setting is unknown or has a wrong value."""


class NotFound(HoldfastError):
    """The thing named does not exist."""


class SessionNotFound(NotFound):
    """No session has this id."""


class HeadNotFound(NotFound):
    """The session has no such head."""


class CallNotFound(NotFound):
    """The session has no such open call."""


class PayloadNotFound(NotFound):
    """No payload has this id."""


class InboxItemNotFound(NotFound):
    """The session's inbox has no such item."""


class StoreNotFound(NotFound):
    """There is no store at this place."""


class Conflict(HoldfastError):
    """Someone else moved first; read again, then decide."""


class PositionConflict(Conflict):
    """The log has moved past the position this append was made for."""


class HeadConflict(Conflict):
    """The current head is not the expected basis."""


class SettingsConflict(Conflict):
    """The session exists with other settings."""


class ImportConflict(Conflict):
    """The imported session differs from the one stored under the same id."""


class LeaseHeld(Conflict):
    """Another driver holds the lease."""


class LeaseLost(Conflict):
    """This driver's lease was taken over; nothing was written."""


class SessionBusy(Conflict):
    """The session has a turn in flight."""


class InboxConflict(Conflict):
    """The inbox already has another item under this key or for this call."""


class AnswerStale(Conflict):
    """The call does not wait for this answer any more; nothing was changed."""


class InboxConsumed(Conflict):
    """The inbox item was consumed already."""


class RecordConflict(Conflict):
    """Another record than the expected one is the latest, or a record is retracted already."""


class CallConflict(Conflict):
    """The key of a call was used for another call."""


class SessionDeleted(Conflict):
    """The session was deleted; its id is never reused."""


class Refused(HoldfastError):
    """Not possible here or in this way."""


class AnswerRefused(Refused):
    """The answer is not one that this call takes, or not from this person."""


class ScopeMissing(Refused):
    """A tool that acts for a user was called with the system scope."""


class SecretMissing(Refused):
    """A secret that a tool names cannot be looked up here."""


class ReadOnlySession(Refused):
    """The session can be read here but not driven."""


class StoreNewer(Refused):
    """The store was written by a newer Holdfast."""


class StoreUnsafe(Refused):
    """The place is not safe for this store."""


class StoreDenied(Refused):
    """The store refuses this user; it takes another role or a right that is missing."""


class HandleForked(Refused):
    """A store handle was used in a forked child process; open a new one there."""


class CapabilityDenied(Refused):
    """The capability profile does not allow this."""


class ConfinementMissing(Refused):
    """The required confinement is not available on this machine."""


class AgentMissing(Refused):
    """This process has no agent registered that can drive the session."""


class WorkerRefused(Refused):
    """The machine has no descriptors, processes or memory left for a worker."""


class InputFileChanged(Refused):
    """A file that was handed to a session as an input is not what it was any more."""


class NotRestorable(Refused):
    """The namespace checkpoint cannot be restored here."""


class ExtraMissing(Refused):
    """What was asked for needs an extra that is not installed."""


class VersionUnsupported(Refused):
    """A package is installed in a version that this adapter was not tested with."""


class StoreFailed(HoldfastError):
    """The storage failed."""


class NothingWritten(StoreFailed):
    """The write failed and nothing was stored; it is safe to try again."""


class OutcomeUnknown(StoreFailed):
    """The write may or may not be stored; read again before anything else."""


class Corruption(HoldfastError):
    """Stored data does not check out."""


class KernelError(HoldfastError):
    """The worker that runs model-written code failed."""


class KernelDied(KernelError):
    """The worker process ended while a cell was running."""


class KernelProtocolError(KernelError):
    """The worker sent a frame that is not part of the protocol."""


class KernelLimit(KernelError):
    """A cell went over one of its limits."""


class FileNotKept(KernelError):
    """A file that the cell has read is too large to be kept for a re-run."""


class CallFailed(HoldfastError):
    """A call has another outcome than a value: error, denied, expired, cancelled or unknown."""

    @property
    def call_id(self) -> str:
        """Return the id of the call in the log."""
        return str(self.details.get("call_id", ""))

    @property
    def outcome(self) -> str:
        """Return the outcome that the log has."""
        return str(self.details.get("outcome", ""))


class CallWaits(HoldfastError):
    """A call waits for someone; the same call asked again once it is answered has the answer."""

    @property
    def call_id(self) -> str:
        """Return the id of the call, by which it is answered."""
        return str(self.details.get("call_id", ""))


class ModelError(HoldfastError):
    """The model provider failed."""


@contextmanager
def needing(extra: str, what: str, *tested: str) -> Iterator[None]:
    """Say of an import that fails which extra brings what it needs.

    `tested` are the packages with the versions that are tested, as in `mcp>=2.3,<3`: one that is
    installed in another version is refused before it fails in a stranger way.
    """
    for requirement in tested:
        _check_version(requirement, extra, what)
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "holdfast":
            raise  # a fault of ours, not of the installation
        raise ExtraMissing(
            f"{what} needs more than is installed: pip install 'holdfast[{extra}]' ({error})",
            extra=extra,
        ) from error


def _check_version(requirement: str, extra: str, what: str) -> None:
    named = re.fullmatch(r"([\w-]+)>=([\d.]+),<([\d.]+)", requirement)
    assert named is not None, requirement
    package, lowest, too_high = named.groups()
    from importlib.metadata import PackageNotFoundError, version  # slow, and few need it

    try:
        found = version(package)
    except PackageNotFoundError:
        return  # its import will say so
    if not _numbers(lowest) <= _numbers(found) < _numbers(too_high):
        raise VersionUnsupported(
            f"{what} works with {package} from {lowest} up to before {too_high}, and {found} is "
            f"installed: pip install 'holdfast[{extra}]'",
            package=package,
            installed=found,
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Return the release of a version as numbers; what follows it is left out."""
    release = re.match(r"\d+(\.\d+)*", text)
    return () if release is None else tuple(map(int, release[0].split(".")))


def check_kind(value: object, kind: type, what: str) -> None:
    """Refuse what is not of the kind that is asked for."""
    if not isinstance(value, kind):
        shown = ascii(value)[:80]
        raise InvalidInput(f"{shown} is not a valid {what}; pass a {kind.__name__}")
