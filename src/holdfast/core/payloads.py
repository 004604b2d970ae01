"""Payloads: values stored by content, and the slots through which records refer to them.

A record never holds a user's value directly but a slot: inline as `{"$v": …}` up to 512 bytes,
beyond that a ref. Both have the same content id, and only that id enters the running digest, so a
value can be erased later without breaking any proof. Inside `$v` stands text (base64 for bytes),
never structure, so nothing a user stores can be taken for a ref.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core import values
from holdfast.core.errors import Corruption, InvalidRef
from holdfast.core.ids import check_content_id
from holdfast.core.records import RECORD_DEPTH, Record, canonical, digest_id, parse

INLINE_BYTES = 512
ENCODINGS = frozenset({"text", "json", "bytes", "manifest"})
KINDS = frozenset(
    {"message", "eval_result", "final", "vars", "code", "request", "reply", "input"}
    | {"settings", "arguments", "answer", "output", "error", "artifact", "chunk", "transcript"}
    | {"prompt", "schema", "start", "record", "run"}
)


@dataclass(frozen=True, slots=True)
class Erased:
    """What is left of a value that was erased on purpose: when, and by which rule."""

    at: str
    rule: str


class Proof(msgspec.Struct, frozen=True, gc=False):
    """An id, the bytes that it was computed from in this process, and their number."""

    id: str
    data: bytes
    size: int


class Slot(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One value as a record refers to it.

    `data` holds the bytes while they are at hand: always for inline values, and for larger ones
    between their making and the append that stores them. Equality ignores it. A small
    value can be stored `by_ref` too, as a payload of its own: inside a manifest, whose bytes never
    change, only such a one can be erased. A `proof` of this very id and these very bytes
    saves computing the digest again.
    """

    id: str
    encoding: str
    kind: str
    size: int
    data: bytes | None = None
    erased: Erased | None = None
    by_ref: bool = False
    proof: Proof | None = None

    def __eq__(self, other: object) -> bool:
        """Compare id, encoding, kind and size; the bytes follow from the id."""
        return isinstance(other, Slot) and self._identity() == other._identity()

    def __ne__(self, other: object) -> bool:
        """Return the opposite of equal, which a struct does not define by itself."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash that equal slots share."""
        return hash(self._identity())

    def __repr__(self) -> str:
        """Show the slot without its bytes."""
        marks = (", erased" if self.erased else "") + (", by ref" if self.by_ref else "")
        return f"Slot({self.id!r}, {self.encoding!r}, {self.kind!r}, {self.size}{marks})"

    def _identity(self) -> tuple[str, str, str, int]:
        return self.id, self.encoding, self.kind, self.size

    @property
    def inline(self) -> bool:
        """Tell whether the value stands in the record itself."""
        return self.size <= INLINE_BYTES and self.encoding != "manifest" and not self.by_ref

    def bare(self) -> Slot:
        """Return the slot without its bytes."""
        if self.data is None and self.proof is None:
            return self
        return Slot(self.id, self.encoding, self.kind, self.size, None, self.erased, self.by_ref)

    def without(self, erased: Erased) -> Slot:
        """Return what is left of the slot once its value is erased."""
        return Slot(self.id, self.encoding, self.kind, self.size, None, erased, self.by_ref)

    def ref(self) -> Record:
        """Return the form that enters digests: the content id and what it takes to read it."""
        return {"$ref": self.id, "encoding": self.encoding, "kind": self.kind, "size": self.size}

    def value(self) -> Any:
        """Return the decoded value of a slot whose bytes are at hand."""
        if self.data is None:
            raise InvalidRef(f"the bytes of {self.id!r} are not at hand; read them from the store")
        return values.decode(self.encoding, self.data)


def slot(value: Any, kind: str) -> Slot:
    """Return the slot of a value, with its bytes."""
    encoding, data = values.encode(value)
    return slot_of_bytes(encoding, data, kind)


