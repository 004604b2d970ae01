"""The inbox file: what outsiders asked of a session, one sealed line each, in order of arrival.

Lines are only added. That an item was consumed stands in the log, in the line of the batch that
took it, and nowhere else: it is consumed exactly when that batch is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.facts import InputKind
from holdfast.core.payloads import Slot, from_record, to_record
from holdfast.core.records import Record
from holdfast.stores.files.lines import has_hole, seal, unseal
from holdfast.stores.port import InboxItem


@dataclass(slots=True)
class Inbox:
    """The items read so far; `end` is the byte behind the last of them, `size` the file's."""

    items: dict[str, InboxItem] = field(default_factory=dict)
    size: int = 0
    end: int = 0
    torn: int = 0

    def contents(self) -> list[Slot]:
        """Return the contents that were not erased."""
        found = [item.content for item in self.items.values() if item.content is not None]
        return [content for content in found if content.erased is None]


class InboxFile:
    """The inbox of one session."""

    def __init__(self, disk: Disk, path: Path, session: str) -> None:
        self.disk = disk
        self.path = path
        self.session = session

    def size(self) -> int:
        """Return the file's size, 0 where there is none."""
        found = self.disk.stat(self.path)
        return 0 if found is None else found.size

    def read(self) -> Inbox:
        """Return all items, as if none were consumed."""
        inbox = Inbox()
        # At once: what an erasure puts in its place meanwhile has another size.
        data = self.disk.read(self.path) if self.size() else b""
        *texts, rest = data.split(b"\n")
        for number, text in enumerate(texts, 1):
            try:
                item = _item(self.session, unseal(text))
            except Corruption as error:
                if number == len(texts) and not rest and has_hole(text, inbox.end):
                    break
                raise Corruption(
                    f"line {number} of the inbox of session {self.session!r} is damaged: {error}; "
                    "if its item is not needed, take the line out by hand and delete run.json "
                    "beside it while nobody has the store open",
                    session=self.session,
                    line=number,
                ) from error
            inbox.items[item.key] = item
            inbox.end += len(text) + 1
        inbox.size, inbox.torn = len(data), len(data) - inbox.end
        return inbox


def item_line(item: InboxItem) -> bytes:
    """Return an item as it is stored."""
    record: Record = {"at": item.at, "key": item.key, "kind": item.kind}
    if item.by is not None:
        record["by"] = item.by
    if item.call_id is not None:
        record["call_id"] = item.call_id
    if item.wait is not None:
        record["call_wait"] = item.wait
    if item.content is not None:
        record["content"] = to_record(item.content)
    return seal(record)


def _item(session: str, record: Record) -> InboxItem:
    try:
        key, kind, at = msgspec.convert(
            (record["key"], record["kind"], record["at"]), tuple[str, InputKind, str]
        )
        call_id = msgspec.convert(record.get("call_id"), str | None)
        by = msgspec.convert(record.get("by"), str | None)
        wait = msgspec.convert(record.get("call_wait"), int | None)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corruption(f"it is not an inbox item: {error!r}") from error
    content = record.get("content")
    try:
        slot = None if content is None else from_record(content)
    except InvalidInput as error:
        raise Corruption(f"its content is not a value: {error}") from error
    return InboxItem(session, key, kind, at, call_id, slot, None, wait, by)
