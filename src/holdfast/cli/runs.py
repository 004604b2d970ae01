"""Workflow runs on the command line: run, resume, cancel, list, and what they published."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.core.errors import InvalidInput
from holdfast.stores.port import SessionStore

if TYPE_CHECKING:
    from holdfast.workflows.runs import RunResult, Runs

EXIT_CODES = {"finished": 0, "paused": 3, "interrupted": 1, "cancelled": 6}
"""How a run ended, for scripts; anything else is 1."""

COLUMNS = (
    Column("RUN", least=15, is_id=True),
    Column("NAME", spare=2),
    Column("WORKFLOW", least=8),
    Column("STATUS"),
    Column("UPDATED", spare=1),
)

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
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


def _program(file: str | None) -> dict[str, Any]:
    """Return what a program offers to workflows; running it is what the user asked for."""
    if file is None:
        return {}
    if not Path(file).is_file():
        raise InvalidInput(f"there is no file {file!r} to take agents and tools from")
    return runpy.run_path(file)


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


async def _with_runs(
    call: Call,
    program: str | None,
    model: str | None,
    work: Callable[[Runs], Awaitable[RunResult]],
) -> RunResult:
    from holdfast.runtime.runtime import open_runtime
    from holdfast.workflows.registry import registry
    from holdfast.workflows.runs import Runs

    offered = _program(program)
    options: dict[str, Any] = {} if model is None else {"model": model}
    if offered.get("AGENTS"):
        options["agents"] = offered["AGENTS"]
    async with await open_runtime(call.store, **options) as runtime:
        known = registry(
            tools=offered.get("TOOLS", ()),
            functions=offered.get("FUNCTIONS", ()),
            programs=offered.get("PROGRAMS", ()),
            secrets=offered.get("SECRETS"),
            workflows=[_built(one) for one in offered.get("WORKFLOWS", ())],
        )
        return await work(Runs(runtime, known))


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


def _told(call: Call, result: RunResult) -> int:
    """Report a run, and what to type next."""
    text = f"run {result.run}: {result.status}"
    if result.output is not None:
        text += "\n" + json.dumps(result.output, indent=2, ensure_ascii=False, default=str)
    if result.error:
        text += f"\n{result.node or 'the run'} failed ({result.code}): {result.error}"
    call.answer(_document(result), text)
    if not call.as_json:
        for call_id in result.waiting[:3]:
            again = call.command_line("answer", result.run, call_id)
            note(f"answer with: {again} --value JSON")
        if result.status in ("failed_resumable", "cancelled", "interrupted"):
            note(f"go on with: {call.command_line('workflow', 'resume', result.run)}")
    return EXIT_CODES.get(result.status, 1)


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
@_options
def run_command(
    call: Call,
    file: str,
    variables: tuple[str, ...],
    run_id: str | None,
    program: str | None,
    model: str | None,
    quiet: bool,
) -> int:
    """Run a workflow FILE until it ends or waits for someone."""
    given = _variables(variables)

    async def work(runs: Runs) -> RunResult:
        run = await runs.create(file, given, run_id=run_id)
        if not quiet:
            note(f"run {run}")
        return await runs.drive(run)

    return _told(call, asyncio.run(_with_runs(call, program, model, work)))


@command("resume")
@session_argument
@click.option("--stored", is_flag=True, help="With the workflow as it was, whatever the file says.")
@click.option("--changed", is_flag=True, help="With the file as it is now; this is recorded.")
@click.option("--by", help="Who asks for it.")
@_options
def resume_command(
    call: Call,
    session: str,
    stored: bool,
    changed: bool,
    by: str | None,
    program: str | None,
    model: str | None,
    quiet: bool,
) -> int:
    """Go on with a run that failed, was cancelled or interrupted, or got an answer."""

    async def work(runs: Runs) -> RunResult:
        found = await find_session(runs.store, session)
        return await runs.resume(found.id, by=by, stored=stored, changed=changed)

    return _told(call, asyncio.run(_with_runs(call, program, model, work)))


@command("cancel")
@session_argument
@click.option("--by", help="Who asks for it.")
def cancel_command(call: Call, session: str, by: str | None) -> int:
    """End a run; it can be resumed."""

    async def work(runs: Runs) -> RunResult:
        found = await find_session(runs.store, session)
        return await runs.cancel(found.id, by=by)

    return _told(call, asyncio.run(_with_runs(call, None, None, work)))


@command("runs")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to list."
)
@click.option("--cursor", help="Start after the page that gave this cursor.")
def runs_command(call: Call, limit: int, cursor: str | None) -> None:
    """List workflow runs, newest first."""
    from holdfast.workflows.runs import page_of

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
