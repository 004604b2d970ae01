"""Derived copies: `run.json`, artifacts and interactions, written for people and tools.

They are made from the log after a batch is durable and are never read back as truth; `run.json`
also keeps the tip from which a cold start folds on. Its `seq` says how far the copies go and its
`copies` how many there are: whoever writes next makes the missing ones, and opening a store makes
all of a session whose `run.json` is gone. A failure here is logged and harms nothing.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.blobs.disk import TEMPORARY, Disk
from holdfast.core import run_record
from holdfast.core.events import Event
from holdfast.core.payloads import Slot, from_record
from holdfast.core.records import Record
from holdfast.core.state import State
from holdfast.stores import rows
from holdfast.stores.files import tip as tips
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.files.tip import Tip

_log = logging.getLogger(__name__)

REFRESH_EVENTS = 64
REFRESH_SECONDS = 0.25
SHARE = 20
"""A refresh waits until so many times as long has passed as the last one took."""
MOST_EVENTS = 2000
"""But with so many events since it does not wait, so that a cold start folds few."""
_COPIED = ("artifact.written", "call.requested", "call.suspended", "call.resolved")
_ASKS = ("question", "approval", "unknown", "signal")
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
        started = time.monotonic()
        if not force and not _is_due(files, tip, started - files.derived_at):
            return
        before = files.log.header().rewrites
        _write(files, tip, files.derived_seq if files.derived_seq is not None else _done(files))
        if files.log.header().rewrites != before:
            # A value was erased meanwhile and may stand in a copy just made.
            remove(files)
            _write(files, files.tip(), 0)
        files.derived_cost = time.monotonic() - started
    except Exception:
        # What was to be stored is stored: nothing that goes wrong here may say otherwise.
        files.derived_seq = None
        _log.warning("the derived files of session %s were not written", files.id, exc_info=True)


def _is_due(files: SessionFiles, tip: Tip, elapsed: float) -> bool:
    """Tell whether copies are to be written, so long after the last ones."""
    if files.derived_seq is None or tip.state.status != files.derived_status:
        return True
    events = tip.state.seq - files.derived_seq
    if elapsed < SHARE * files.derived_cost and events < MOST_EVENTS:
        return False
    return elapsed >= REFRESH_SECONDS or events >= REFRESH_EVENTS


def make_missing(place: Place) -> None:
    """Make the copies of every session that has no `run.json`."""
    for address in place.layout.addresses(place.disk, None):
        files = SessionFiles(place, address)
        gone = place.disk.stat(files.run_path) is None
        if gone and place.disk.stat(files.log.path) is not None:
            refresh(files, force=True)


def remove(files: SessionFiles) -> None:
    """Remove every copy; they are made again by the next write."""
    files.derived_seq = None
    files.run_events = (-1, {})
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
    """Return how far the copies on disk go; not at all where some are missing."""
    record = files.run_record()
    if record is None or record.get("copies") != _count(files):
        return 0
    found = tips.from_snapshot(files.log, record.get("snapshot"))
    return 0 if found is None else found.state.seq


def _count(files: SessionFiles) -> dict[str, int]:
    """Return how many copies there are."""
    disk, artifacts = files.place.disk, files.folder / "artifacts"
    return {
        "artifacts": sum(len(disk.names(artifacts / node)) for node in disk.names(artifacts)),
        "interactions": len(disk.names(files.folder / "interactions")),
    }


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
    record: Record = {"format": tips.RUN_FORMAT, **asdict(info), "copies": _count(files)}
    record["snapshot"] = tips.to_snapshot(tip)
    record["check"] = tips.checksum(record)
    if tip.state.kind == "run":
        # Nothing of it is read back, and values may be what no record can hold.
        record["run"] = _run(files, tip.state, files.is_live(holding))
    swap(files.place.disk, files.run_path, _pretty(record))
    files.derived_seq, files.derived_at = tip.state.seq, time.monotonic()
    files.derived_status = tip.state.status


def _run(files: SessionFiles, state: State, live: bool) -> dict[str, Any]:
    """Return the record of a run; the events that it needs are kept at hand."""
    rewrites = files.log.header().rewrites
    kept = files.run_events[1] if files.run_events[0] == rewrites else {}
    found: dict[int, Event] = {}
    for seq in run_record.events_of(state):
        event = kept.get(seq) or _event_at(files, seq)
        if event is not None:
            found[seq] = event
    files.run_events = (rewrites, found)
    record = run_record.record_of(state, found, partial(_shown, files), live=live)
    return record.document()


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
    item: Slot = from_record(data["data"])
    _copy(
        files,
        path,
        {
            "run_id": files.id,
            "node_id": data["node"],
            "version": data["version"],
            "name": data.get("name"),
            "branch_id": data.get("branch", "main"),
            "iteration": data.get("iteration", {}),
            "written_at": event.at,
            "seq": event.seq,
            "size": item.size,
            "data": _shown(files, item),
        },
    )


def _write_interaction(files: SessionFiles, event: Event) -> None:
    """Write what is known of an ask: its request, its present wait, and its outcome."""
    call_id = str(event.data["call_id"])
    path = files.place.layout.interaction(files.address, call_id)
    asked, wait, answered = _parts(files, path, event, call_id)
    if asked is None:
        return
    about = {} if wait is None else wait.data
    record: Record = {
        "id": call_id,
        "run_id": files.id,
        "node_id": call_id.split(".", 1)[0] if files.tip().state.kind == "run" else None,
        "kind": about.get("kind", "approval" if asked.data.get("approval") else "question"),
        "name": asked.data.get("name"),
        "seq": asked.seq,
        "wait_seq": None if wait is None else wait.seq,
        "requested_at": asked.at if wait is None else wait.at,
        "deadline": about.get("deadline") or asked.data.get("deadline"),
        "assignee": about.get("assignee"),
        "questions": _shown_record(files, about.get("prompt") or asked.data.get("arguments")),
        "schema": _shown_record(files, about.get("schema")),
        "answered_at": None if answered is None else answered.at,
        "outcome": None if answered is None else answered.data["outcome"],
        "answered_by": None if answered is None else answered.data.get("by"),
        "answers": None if answered is None else _shown_record(files, answered.data.get("result")),
    }
    _copy(files, path, record)


_Parts = tuple[Event | None, Event | None, Event | None]


def _parts(files: SessionFiles, path: Path, event: Event, call_id: str) -> _Parts:
    """Return the request, the wait and the outcome of a call, as far as they are on record.

    The request is None where nobody is asked.
    """
    if event.type == "call.requested":
        asks = event.data["executor"] == "human" or event.data.get("approval")
        return (event if asks else None), None, None
    if event.type == "call.suspended":
        asks = event.data.get("kind", "question") in _ASKS and event.data.get("on") is None
        return (_earlier(files, event, call_id) if asks else None), event, None
    # Copies are made in order, so a call without one asked nobody.
    try:
        copy = json.loads(files.place.disk.read(path))
        seqs = [int(copy["seq"]), int(copy["wait_seq"] or 0)]
    except OSError:
        return None, None, None
    except (ValueError, KeyError, TypeError):
        return _earlier(files, event, call_id), None, event
    return _event_at(files, seqs[0]), _event_at(files, seqs[1]), event


def _event_at(files: SessionFiles, seq: int) -> Event | None:
    found = files.log.page(seq - 1, seq + 1, 1, False, None) if seq > 0 else []
    return found[0] if found else None


def _earlier(files: SessionFiles, event: Event, call_id: str) -> Event | None:
    """Return the event that asked for a call: nearly always the last request before."""
    before = event.seq
    while page := files.log.page(0, before, 20, True, ("call.requested",)):
        for found in page:
            if found.data["call_id"] == call_id:
                return found
        before = page[-1].seq
    return None


def _copy(files: SessionFiles, path: Path, record: Record) -> None:
    for folder in (path.parent.parent, path.parent):
        if folder != files.folder:
            files.place.disk.make_directory(folder)
    swap(files.place.disk, path, _pretty(record))


def _shown_record(files: SessionFiles, record: Any) -> Any:
    return None if record is None else _shown(files, from_record(record))


def _shown(files: SessionFiles, item: Slot) -> Any:
    """Return a stored value as JSON that a person can read."""
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
