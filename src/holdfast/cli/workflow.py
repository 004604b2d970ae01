"""Workflows on the command line: check a file before anything is paid, and draw it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli import runs
from holdfast.cli.options import Call, command
from holdfast.core.errors import InvalidInput


@click.group("workflow")
def workflow_command() -> None:
    """Check, draw and run workflows that are written as YAML files."""


_Decorator = Callable[[Callable[..., int]], Callable[..., int]]


def _names(kind: str) -> _Decorator:
    return click.option(
        f"--{kind}",
        f"{kind}s",
        multiple=True,
        metavar="NAME",
        help=f"A {kind} that a run will find; with one or more of these, others are refused.",
    )


@command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@_names("agent")
@_names("tool")
@_names("model")
@_names("secret")
def check_command(
    call: Call,
    files: tuple[str, ...],
    agents: tuple[str, ...],
    tools: tuple[str, ...],
    models: tuple[str, ...],
    secrets: tuple[str, ...],
) -> int:
    """Say everything that is wrong with workflow files, with place and remedy. Runs nothing."""
    from holdfast.workflows import Known, Signature, check_text

    known = Known(
        agents=agents or None,
        models=models or None,
        secrets=secrets or None,
        tools={name: Signature() for name in tools} or None,
    )
    documents: list[dict[str, Any]] = []
    lines: list[str] = []
    for file in files:
        text = _read(file)
        flow, problems = check_text(text, file, known)
        document: dict[str, Any] = {
            "file": file,
            "ok": not problems,
            "problems": [one.document() for one in problems],
        }
        lines += [one.render(text) for one in problems]
        if flow is not None and not problems:
            document |= {"workflow": flow.name, "hash": flow.hash(), "nodes": len(flow.nodes)}
            lines.append(f"{file}: ok ({flow.name}, {len(flow.nodes)} nodes)")
        documents.append(document)
    good = all(document["ok"] for document in documents)
    if not good:
        count = sum(len(document["problems"]) for document in documents)
        lines.append(f"{count} problem{'' if count == 1 else 's'}")
    call.answer({"ok": good, "files": documents}, "\n".join(lines))
    return 0 if good else 1


@command("graph")
@click.argument("file")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "dot"]),
    default="mermaid",
    show_default=True,
    help="For Mermaid or for Graphviz.",
)
def graph_command(call: Call, file: str, form: str) -> None:
    """Print a workflow file as a graph."""
    from holdfast.workflows import InvalidWorkflow, dot, mermaid
    from holdfast.workflows.reading import read_text

    flow, problems = read_text(_read(file), file)
    if flow is None:
        raise InvalidWorkflow(f"{file} is not a valid workflow", problems)
    drawn = dot(flow) if form == "dot" else mermaid(flow)
    call.answer({"file": file, "format": form, "graph": drawn}, drawn.rstrip("\n"))


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not text in UTF-8: {error.reason}") from error


workflow_command.add_command(check_command)
workflow_command.add_command(graph_command)
workflow_command.add_command(runs.run_command)
workflow_command.add_command(runs.resume_command)
