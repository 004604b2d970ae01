"""A stored value on a page: type, size, where it is used, and a preview that runs nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import PayloadNotFound
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Slot, from_record, is_slot
from holdfast.stores.port import SessionStore

PREVIEW_BYTES = 64 << 10
IMAGE_BYTES = 4 << 20
PAGE_EVENTS = 500
MOST_EVENTS = 20_000
MOST_USES = 200

IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@dataclass(frozen=True, slots=True)
class Use:
    """Where the log refers to a value."""

    seq: int
    type: str
    path: str


@dataclass(frozen=True, slots=True)
class PayloadView:
    """A value and what is known of it."""

    id: str
    kind: str | None
    encoding: str | None
    size: int | None
    shape: str  # text, json, image, binary, erased
    preview: str
    image: str | None
    erased_at: str | None
    rule: str | None
    uses: Sequence[Use]
    scanned: int | None
    """How many of the newest events were looked through, where it was not all of them."""

    @property
    def cut(self) -> bool:
        """Tell whether the preview is not all of it."""
        return self.size is not None and self.shape != "image" and self.size > PREVIEW_BYTES


async def payload_view(store: SessionStore, session_id: str, payload_id: str) -> PayloadView:
    """Return a value that a session refers to."""
    check_content_id(payload_id)
    slot, uses, scanned = await _uses(store, session_id, payload_id)
    about: dict[str, Any] = {
        "id": payload_id,
        "kind": None if slot is None else slot.kind,
        "encoding": None if slot is None else slot.encoding,
        "uses": uses,
        "scanned": scanned,
    }
    try:
        inline = slot.data if slot is not None else None
        data = inline if inline is not None else await store.get_payload(session_id, payload_id)
    except PayloadNotFound as error:
        if "erased_at" not in error.details:
            raise
        at, rule = str(error.details["erased_at"]), str(error.details["rule"])
        size = None if slot is None else slot.size
        return PayloadView(
            **about, size=size, shape="erased", preview="", image=None, erased_at=at, rule=rule
        )
    shape, preview, image = _preview(data)
    return PayloadView(
        **about,
        size=len(data),
        shape=shape,
        preview=preview,
        image=image,
        erased_at=None,
        rule=None,
    )


def _preview(data: bytes) -> tuple[str, str, str | None]:
    """Return what kind of bytes these are, as much of them as is shown, and an image as data."""
    kind = next((name for magic, name in IMAGES if data.startswith(magic)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is not None and len(data) <= IMAGE_BYTES:
        return "image", "", f"data:{kind};base64,{base64.b64encode(data).decode()}"
    part = data[:PREVIEW_BYTES]
    try:
        text = part.decode("utf-8") if len(part) == len(data) else part.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return "binary", _hex(data[:1024]), None
    if len(data) <= PREVIEW_BYTES:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return "text", text, None
        if isinstance(found, str):
            return "text", found, None
        return "json", json.dumps(found, indent=2, ensure_ascii=False), None
    return "text", text, None


def _hex(data: bytes) -> str:
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    return "\n".join(f"{16 * n:08x}  {row.hex(' ')}" for n, row in enumerate(rows))


async def _uses(
    store: SessionStore, session_id: str, payload_id: str
) -> tuple[Slot | None, list[Use], int | None]:
    """Return where the log refers to a value, newest first, and the value as it is named there."""
    slot: Slot | None = None
    uses: list[Use] = []
    before: int | None = None
    seen = 0
    while seen < MOST_EVENTS and len(uses) < MOST_USES:
        page = await store.read_events(session_id, before=before, limit=PAGE_EVENTS, reverse=True)
        if not page:
            return slot, uses, None
        for event in page:
            for path, found in slots_of(event.data):
                if found.id == payload_id:
                    slot = slot or found
                    uses.append(Use(event.seq, event.type, path))
        before, seen = page[-1].seq, seen + len(page)
    return slot, uses, seen


def slots_of(item: Any, path: str = "") -> Iterator[tuple[str, Slot]]:
    """Yield every slot of a record with where it is."""
    if isinstance(item, dict):
        if is_slot(item):
            yield path, from_record(item)
            return
        for key in sorted(item):
            yield from slots_of(item[key], f"{path}.{key}" if path else str(key))
    elif isinstance(item, list):
        for number, part in enumerate(item):
            yield from slots_of(part, f"{path}[{number}]")
