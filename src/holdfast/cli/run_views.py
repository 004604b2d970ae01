"""What a run published, and a run as a page to read: artifacts, report, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import with_store
from holdfast.cli.terminal import clean
from holdfast.core.errors import InvalidInput
from holdfast.stores.port import SessionStore


@command("artifacts")
@session_argument
@click.argument("name", required=False, metavar="NODE[@VERSION]")
@click.option("--diff", is_flag=True, help="How the version differs from the one before it.")
def artifacts_command(call: Call, session: str, name: str | None, diff: bool) -> None:
    """List what a run published, or print one version of it."""
    from holdfast.workflows import artifacts

    node, _, number = (name or "").partition("@")
    if number and not number.isdigit():
        raise InvalidInput(f"{name!r} is not a valid artifact; write NODE or NODE@VERSION")

    async def read(store: SessionStore) -> tuple[Any, str]:
        run = (await find_session(store, session)).id
        if not node:
            found = await artifacts.versions(store, run)
            documents = [
                {
                    "node": one.node,
                    "version": one.version,
                    "name": one.name,
                    "written_at": one.written_at,
                    "size": one.size,
                }
                for one in found
            ]
            lines = [
                f"{one.node}@{one.version}  {one.size} bytes  {one.written_at[:19]}"
                for one in found
            ]
            return {"artifacts": documents}, "\n".join(lines) or "nothing was published"
        one = await artifacts.find(store, run, node, int(number) if number else None)
        body = await artifacts.body(store, run, one)
        if diff:
            old: Any = ""
            if one.version > 0:
                before = await artifacts.find(store, run, node, one.version - 1)
                old = await artifacts.body(store, run, before)
            text = artifacts.difference(
                old, body, f"{node}@{one.version - 1}", f"{node}@{one.version}"
            )
            return {"node": node, "version": one.version, "diff": text}, text
        shown = body if isinstance(body, str) else json.dumps(body, indent=2, default=repr)
        return {"node": node, "version": one.version, "data": body}, shown

    document, text = with_store(call, read)
    call.answer(document, text)


@command("report")
@session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "html"]),
    default="markdown",
    show_default=True,
    help="Form of the page.",
)
@click.option("--output", "-o", metavar="FILE", help="Write it to a file.")
def report_command(call: Call, session: str, form: str, output: str | None) -> None:
    """Print a run as a page: timeline, cost by node, loops, artifacts, questions."""
    from holdfast.workflows.report import report

    async def read(store: SessionStore) -> str:
        run = (await find_session(store, session)).id
        made = await report(store, run)
        return made.html() if form == "html" else made.markdown()

    text = with_store(call, read)
    if output is not None:
        Path(output).write_text(text, encoding="utf-8")
        note(f"written to {output}")
        return
    call.answer({"format": form, "report": text}, clean(text.rstrip("\n")))


async def run_page(store: SessionStore, run: str) -> tuple[dict[str, Any], str]:
    """Return a run as a document and as text: where it stands, and who has to act next."""
    from holdfast.workflows.results import result_of

    result = await result_of(store, run)
    state = (await store.load_state(run)).run
    cursors = {} if state is None else state.cursors
    document = {
        "run": run,
        "kind": "run",
        "workflow": None if state is None else state.workflow,
        "status": result.status,
        "next_to_act": result.next_to_act,
        "waiting": list(result.waiting),
        "error": result.error,
        "code": result.code,
        "executions": result.executions,
        "cursors": [
            {"branch": branch, "node": cursor.node, "phase": cursor.halted or cursor.phase}
            for branch, cursor in cursors.items()
        ],
    }
    lines = [
        f"{run}  {document['workflow'] or ''}",
        f"{result.status} · {result.executions} executions · next: {result.next_to_act}",
    ]
    if result.error:
        lines.append(f"{result.node or 'the run'} failed ({result.code}): {result.error}")
    if result.status not in ("finished", "failed"):
        lines += [f"  {one['branch']}: {one['node']} {one['phase']}" for one in document["cursors"]]  # type: ignore[union-attr,index]
    lines += [f"  waits: {call_id}" for call_id in result.waiting]
    return document, clean("\n".join(lines))
