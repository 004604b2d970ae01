"""`holdfast replay`: execute a session again from its log alone, and show the first divergence."""

from __future__ import annotations

import asyncio
import difflib
from pathlib import Path
from typing import Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command
from holdfast.cli.reading import opened
from holdfast.cli.terminal import dumps
from holdfast.cli.wording import count
from holdfast.core.errors import InvalidInput
from holdfast.runtime.replay import Difference, ReplayReport, replay_export, replay_session


@command("replay")
@click.argument("session", required=False)
@click.option(
    "--export",
    "export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replay what this export holds, instead of a session of the store.",
)
def replay_command(call: Call, session: str | None, export: Path | None) -> int:
    """Execute SESSION again from its log: no provider is asked, nothing is dispatched.

    It runs beside a copy in memory; the store is only read. Exits with 1 where it diverges.
    """
    if session is None and export is None:
        raise InvalidInput("name a session to replay, or an export with --export FILE")
    reports = asyncio.run(_replay(call, session, export))
    if call.as_json:
        call.answer({"replays": [_document(report) for report in reports]}, "")
    else:
        call.answer(None, "\n".join(_text(report) for report in reports))
    return 1 if any(report.difference is not None for report in reports) else 0


async def _replay(call: Call, session: str | None, export: Path | None) -> list[ReplayReport]:
    if export is not None:
        return await replay_export(export, session)
    assert session is not None
    async with opened(call) as store:
        return [await replay_session(store, (await find_session(store, session)).id)]


def _text(report: ReplayReport) -> str:
    done = ", ".join(
        (count(report.turns, "turn"), count(report.steps, "step"), count(report.cells, "cell"))
    )
    cut = f"\ncut at {report.cut}" if report.cut else ""
    if report.difference is None:
        return f"{report.session}: {done} replayed without divergence{cut}"
    return f"{report.session}: diverged after {done}{cut}\n{_shown(report.difference)}"


def _shown(found: Difference) -> str:
    where = "" if found.seq is None else f" (event {found.seq})"
    turn = "" if found.turn is None else f" of turn {found.turn}"
    recorded, replayed = _lines(found.recorded), _lines(found.replayed)
    lines = difflib.unified_diff(recorded, replayed, "recorded", "replayed", lineterm="")
    return "\n".join([f"first divergence: {found.kind}{turn}{where}", *lines])


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [line for name, one in value.items() for line in _named(str(name), one)]
    return [] if value is None else str(value).splitlines()


def _named(name: str, value: Any) -> list[str]:
    return [f"{name}: {line}" for line in str(value).splitlines() or [""]]


def _document(report: ReplayReport) -> dict[str, Any]:
    found = report.difference
    difference = None
    if found is not None:
        difference = {
            "kind": found.kind,
            "turn": found.turn,
            "seq": found.seq,
            "recorded": _plain(found.recorded),
            "replayed": _plain(found.replayed),
        }
    return {
        "session": report.session,
        "turns": report.turns,
        "steps": report.steps,
        "cells": report.cells,
        "cut": report.cut,
        "difference": difference,
    }


def _plain(value: Any) -> Any:
    try:
        dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
