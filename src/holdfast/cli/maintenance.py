"""Maintenance of a store: verify, gc, export, import."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import with_store
from holdfast.cli.terminal import one_line
from holdfast.cli.wording import count
from holdfast.core.errors import InvalidInput
from holdfast.stores.choose import open_store
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    AuditRow,
    GcReport,
    ImportOutcome,
    SessionStore,
    VerifyReport,
)
from holdfast.views.documents import gc_document, import_document, verify_document
from holdfast.views.sessions import all_sessions


@command("verify")
@click.argument("sessions", nargs=-1)
def verify_command(call: Call, sessions: tuple[str, ...]) -> int:
    """Verify SESSIONS, or all: every digest, head and stored value. Repairs nothing."""
    from holdfast.stores.verify import verify

    async def work(store: SessionStore) -> list[VerifyReport]:
        return [await verify(store, session) for session in await _named(store, sessions)]

    reports = with_store(call, work)
    document = verify_document(reports)
    lines = [line for report in reports for line in _report_lines(report)]
    call.answer(document, "\n".join(lines) or "no sessions")
    return 0 if document["ok"] else 1


def _report_lines(report: VerifyReport) -> list[str]:
    state = "ok" if report.ok else count(len(report.problems), "problem")
    gone = f", {report.erased} erased" if report.erased else ""
    gone += f", {report.expired} expired" if report.expired else ""
    lines = [
        f"{report.session}: {state} ({count(report.events, 'event')}, "
        f"{count(report.payloads, 'payload')}{gone})"
    ]
    for problem in report.problems:
        lines.append(f"  {problem.kind} at event {problem.seq}: {one_line(problem.message, 160)}")
    return lines


@command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--grace-seconds",
    default=GC_GRACE_SECONDS,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds for which a payload is kept that nothing refers to yet.",
)
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="First delete sessions without open work that nothing happened in for so many days.",
)
@click.option("--audit-days", type=click.FloatRange(0), help="Remove older audit rows.")
@click.option("--audit-rows", type=click.IntRange(0), help="Keep so many of each session's rows.")
@click.option("--worktrees", is_flag=True, help="Remove folders of workflow runs that are over.")
@click.option(
    "--idle-days",
    default=7.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Days after which a run that could be resumed counts as given up.",
)
def gc_command(
    call: Call,
    dry_run: bool,
    grace_seconds: float,
    older_than: float | None,
    audit_days: float | None,
    audit_rows: int | None,
    worktrees: bool,
    idle_days: float,
) -> None:
    """Remove payloads that no session refers to, audit rows by age and number, and worktrees."""
    shortens = (audit_days, audit_rows) != (None, None)
    if dry_run and shortens:
        raise InvalidInput("--dry-run says nothing of audit rows; leave one of the two out")

    retired: list[str] = []

    async def work(store: SessionStore) -> tuple[GcReport, int]:
        if older_than is not None:
            retired.extend(await retire(store, older_than, dry_run=dry_run))
        report = await store.gc(dry_run=dry_run, grace_seconds=grace_seconds)
        if not shortens:
            return report, 0
        before = None
        if audit_days is not None:
            before = (datetime.now(UTC) - timedelta(days=audit_days)).isoformat()
        return report, await store.gc_audit(before=before, keep=audit_rows)

    async def folders(store: SessionStore) -> dict[str, Any]:
        from holdfast.workflows.worktrees import PLACE, collect

        place = PLACE.resolve()
        return asdict(await collect(store, place, idle_days=idle_days, dry_run=dry_run))

    report, gone = with_store(call, work)
    verb = "would remove" if dry_run else "removed"
    ended = f"{count(len(retired), 'session')}, " if older_than is not None else ""
    audited = f", {count(gone, 'audit row')}" if shortens else ""
    more: dict[str, Any] = {"audit_rows": gone} if shortens else {}
    if older_than is not None:
        more["sessions"] = retired
    if worktrees:
        more["worktrees"] = found = with_store(call, folders)
        removed = sum(len(found[why]) for why in ("finished", "abandoned", "deleted"))
        audited += f", {count(removed, 'worktree')}"
    call.answer(
        gc_document(report) | more,
        f"{verb} {ended}{count(report.payloads, 'payload')}, {count(report.bytes, 'byte')}"
        f"{audited}; kept {report.kept:,}",
    )


async def retire(store: SessionStore, days: float, *, dry_run: bool) -> list[str]:
    """Delete sessions at rest that nothing happened in for so long; return their ids.

    One at rest has no open turn, no call that waits, and an empty inbox. A parent outlives its
    children, and a child that is younger keeps it.
    """
    before = (datetime.now(UTC) - timedelta(days=days)).isoformat().replace("+00:00", "Z")
    found = [info async for info in all_sessions(store)]
    at_rest = {"idle", "stopped", "failed"}
    old = {
        info.id: info
        for info in found
        if info.status in at_rest and info.inbox == 0 and info.updated_at < before
    }
    kept = [info for info in found if info.id not in old]
    for info in kept:
        parent = old.pop(info.parent, None) if info.parent is not None else None
        if parent is not None:
            kept.append(parent)
    if not dry_run:
        for session_id in sorted(old, key=lambda name: old[name].parent is None):
            await store.delete(session_id)
    return sorted(old)


@command("audit")
@session_argument
@click.option("--after", default=0, type=click.IntRange(0), help="Only rows above this number.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to show."
)
def audit_command(call: Call, session: str, after: int, limit: int) -> None:
    """Show the audit of SESSION's model calls, where its setting `audit` keeps one."""

    async def work(store: SessionStore) -> list[AuditRow]:
        info = await find_session(store, session)
        return await store.list_audit(info.id, after=after, limit=limit)

    rows = with_store(call, work)
    document = [{"number": row.number, "at": row.at} | row.record for row in rows]
    lines = [
        f"{row.number}: {row.record.get('purpose')} {row.record.get('model')} "
        f"{row.record.get('status')}, {row.record.get('latency_ms')} ms, "
        f"{row.record.get('usage')}"
        for row in rows
    ]
    call.answer({"audit": document}, "\n".join(lines) or "no model call is in the audit")


