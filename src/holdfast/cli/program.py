"""Programs named by `--with`: a Python file that has agents, scopes, secrets and redaction."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.core.errors import InvalidInput

GUARDS = {"SCOPES": "scopes", "SECRETS": "secrets", "REDACT": "redact"}

program_option = click.option(
    "--with",
    "program",
    metavar="FILE",
    help="Python file that has AGENTS, and SCOPES, SECRETS or REDACT for them.",
)


def load_program(file: str | None) -> dict[str, Any]:
    """Return what a program offers; running it is what the user asked for."""
    if file is None:
        return {}
    if not Path(file).is_file():
        raise InvalidInput(f"there is no file {file!r} to take agents and tools from")
    return runpy.run_path(file)


def runtime_options(offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a program offers as options of a runtime; a table is a function of its keys."""
    options: dict[str, Any] = {}
    if offered.get("AGENTS"):
        options["agents"] = offered["AGENTS"]
    for name, option in GUARDS.items():
        given: Any = offered.get(name)
        if given is not None:
            options[option] = given.get if isinstance(given, Mapping) else given
    return options


def options_of_existing(offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for sessions that are there, which the default agent may drive, too."""
    from holdfast.runtime.agent import Agent

    options, default = runtime_options(offered), Agent()
    given = options.get("agents", ())
    if given and default.name not in {agent.name for agent in given}:
        options["agents"] = [*given, default]
    return options


def redaction(offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return how answers are redacted before they are stored, as an option of `answer`."""
    from holdfast.runtime.scope import Guards

    hook = offered.get("REDACT") or offered.get("redact")
    return {} if hook is None else {"redact": Guards(redact=hook).redacted}
