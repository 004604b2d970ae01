"""Workflow runs on the command line: run, resume, answer in place, cancel, list and show."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.interruption import Interruption
from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.program import load_program, runtime_options
from holdfast.cli.reading import opened, with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.cli.terminal import clean
from holdfast.core.errors import InvalidInput
from holdfast.stores.port import SessionStore

if TYPE_CHECKING:
    from holdfast.workflows.registry import Registry
    from holdfast.workflows.results import RunResult
    from holdfast.workflows.runs import Runs

EXIT_CODES = {"finished": 0, "paused": 3, "interrupted": 1, "cancelled": 6}
"""How a run ended, for scripts; anything else is 1."""

COLUMNS = (
    Column("RUN", least=15, is_id=True),
    Column("NAME", spare=2),
    Column("WORKFLOW", least=8),
    Column("STATUS"),
    Column("UPDATED", spare=1),
)


def driving_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of everything that drives a run."""
    for option in (
        click.option(
            "--with",
            "program",
            metavar="FILE",
            help="Python file that has AGENTS, TOOLS, FUNCTIONS, PROGRAMS, SECRETS or WORKFLOWS.",
        ),
        click.option("--model", help="Model: PROVIDER:MODEL, or script:FILE offline."),
        click.option("--quiet", "-q", is_flag=True, help="No progress on standard error."),
    ):
        function = option(function)
    return function