def manifest(record: Record, kind: str) -> Slot:
    """Return the slot of a manifest: a record that refers to payloads in turn."""
    return slot_of_bytes("manifest", canonical(record), kind)


def slot_of_bytes(encoding: str, data: bytes, kind: str) -> Slot:
    """Return the slot of bytes that are encoded already."""
    if kind not in KINDS:
        raise InvalidRef(f"unknown payload kind {kind!r}; known are {', '.join(sorted(KINDS))}")
    if type(data) is not bytes:
        data = bytes(data)  # what can change proves nothing for long
    payload_id, size = digest_id(data), len(data)
    proof = Proof(payload_id, data, size)
    return Slot(payload_id, encoding, kind, size, data, None, False, proof)


def to_record(item: Slot) -> Record:
    """Return the stored form of a slot."""
    if item.erased is not None:
        return item.ref() | {"$erased": {"at": item.erased.at, "rule": item.erased.rule}}
    if not item.inline:
        return item.ref()
    if item.data is None:
        raise InvalidRef(f"the inline value {item.id!r} has no bytes; read it before you store it")
    if item.encoding == "bytes":
        text = base64.b64encode(item.data).decode()
    else:
        try:
            text = item.data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRef(f"the {item.encoding} value {item.id!r} is not valid UTF-8") from error
    return {"$v": text, "encoding": item.encoding, "kind": item.kind}


def from_record(record: Any) -> Slot:
    """Return the slot that a stored record describes; raise InvalidRef where it is not one."""
    if not isinstance(record, dict):
        raise InvalidRef(f"expected a value or a ref, got {type(record).__name__}")
    encoding, kind = _described(record)
    # Digests cover exactly these keys: any other key would hold unproven content.
    if "$v" in record:
        data = _inline_bytes(record, encoding)
        return slot_of_bytes(encoding, data, kind)
    if len(record) != 4 + ("$erased" in record):
        raise InvalidRef(f"a ref has unknown keys: {sorted(record)}")
    size = record.get("size")
    if type(size) is not int or size < 0:
        raise InvalidRef(f"a ref has the size {size!r}")
    mark = record.get("$erased")
    erased = None if "$erased" not in record else erased_mark(mark)
    by_ref = erased is None and size <= INLINE_BYTES
    return Slot(check_content_id(record.get("$ref")), encoding, kind, size, None, erased, by_ref)


def erased_mark(mark: Any) -> Erased:
    """Return the tombstone that a record describes."""
    if isinstance(mark, dict) and mark.keys() == {"at", "rule"}:
        at, rule = mark["at"], mark["rule"]
        if values.is_text(at) and values.is_text(rule):
            return Erased(at, rule)
    raise InvalidRef(f"a tombstone holds its time and rule as text, not {mark!r}")


def _described(record: Record) -> tuple[str, str]:
    encoding, kind = record.get("encoding"), record.get("kind")
    known = isinstance(encoding, str) and isinstance(kind, str)
    if not known or encoding not in ENCODINGS or kind not in KINDS:
        raise InvalidRef(f"a ref has encoding {encoding!r} and kind {kind!r}, which are not known")
    return encoding, kind


def _inline_bytes(record: Record, encoding: str) -> bytes:
    text = record["$v"]
    if len(record) != 3:
        raise InvalidRef(f"an inline value has unknown keys: {sorted(record)}")
    if not isinstance(text, str):
        raise InvalidRef("an inline value is not text")
    try:
        return base64.b64decode(text, validate=True) if encoding == "bytes" else text.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRef(f"an inline value does not decode: {error}") from error


def is_slot(item: Any) -> bool:
    """Tell whether a part of a record is a slot."""
    return isinstance(item, dict) and ("$ref" in item or "$v" in item)


def walk(item: Any) -> Iterator[Slot]:
    """Yield every slot of a record, in order."""
    if isinstance(item, dict):
        if is_slot(item):
            yield from_record(item)
        else:
            for key in sorted(item):
                yield from walk(item[key])
    elif isinstance(item, list):
        for part in item:
            yield from walk(part)