@command("export")
@click.argument("sessions", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All sessions of the store.")
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write.",
)
@click.option("--html", is_flag=True, help="Write one session as a page that opens from disk.")
def export_command(
    call: Call, sessions: tuple[str, ...], everything: bool, output: Path, html: bool
) -> None:
    """Write SESSIONS to one file that proves itself."""
    from holdfast.stores.portable import export_sessions

    if html:
        _export_html(call, sessions, output)
        return

    if bool(sessions) == everything:
        raise InvalidInput("name the sessions to export, or give --all")

    async def work(store: SessionStore) -> tuple[list[str], int]:
        ids = await _named(store, sessions)
        return ids, await export_sessions(store, ids, output)

    ids, events = with_store(call, work)
    document = {"file": str(output.absolute()), "sessions": ids, "events": events}
    written = f"{count(len(ids), 'session')}, {count(events, 'event')}"
    call.answer(document, f"{written} written to {str(output)!r}")


def _export_html(call: Call, sessions: tuple[str, ...], output: Path) -> None:
    from holdfast.server.html_export import exported

    if len(sessions) != 1:
        raise InvalidInput("--html takes exactly one session")

    async def work(store: SessionStore) -> tuple[str, str]:
        session_id = (await find_session(store, sessions[0])).id
        return session_id, await exported(store, session_id)

    session_id, text = with_store(call, work)
    output.write_bytes(text.encode())
    document = {"file": str(output.absolute()), "sessions": [session_id], "bytes": len(text)}
    call.answer(document, f"session {session_id} written to {str(output)!r}")


@command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--max-size", type=click.IntRange(1), help="Bytes it may unpack to (4 GiB).")
@click.option("--max-ratio", type=click.IntRange(1), help="As often its own size at most (1000).")
def import_command(call: Call, file: Path, max_size: int | None, max_ratio: int | None) -> None:
    """Store the sessions of FILE: all of them, or none where one is damaged or conflicts."""
    from holdfast.stores.export_reader import ImportLimits
    from holdfast.stores.portable import import_sessions

    usual = ImportLimits()
    limits = ImportLimits(max_size or usual.max_bytes, max_ratio or usual.max_ratio)

    async def work() -> tuple[list[ImportOutcome], list[str]]:
        store = await open_store(call.store)
        try:
            outcomes = await import_sessions(store, file, limits=limits)
            rows = [await store.session_info(item.session) for item in outcomes]
            return outcomes, [row.id for row in rows if row.imported]
        finally:
            await store.close()

    outcomes, unowned = asyncio.run(work())
    lines = [f"{item.session}: {item.outcome}, {count(item.events, 'event')}" for item in outcomes]
    call.answer(import_document(outcomes), "\n".join(lines) or "the file holds no sessions")
    if not call.as_json and unowned:
        names = ", ".join(unowned)
        note(f"read-only copies with open work: {names}; resume with --takeover, or fork")


async def _named(store: SessionStore, given: tuple[str, ...]) -> list[str]:
    """Return the ids of the sessions given, or of all; each once."""
    if not given:
        return [info.id async for info in all_sessions(store)]
    return list(dict.fromkeys([(await find_session(store, name)).id for name in given]))
