"""Runs that are steered on the command line: rewound to a node, or sent a signal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.people import json_or_text
from holdfast.cli.reading import opened, with_store
from holdfast.cli.runs import drive_here, driving_options, resume_run, told
from holdfast.core.errors import InvalidInput
from holdfast.stores.port import SessionStore

if TYPE_CHECKING:
    from holdfast.workflows.results import RunResult
    from holdfast.workflows.runs import Runs


@command("rewind")
@session_argument
@click.option("--to", metavar="NODE[:ROUND]", help="The node; a round is N, or LOOP=N,LOOP=N.")
@click.option("--edit", metavar="FILE", help="A changed workflow: what differs runs again too.")
@click.option("--run-id", metavar="ID", help="Id of the new run.  [default: a new one]")
@click.option("--dry-run", is_flag=True, help="Only say what would run again.")
@click.option("--force", is_flag=True, help="Even past what was written to a plain directory.")
@click.option("--by", help="Who asks for it.")
@driving_options
def rewind_command(
    call: Call,
    session: str,
    to: str | None,
    edit: str | None,
    run_id: str | None,
    dry_run: bool,
    force: bool,
    by: str | None,
    program: str | None,
    model: str | None,
    quiet: bool,
) -> int:
    """Start a run that takes over what RUN finished, but for what depends on a node."""
    from holdfast.workflows.reading import load
    from holdfast.workflows.results import launch_options
    from holdfast.workflows.rewind_runs import rewind_plan

    if to is None and edit is None:
        raise InvalidInput("say what to rewind to: --to NODE, or --edit FILE")
    flow = None if edit is None else load(edit)

    async def look() -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
        async with opened(call) as store:
            run = (await find_session(store, session)).id
            plan = await rewind_plan(store, run, to, flow)
            again = [
                {
                    "node": one.node,
                    "branch": one.branch,
                    "iteration": dict(one.iteration),
                    "kind": one.kind,
                    "effect": one.effect(plan.flow),
                }
                for one in plan.again
            ]
            return run, again, await launch_options(store, run)

    run, again, options = asyncio.run(look())
    lines = [_line(one) for one in again]
    if dry_run:
        call.answer({"run": run, "again": again}, "\n".join(lines) or "nothing runs again")
        return 0
    if not quiet:
        note("runs again:\n" + "\n".join(lines))
    options.pop("rewind", None)
    options |= {
        name: one for name, one in (("program", program), ("model", model)) if one is not None
    }

    async def work(runs: Runs) -> RunResult:
        new = await runs.rewind(run, to, workflow=flow, run_id=run_id, by=by, force=force)
        if not quiet:
            note(f"run {new}")
        return await runs.drive(new)

    return told(call, asyncio.run(drive_here(call, options, quiet, work)))


def _line(one: dict[str, Any]) -> str:
    rounds = [f"{name} {n}" for name, n in one["iteration"].items() if n]
    parts = [*([] if one["branch"] == "main" else [one["branch"]]), *rounds]
    place = f" ({', '.join(parts)})" if parts else ""
    return f"  {one['node']}{place}  {one['kind']}, {one['effect']}"


@command("signal")
@session_argument
@click.argument("name")
@click.option("--value", metavar="JSON", help="What the signal brings; plain words are text.")
@click.option("--by", help="Who sends it.")
@click.option("--no-resume", is_flag=True, help="Leave it to another process to go on.")
def signal_command(
    call: Call, session: str, name: str, value: str | None, by: str | None, no_resume: bool
) -> int:
    """Send a run the signal NAME that one of its nodes waits for, and go on with it here."""
    from holdfast.runtime import answers
    from holdfast.workflows.signals import waiting_for

    async def send(store: SessionStore) -> str:
        run = (await find_session(store, session)).id
        said = None if value is None else json_or_text(value)
        for call_id in await waiting_for(store, run, name):
            await answers.answer(store, run, call_id, said, by=by)
        return run

    run = with_store(call, send)
    if no_resume:
        call.answer({"run": run, "signal": name}, f"run {run}: got {name}")
        return 0
    return resume_run(call, run)
