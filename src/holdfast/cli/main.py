"""The `holdfast` command: which commands there are, and how each way to end becomes an exit code.

A command's module is imported when the command is used, so `holdfast --help` loads nothing but
click. Errors are told on standard error with the next step, or as one document with `--json`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from holdfast.cli.options import STORE_HELP, note
from holdfast.cli.terminal import dumps
from holdfast.core.errors import HoldfastError, InvalidInput, NotFound

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Drive sessions": {
        "run": ("turns", "Start a session and work on a message."),
        "send": ("turns", "Send a message to a session."),
        "resume": ("turns", "Resume an interrupted turn, work on queued messages."),
        "compact": ("context", "Shorten what the model is sent of a session."),
        "stop": ("sessions", "Stop a session."),
        "fork": ("sessions", "Start a session from a head of another."),
        "cancel": ("runs", "End a workflow run; it can be resumed."),
        "rewind": ("rewind", "Run a part of a workflow run again, as a new run."),
        "worker": ("worker", "Drive whatever has work, beside other workers."),
        "workflow": ("workflow", "Check a workflow file, draw it, run it."),
    },
    "People": {
        "pending": ("people", "List the calls that wait for someone."),
        "answer": ("people", "Answer a call, approve it or deny it."),
        "signal": ("rewind", "Send a workflow run what one of its nodes waits for."),
        "tick": ("people", "Apply the deadlines that have passed."),
    },
    "Serve": {
        "serve": ("serve", "Serve the HTTP API and the viewer."),
        "view": ("serve", "Open the viewer in the browser."),
        "mcp": ("mcp", "Serve sessions to MCP clients."),
        "token": ("serve", "Create, list and revoke tokens for the API."),
    },
    "Read": {
        "sessions": ("sessions", "List sessions, newest first."),
        "runs": ("runs", "List workflow runs, newest first."),
        "artifacts": ("run_views", "Show what a workflow run published."),
        "report": ("run_views", "Print a workflow run as a page."),
        "show": ("show", "Show a session: turns, steps, code, output, cost."),
        "events": ("events", "Print a session's log, or follow it."),
        "heads": ("lineage", "List the heads of a session."),
        "tree": ("lineage", "Show parents, forks and children, and what they cost."),
        "graph": ("lineage", "Print the tree as a graph for Graphviz or Mermaid."),
        "diff": ("lineage", "Show the first divergence of two sessions."),
        "replay": ("replay", "Execute a session again from its log, and compare."),
        "context": ("context", "Show what the model would be sent now, and why."),
        "vars": ("payloads", "List the variables at the last checkpoint."),
        "payload": ("payloads", "Print a stored value."),
    },
    "Maintain": {
        "verify": ("maintenance", "Verify every digest, head and stored value."),
        "gc": ("maintenance", "Remove payloads that nothing refers to."),
        "audit": ("maintenance", "Show the audit of model calls."),
        "export": ("maintenance", "Write sessions to one portable file."),
        "import": ("maintenance", "Store the sessions of an exported file."),
        "copy": ("copying", "Copy or move sessions to another store."),
        "erase": ("payloads", "Erase one value; the rest still verifies."),
        "delete": ("sessions", "Delete a session."),
    },
    "Set up": {
        "demo": ("demo", "A tour of half a minute: no network, no key."),
        "doctor": ("doctor", "Check this machine and this store."),
        "config": ("doctor", "Show every setting and where it comes from."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class Commands(click.Group):
    """The commands by name, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"holdfast.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was meant; say which one may have been where there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


def _show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from holdfast import __version__

        click.echo(f"holdfast {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    epilog="Start with `holdfast demo`. Every command takes --json and --help.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 140},
)
@click.option("--store", metavar="PLACE", help=STORE_HELP)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version.",
)
@click.pass_context
def holdfast(context: click.Context, store: str | None) -> None:
    """A durable runtime for LLM agents: sessions that survive a kill."""
    context.obj = store


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's encoding cannot say must not end the command.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`holdfast events … | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give output nowhere to go where it was closed: the next file opened must not get it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is taken, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None and name != "stdin":
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def run(given: list[str]) -> int:
    """Run one command and return its exit code; errors are reported here."""
    options = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in options
    try:
        result: Any = holdfast.main(given, prog_name="holdfast", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        return _usage(error, as_json)
    except click.ClickException as error:
        return _report("failed", error.format_message(), 1, as_json)
    except HoldfastError as error:
        code = 2 if isinstance(error, InvalidInput | NotFound) else 1
        return _report(error.code, str(error), code, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _report("interrupted", "interrupted", 130, as_json)
    except OSError as error:
        return _report("system_error", str(error), 1, as_json)
    except Exception as error:
        import traceback

        note(traceback.format_exc())
        text = f"this is a bug in Holdfast: {type(error).__name__}: {error}"
        return _report("internal_error", text, 1, as_json)


def _usage(error: click.UsageError, as_json: bool) -> int:
    if as_json:
        return _report("usage", error.format_message(), 2, as_json)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note(error.format_message())
        return 2
    if error.ctx is not None:
        note(error.ctx.get_usage())
        note(f"Try '{error.ctx.command_path} --help' for help.")
    return _report("usage", error.format_message(), 2, as_json)


def _report(code: str, message: str, exit_code: int, as_json: bool) -> int:
    if as_json:
        try:
            click.echo(dumps({"error": {"code": code, "message": message}}))
            return exit_code
        except BrokenPipeError:
            raise
        except OSError:
            # The document has nowhere to go, which may be the very error: tell people.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    note(f"error: {message}")
    return exit_code
