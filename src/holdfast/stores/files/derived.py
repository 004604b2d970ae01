"""Derived copies: `run.json`, artifacts and interactions, written for people and tools.

They are made from the log after a batch is durable and are never read back as truth; `run.json`
also keeps the tip from which a cold start folds on. Its `seq` says how far the copies go: whoever
writes next makes the missing ones, all of them where `run.json` is gone. A failure here is logged
and harms nothing.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.blobs.disk import TEMPORARY, Disk
from holdfast.core.events import Event
from holdfast.core.payloads import Slot, from_record
from holdfast.core.records import Record
from holdfast.stores import rows
from holdfast.stores.files import tip as tips
from holdfast.stores.files.session_files import SessionFiles
from holdfast.stores.files.tip import Tip

_log = logging.getLogger(__name__)

REFRESH_EVENTS = 64
REFRESH_SECONDS = 0.25
_COPIED = ("artifact.written", "call.requested", "call.resolved")
_PAGE_EVENTS = 500


def swap(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a file in one step without making it durable: for what can be made again."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}")
    try:
        disk.create(temporary, data)
        disk.rename(temporary, path)
    except OSError:
        disk.unlink(temporary)
        raise


def refresh(files: SessionFiles, *, force: bool = False) -> None:
    """Bring the copies up to date, unless they were just now and little has happened."""
    try:
        tip = files.tip()
        recent = time.monotonic() - files.derived_at < REFRESH_SECONDS
        few = files.derived_seq is not None and tip.state.seq - files.derived_seq < REFRESH_EVENTS
        if not force and recent and few and tip.state.status == files.derived_status:
            return
        before = files.log.header().rewrites
        _write(files, tip, files.derived_seq if files.derived_seq is not None else _done(files))
        if files.log.header().rewrites != before:
            # A value was erased meanwhile and may stand in a copy just made.
            remove(files)
            _write(files, files.tip(), 0)
    except Exception:
        # What was to be stored is stored: nothing that goes wrong here may say otherwise.
        files.derived_seq = None
        _log.warning("the derived files of session %s were not written", files.id, exc_info=True)


def remove(files: SessionFiles) -> None:
    """Remove every copy; they are made again by the next write."""
    files.derived_seq = None
    disk = files.place.disk
    disk.unlink(files.run_path)
    artifacts, interactions = files.folder / "artifacts", files.folder / "interactions"
    for folder in [interactions, *(artifacts / name for name in disk.names(artifacts))]:
        for name in disk.names(folder):
            disk.unlink(folder / name)
        if disk.stat(folder) is not None:
            disk.remove_directory(folder)
    if disk.stat(artifacts) is not None:
        disk.remove_directory(artifacts)


def _done(files: SessionFiles) -> int:
    """Return how far the copies on disk go."""
    record = files.run_record()
    found = None if record is None else tips.from_snapshot(files.log, record.get("snapshot"))
    return 0 if found is None else found.state.seq


def _write(files: SessionFiles, tip: Tip, after: int) -> None:
    while page := files.log.page(after, tip.state.seq + 1, _PAGE_EVENTS, False, _COPIED):
        for event in page:
            if event.known:
                _write_copy(files, event)
        after = page[-1].seq
    holding = files.holding()
    info = rows.info_of(
        tip.state, files.is_live(holding), files.is_imported(holding), len(tip.pending)
    )
    record = {"format": tips.RUN_FORMAT, **asdict(info), "snapshot": tips.to_snapshot(tip)}
    swap(files.place.disk, files.run_path, _pretty(record | {"check": tips.checksum(record)}))
    files.derived_seq, files.derived_at = tip.state.seq, time.monotonic()
    files.derived_status = tip.state.status


def _write_copy(files: SessionFiles, event: Event) -> None:
    write = _write_artifact if event.type == "artifact.written" else _write_interaction
    try:
        write(files, event)
    except OSError:
        raise
    except Exception:
        # One value that cannot be shown must not keep the others from being shown.
        _log.warning("event %d of session %s has no copy", event.seq, files.id, exc_info=True)


def _write_artifact(files: SessionFiles, event: Event) -> None:
    data = event.data
    path = files.place.layout.artifact(files.address, str(data["node"]), int(data["version"]))
    _copy(
        files,
        path,
        {
            "run": files.id,
            "node": data["node"],
            "version": data["version"],
            "branch": data.get("branch", "main"),
            "written_at": event.at,
            "seq": event.seq,
            "data": _shown(files, data["data"]),
        },
    )


def _write_interaction(files: SessionFiles, event: Event) -> None:
    call_id = str(event.data["call_id"])
    path = files.place.layout.interaction(files.address, call_id)
    asked = event if event.type == "call.requested" else _request_of(files, path, event, call_id)
    if asked is None or (asked.data["executor"] != "human" and not asked.data.get("approval")):
        return
    record: Record = {
        "run": files.id,
        "call_id": call_id,
        "seq": asked.seq,
        "name": asked.data.get("name"),
        "requested_at": asked.at,
        "deadline": asked.data.get("deadline"),
        "question": _shown(files, asked.data.get("arguments")),
    }
    if event is not asked:
        record["answered_at"] = event.at
        record["outcome"] = event.data["outcome"]
        record["answered_by"] = event.data.get("by")
        record["answer"] = _shown(files, event.data.get("result"))
    _copy(files, path, record)


def _request_of(files: SessionFiles, path: Path, event: Event, call_id: str) -> Event | None:
    """Return the event that asked for a call; an earlier copy says where it may be."""
    types = ("call.requested",)
    with suppress(OSError, ValueError, KeyError, TypeError):
        seq = json.loads(files.place.disk.read(path))["seq"]
        for found in files.log.page(seq - 1, seq + 1, 1, False, types):
            if found.data["call_id"] == call_id:
                return found
    before = event.seq
    # Nearly always the last request before the outcome is the one.
    while page := files.log.page(0, before, 1, True, types):
        if page[0].data["call_id"] == call_id:
            return page[0]
        before = page[0].seq
    return None


def _copy(files: SessionFiles, path: Path, record: Record) -> None:
    for folder in (path.parent.parent, path.parent):
        if folder != files.folder:
            files.place.disk.make_directory(folder)
    swap(files.place.disk, path, _pretty(record))


def _shown(files: SessionFiles, record: Any) -> Any:
    """Return a stored value as JSON that a person can read."""
    if record is None:
        return None
    item: Slot = from_record(record)
    if item.erased is not None:
        return {"erased": {"at": item.erased.at, "rule": item.erased.rule}}
    data = item.data if item.inline else files.payload(item.id)
    if data is None:
        return None
    with suppress(
        ValueError, RecursionError
    ):  # what is not what its encoding says is shown as bytes
        if item.encoding != "bytes":
            return data.decode() if item.encoding == "text" else json.loads(data)
    return {"base64": base64.b64encode(data).decode()}


def _pretty(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=2).encode() + b"\n"