def _variables(given: tuple[str, ...]) -> dict[str, Any]:
    """Return variables: JSON where it is some, else text."""
    found: dict[str, Any] = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise InvalidInput(f"--var is {text!r}; write --var NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def offered_registry(offered: dict[str, Any]) -> Registry:
    """Return what a program offers to the nodes of workflows."""
    from holdfast.workflows.registry import registry

    return registry(
        tools=offered.get("TOOLS", ()),
        functions=offered.get("FUNCTIONS", ()),
        programs=offered.get("PROGRAMS", ()),
        secrets=offered.get("SECRETS"),
        workflows=[_built(one) for one in offered.get("WORKFLOWS", ())],
    )


async def drive_here(
    call: Call,
    options: dict[str, Any],
    quiet: bool,
    work: Callable[[Runs], Awaitable[RunResult]],
) -> tuple[RunResult | None, int]:
    """Drive a run here; on a terminal, ask what people are asked, and go on."""
    from holdfast.cli.run_progress import RunProgress, ask_in_place
    from holdfast.runtime.runtime import open_runtime
    from holdfast.workflows.runs import Runs

    offered = load_program(options.get("program"))
    given = runtime_options(offered)
    if options.get("model"):
        given["model"] = options["model"]
    async with await open_runtime(call.store, **given) as runtime:
        known = offered_registry(offered)
        runs = Runs(runtime, known)
        with Interruption() as interruption:
            try:
                async with RunProgress(runtime.store, shown=not (quiet or call.as_json)) as shown:
                    runs.watch = shown.follow
                    result = await work(runs)
                    while result.status == "paused" and sys.stdin and sys.stdin.isatty():
                        if not await ask_in_place(runs, result.run):
                            break
                        result = await runs.drive(result.run)
            except asyncio.CancelledError:
                interruption.handled()
                return None, interruption.exit_code
            return result, EXIT_CODES.get(result.status, 1)


def _built(workflow: Any) -> Any:
    return workflow.build() if hasattr(workflow, "build") else workflow


def _document(result: RunResult) -> dict[str, Any]:
    from holdfast.views.values import value_form

    return {
        "run": result.run,
        "status": result.status,
        "output": value_form(result.output),
        "code": result.code,
        "error": result.error,
        "node": result.node,
        "waiting": list(result.waiting),
        "until": result.until,
        "executions": result.executions,
        "next_to_act": result.next_to_act,
    }


def told(call: Call, outcome: tuple[RunResult | None, int]) -> int:
    """Report a run, and what to type next."""
    result, code = outcome
    if result is None:
        note("interrupted: the run is stored, and goes on with `holdfast resume RUN`")
        return code
    text = f"run {result.run}: {result.status}"
    if result.output is not None:
        text += "\n" + clean(json.dumps(result.output, indent=2, ensure_ascii=False, default=str))
    if result.error:
        text += f"\n{result.node or 'the run'} failed ({result.code}): {clean(result.error)}"
    call.answer(_document(result), text)
    if not call.as_json:
        for call_id in result.waiting[:3]:
            again = call.command_line("answer", result.run, call_id)
            note(f"answer with: {again} --value JSON")
        if result.status in ("failed_resumable", "cancelled", "interrupted"):
            note(f"go on with: {call.command_line('resume', result.run)}")
    return code


@command("run")
@click.argument("file")
@click.option(
    "--var",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the workflow: JSON, or text. May be repeated.",
)
@click.option("--run-id", metavar="ID", help="Id of the run.  [default: a new one]")
@click.option("--in", "folder", metavar="FOLDER", help="Where its workspace is.  [default: here]")
@driving_options
def run_command(
    call: Call,
    file: str,
    variables: tuple[str, ...],
    run_id: str | None,
    folder: str | None,
    program: str | None,
    model: str | None,
    quiet: bool,
) -> int:
    """Run a workflow FILE until it ends or waits for someone."""
    given = _variables(variables)
    # Whoever resumes the run needs its id alone.
    options = {
        "program": None if program is None else str(Path(program).resolve()),
        "model": model,
    }

    async def work(runs: Runs) -> RunResult:
        place = None if folder is None else Path(folder)
        run = await runs.create(file, given, run_id=run_id, options=options, folder=place)
        if not quiet:
            note(f"run {run}")
        return await runs.drive(run)

    return told(call, asyncio.run(drive_here(call, options, quiet, work)))


async def run_above(store: SessionStore, session: str) -> str | None:
    """Return the run that a session is, or works for; None where there is none."""
    found = None
    above: str | None = session
    while above is not None:
        state = await store.load_state(above)
        if state.kind == "run":
            found = above
        above = None if state.parent is None else state.parent["session"]
    return found


def resume_run(
    call: Call,
    run: str,
    *,
    program: str | None = None,
    model: str | None = None,
    quiet: bool = False,
    **how: Any,
) -> int:
    """Go on with a run, with what it was launched with unless something else is given."""
    from holdfast.workflows.results import launch_options

    async def kept() -> dict[str, Any]:
        async with opened(call) as store:
            return await launch_options(store, run)

    options = asyncio.run(kept())
    options |= {
        name: one for name, one in (("program", program), ("model", model)) if one is not None
    }

    async def work(runs: Runs) -> RunResult:
        return await runs.resume(run, **how)

    return told(call, asyncio.run(drive_here(call, options, quiet, work)))


@command("resume")
@session_argument
@click.option("--stored", is_flag=True, help="With the workflow as it was, whatever the file says.")
@click.option("--changed", is_flag=True, help="With the file as it is now; this is recorded.")
@click.option("--by", help="Who asks for it.")
@driving_options
def resume_command(call: Call, session: str, quiet: bool, **how: Any) -> int:
    """Go on with a run that failed, was cancelled or interrupted, or got an answer."""
    run = with_store(call, lambda store: find_session(store, session)).id
    return resume_run(call, run, quiet=quiet, **how)


@command("cancel")
@session_argument
@click.option("--by", help="Who asks for it.")
def cancel_command(call: Call, session: str, by: str | None) -> int:
    """End a run; it can be resumed."""

    async def work(runs: Runs) -> RunResult:
        found = await find_session(runs.store, session)
        return await runs.cancel(found.id, by=by)

    return told(call, asyncio.run(drive_here(call, {}, True, work)))


@command("runs")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to list."
)
@click.option("--cursor", help="Start after the page that gave this cursor.")
def runs_command(call: Call, limit: int, cursor: str | None) -> None:
    """List workflow runs, newest first."""
    from holdfast.workflows.results import page_of

    found, following = with_store(call, lambda store: page_of(store, limit, cursor))
    document = {
        "runs": [
            {
                "id": one.id,
                "name": one.name,
                "workflow": one.workflow,
                "status": one.status,
                "created_at": one.created_at,
                "updated_at": one.updated_at,
            }
            for one in found
        ],
        "cursor": following,
    }
    rows = [(one.id, one.name, one.workflow, one.status, one.updated_at[:19]) for one in found]
    call.answer(document, table(COLUMNS, rows, screen_width()) if rows else "no runs")
