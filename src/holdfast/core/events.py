"""Events: stamped facts in a session's log, and the running digest that chains them.

An event is stored as a record. Its digest is sha256 of the previous digest and of the record's
canonical form in which every value stands as its content id; the chain begins with the session id,
so a log cannot be passed off as another session's. Old versions are upcast when read, after the
check; a type or version this release does not know is kept and shown raw.
"""

from __future__ import annotations

import re
import time
from binascii import unhexlify
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, InvalidInput, InvalidRecord
from holdfast.core.facts import Fact
from holdfast.core.forms import FACTS, fact_from_data, forms
from holdfast.core.payloads import Slot, digest_form
from holdfast.core.records import DATA_DEPTH, Record, canonical, encode, explain, fits, parse
from holdfast.core.values import MAX_INTEGER

CHAIN_SEED = b"holdfast.log.1\n"

_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)

UPCASTS: dict[tuple[str, int], Callable[[Record], Record]] = {}
"""(type, version) → a function from that version's data to the next version's."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One durable fact at its place in the log."""

    session: str
    seq: int
    type: str
    version: int
    at: str
    data: Record
    digest: str

    @property
    def known(self) -> bool:
        """Tell whether this release can read the event's meaning."""
        cls = FACTS.get(self.type)
        return cls is not None and 1 <= self.version <= cls.VERSION

    def fact(self) -> Fact:
        """Return the typed fact, upcast to the present version."""
        data, version = self.data, self.version
        cls = FACTS.get(self.type)
        if cls is None or version > cls.VERSION:
            raise InvalidRecord(
                f"event {self.seq} of {self.session!r} has the type {self.type!r} version "
                f"{version}, which this release does not know; upgrade to read it"
            )
        while version < cls.VERSION:
            data = UPCASTS[self.type, version](data)
            version += 1
        try:
            return fact_from_data(cls, data)
        except InvalidRecord as error:
            raise Corruption(f"event {self.seq} of {self.session!r}: {error}") from error


def now() -> str:
    """Return the present time as records write it."""
    global _this_second
    second, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    known, text = _this_second
    if second != known:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        _this_second = (second, text)
    return f"{text}.{microseconds:06}Z"


_this_second = (-1, "")


def chain_start(session: str) -> str:
    """Return the digest before a session's first event."""
    return sha256(CHAIN_SEED + session.encode()).hexdigest()


def event_digest(previous: str, seq: int, kind: str, version: int, at: str, data: Record) -> str:
    """Return the running digest after an event."""
    if not fits(data, DATA_DEPTH):
        explain(data, "record", DATA_DEPTH)
    return _chain(previous, seq, kind, version, at, digest_form(data))


def _chain(previous: str, seq: int, kind: str, version: int, at: str, covered: Record) -> str:
    body = encode({"at": at, "data": covered, "seq": seq, "type": kind, "v": version})
    return sha256(unhexlify(previous) + body).hexdigest()


def check_digest(previous: str, event: Event) -> None:
    """Raise Corruption where an event's digest does not follow from its content."""
    why = ""
    try:
        digest = event_digest(previous, event.seq, event.type, event.version, event.at, event.data)
    except InvalidInput as error:
        digest, why = "", f": {error}"  # stored like this it is damage, whoever passed what
    well_formed = _AT.fullmatch(event.at) and 1 <= event.version <= MAX_INTEGER
    if not well_formed or event.digest != digest:
        raise Corruption(
            f"event {event.seq} of session {event.session!r} does not match its digest{why}",
            session=event.session,
            seq=event.seq,
        )


def stamp(
    previous: str, session: str, seq: int, at: str, fact: Fact, slots: list[Slot] | None = None
) -> Event:
    """Return the event that a fact becomes at its place in the log; add its slots to `slots`."""
    covered, stored, found = forms(fact)
    if slots is not None:
        slots += found
    kind, version = fact.TYPE, fact.VERSION
    digest = _chain(previous, seq, kind, version, at, covered)
    return Event(session, seq, kind, version, at, stored, digest)


def event_to_line(event: Event) -> bytes:
    """Return an event as one line of canonical JSON, as files and exports hold it."""
    return canonical(
        {
            "at": event.at,
            "data": event.data,
            "digest": event.digest,
            "seq": event.seq,
            "type": event.type,
            "v": event.version,
        }
    )


def event_from_record(session: str, record: Any) -> Event:
    """Return the event that one stored line describes."""
    try:
        return Event(
            session,
            msgspec.convert(record["seq"], int),
            msgspec.convert(record["type"], str),
            msgspec.convert(record["v"], int),
            msgspec.convert(record["at"], str),
            msgspec.convert(record["data"], dict[str, Any]),
            msgspec.convert(record["digest"], str),
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise Corruption(
            f"a line of session {session!r} is not a valid event: {error!r}"
        ) from error


def event_from_line(session: str, line: bytes) -> Event:
    """Return the event that one stored line holds."""
    return event_from_record(session, parse(line))
