"""`holdfast replay`: execute a session again from its log alone, and show the first divergence.

With `--from STEP` the past comes from the log and the rest is live, with another model or agent: a
fork of the session, so that both can be compared afterwards.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command
from holdfast.cli.reading import opened
from holdfast.cli.terminal import dumps
from holdfast.cli.turns import drive, existing, turn_options
from holdfast.cli.wording import count
from holdfast.core.errors import InvalidInput
from holdfast.runtime.agent import Agent
from holdfast.runtime.replay import Difference, ReplayReport, replay_export, replay_tree
from holdfast.runtime.results import TurnResult
from holdfast.runtime.runtime import Runtime


@command("replay")
@click.argument("session", required=False)
@click.option(
    "--export",
    "export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replay what this export holds, instead of a session of the store.",
)
@click.option(
    "--from",
    "step",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Take the past from the log, and go on live from this step, as a fork of SESSION.",
)
@click.option("--model", help="With --from: the model that goes on, instead of the recorded one.")
@click.option(
    "--agent",
    metavar="MODULE:NAME",
    help="With --from: the agent that goes on, imported from this module.",
)
@click.option("--session-id", help="With --from: the id of the fork; by default a new one.")
@turn_options
def replay_command(
    call: Call,
    session: str | None,
    export: Path | None,
    step: int | None,
    model: str | None,
    agent: str | None,
    session_id: str | None,
    quiet: bool,
    allow_unconfined: bool,
) -> int:
    """Execute SESSION again from its log: no provider is asked, nothing is dispatched.

    The children of a session are replayed with it. It runs beside a copy in memory; the store is
    only read. Exits with 1 where it diverges.
    With --from STEP the turn of that step goes on live, in a fork with lineage.
    """
    if session is None and (export is None or step is not None):
        raise InvalidInput("name a session to replay, or an export with --export FILE")
    if step is None and (model or agent or session_id):
        raise InvalidInput("--model, --agent and --session-id need --from STEP: a replay is exact")
    if step is not None:
        assert session is not None
        find = existing(call, session)
        used = None if agent is None else _agent(agent)

        async def begin(runtime: Runtime) -> str:
            source = await find(runtime)
            fork = await runtime.fork(
                source, step=step, model=model, agent=used, session_id=session_id
            )
            return fork.id

        async def act(runtime: Runtime, fork: str) -> TurnResult | None:
            return await runtime.resume(fork)

        options = {"allow_unconfined": allow_unconfined}
        return asyncio.run(drive(call, options, begin, act, quiet))
    reports = asyncio.run(_replay(call, session, export))
    if call.as_json:
        call.answer({"replays": [_document(report) for report in reports]}, "")
    else:
        call.answer(None, "\n".join(_text(report) for report in reports))
    return 1 if any(report.difference is not None for report in reports) else 0


def _agent(place: str) -> Agent[Any]:
    """Return the agent that a module holds under a name, as in `shop.agents:clerk`."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise InvalidInput(f"--agent is {place!r}; name a module and what it holds, as MODULE:NAME")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"--agent {place!r} cannot be imported: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(found, Agent):
        raise InvalidInput(f"--agent {place!r} is a {type(found).__name__}, not an Agent")
    return found


async def _replay(call: Call, session: str | None, export: Path | None) -> list[ReplayReport]:
    if export is not None:
        return await replay_export(export, session)
    assert session is not None
    async with opened(call) as store:
        return await replay_tree(store, (await find_session(store, session)).id)


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