def digest_form(item: Any) -> Any:
    """Return a record with every value replaced by its ref: the form that digests cover."""
    if isinstance(item, dict):
        if is_slot(item):
            return from_record(item).ref()
        return {key: digest_form(value) for key, value in item.items()}
    if isinstance(item, list):
        return [digest_form(part) for part in item]
    return item


def manifest_slots(item: Slot, data: bytes) -> list[Slot]:
    """Return the payloads that a manifest refers to; none for any other payload."""
    return refs_in(parse(data)) if item.encoding == "manifest" else []


class Reachable:
    """The payloads reachable from slots, each once, as far as manifests among them are followed.

    One that is erased is yielded, but nothing follows from it. Equal bytes may be a manifest in one
    place and a user's text in another: those are two payloads here, and only the manifest has refs.
    So are two that differ in size, of which one is wrong.
    """

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._queue = list(slots)
        self._met: set[tuple[str, bool, bool, int]] = set()

    def add(self, slots: Iterable[Slot]) -> None:
        """Begin from more slots."""
        self._queue += slots

    def __iter__(self) -> Iterator[Slot]:
        """Yield what was not yielded before; what `follow` adds comes too."""
        while self._queue:
            item = self._queue.pop()
            key = (item.id, item.encoding == "manifest", item.erased is None, item.size)
            if key not in self._met and (item.erased is not None or not item.inline):
                self._met.add(key)
                yield item

    def follow(self, item: Slot, data: bytes) -> list[Slot]:
        """Go on to what a payload refers to, where it is a manifest, and return that."""
        parts = manifest_slots(item, data)
        self._queue += parts
        return parts


def refs_in(item: Any) -> list[Slot]:
    """Return the slots of a record that do not stand inline; those that do are only checked."""
    found: list[Slot] = []
    _gather(item, found, RECORD_DEPTH)
    return found


_NESTED = frozenset({dict, list})


def _gather(item: Any, found: list[Slot], depth: int) -> None:
    if not depth:
        raise InvalidRef(f"a manifest is nested more than {RECORD_DEPTH} deep")
    parts = item
    if type(item) is dict:
        if "$v" in item:
            _inline_bytes(item, _described(item)[0])
            return
        if "$ref" in item:
            found.append(from_record(item))
            return
        parts = item.values()
    elif type(item) is not list:
        return
    for part in parts:
        if type(part) in _NESTED:
            _gather(part, found, depth - 1)


def check_size(item: Slot, size: int) -> None:
    """Raise InvalidRef where a ref says another size than its payload has."""
    if item.size != size:
        raise size_error(item, size)


def size_error(item: Slot, size: int) -> InvalidRef:
    """Return the error for a ref that says another size than its payload has."""
    return InvalidRef(
        f"payload {item.id!r} has {size} bytes, not the {item.size} that a ref to it says; refer "
        "to it by the slot that it was stored as",
        payload=item.id,
    )


def check_slot(item: Slot) -> None:
    """Refuse a slot that no record can hold, whatever it may lead to."""
    if not (
        isinstance(item, Slot)
        and type(item.id) is type(item.encoding) is type(item.kind) is str
        and item.encoding in ENCODINGS
        and item.kind in KINDS
        and type(item.size) is int
        and (item.data is None or type(item.data) is bytes)
        and (item.erased is None or type(item.erased) is Erased)
    ):
        raise InvalidRef(
            f"{ascii(item)[:200]} is not a valid slot; pass what `slot(value, kind)` returns"
        )


def check_bytes(item: Slot, data: bytes) -> bytes:
    """Return the bytes of a payload once their digest is proven; raise Corruption otherwise."""
    proof = item.proof
    proven = type(proof) is Proof and proof.id is item.id and proof.data is data
    if len(data) != item.size or not (proven or digest_id(data) == item.id):
        raise Corruption(
            f"payload {item.id!r} does not match its id: run `holdfast verify` and restore it "
            "from an export",
            payload=item.id,
        )
    return data
