"""Options of every command: the store, and whether to print a document."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from holdfast.cli.terminal import clean, dumps

STORE_HELP = "Path or URL of the store.  [default: $HOLDFAST_STORE, else the nearest .holdfast]"


@dataclass(frozen=True, slots=True)
class Call:
    """How a command was called."""

    store: str | None
    as_json: bool

    def answer(self, document: Any, text: str) -> None:
        """Print the result: a document with --json, else text."""
        click.echo(dumps(document) if self.as_json else clean(text))

    def command_line(self, *words: str) -> str:
        """Return a command for people to type or paste next, on the same store."""
        place = ["--store", self.store] if self.store else []
        return clean(shlex.join([*program(), *place, *words]))


def program() -> list[str]:
    """Return the words that start this program where the next command is typed."""
    found, own = shutil.which("holdfast"), Path(sys.argv[0])
    if own.name == "holdfast" and own.is_file():
        return ["holdfast"] if found and own.samefile(found) else [str(own.absolute())]
    return ["holdfast"] if found else [sys.executable, "-m", "holdfast"]


def command(name: str) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a command of a function that takes a Call and its own options."""

    def wrap(function: Callable[..., int | None]) -> click.Command:
        def run(context: click.Context, store: str | None, as_json: bool, **options: Any) -> Any:
            _log_to_standard_error()
            return function(Call(store or context.obj, as_json), **options)

        # The function's own options and help text go along with it.
        wrapped: Any = click.pass_context(functools.update_wrapper(run, function))
        wrapped = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
            wrapped
        )
        wrapped = click.option("--store", metavar="PLACE", help=STORE_HELP)(wrapped)
        made: click.Command = click.command(name)(wrapped)
        return made

    return wrap


def _log_to_standard_error() -> None:
    """Show warnings of the library; they may quote what a model or a user wrote."""
    import logging

    class CleanFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return clean(super().format(record))

    logger = logging.getLogger("holdfast")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(CleanFormatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


session_argument = click.argument("session")


def note(text: str) -> None:
    """Print a note on standard error; a closed stream is not an error."""
    try:
        click.echo(clean(text), err=True)
    except OSError:
        # What Python still holds back for this stream would fail again when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
