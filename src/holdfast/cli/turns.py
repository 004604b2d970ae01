"""Commands that drive a turn: run, send, resume. Ctrl-C cancels cleanly and says how to resume."""

from __future__ import annotations

import asyncio
import mimetypes
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli.interruption import Interruption
from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.people import answered_in_place, how_to_answer, told_waits
from holdfast.cli.program import (
    load_program,
    options_of_existing,
    program_option,
    runtime_options,
)
from holdfast.cli.progress import shown
from holdfast.cli.reading import with_store
from holdfast.cli.sessions import pair
from holdfast.cli.wording import form_text
from holdfast.core.errors import InvalidInput, StoreNotFound
from holdfast.core.ids import friendly_name
from holdfast.core.messages import Image
from holdfast.runtime import results, settle
from holdfast.runtime.inputs import check_names
from holdfast.runtime.results import (
    BudgetExceeded,
    Failed,
    Final,
    Queued,
    Stopped,
    Suspended,
    TurnResult,
    TurnSummary,
)
from holdfast.runtime.runtime import Runtime, open_runtime
from holdfast.runtime.settings import (
    CHOICES,
    NAMES,
    NUMBERS,
    Settings,
    check_model,
    resolve,
)
from holdfast.stores.choose import find_folder, store_url
from holdfast.stores.port import SessionStore
from holdfast.views.documents import result_document
from holdfast.views.values import value_form

Act = Callable[[Runtime, str], Awaitable[TurnResult | None]]

SHOWN_WAITS = 5

HELP = {
    "model": "Model: PROVIDER:MODEL, or script:FILE offline.",
    "leaf_model": "Model of lm and map_lm.",
    "model_options": "Options for the model, as a JSON object like '{\"temperature\": 0.2}'.",
    "prices": "Dollars per million tokens of other models, as a JSON object.",
    "retry": "Attempts at a failed model call: deadline (while its time lasts), off, or a number.",
    "kernel": "What runs code.",
    "harness": "What replies hold: code in cells, or native tool calls.",
    "audit": "What is kept of model calls beside the log.",
    "prose": "A reply without code: ask again (three times at most), or take it as the answer.",
    "profile": "What code may do: a named capability profile.",
    "work_area": "Folder whose files code may read, where the profile allows it.",
    "instructions": "Text added to the system prompt; @FILE reads it from a file.",
    "max_steps": "Model calls in one turn.",
    "max_turns": "Turns of the session.",
    "call_timeout_seconds": "Seconds for one model call, with its retries.",
    "turn_seconds": "Seconds of driving time for one turn.",
    "context_tokens": "Size of the model's context window in tokens.",
    "context_soft_percent": "Percentage of the window above which a new turn compacts first.",
    "context_hard_percent": "Percentage of the window above which no model call is made.",
    "compaction": "How a long transcript is shortened: evict, summary, window, in order.",
    "max_output_tokens": "Tokens of one reply.",
    "max_usd": "Dollars that the session may spend, as in 2.50.",
    "max_tokens": "Tokens that the session may use.",
    "max_calls": "Model calls of the session and its children; 0 is no limit.",
    "max_seconds": "Driving time of the session and its children; 0 is no limit.",
    "max_fanout": "Items of one map_lm or map_rlm.",
    "max_depth": "How many sessions deep rlm goes.",
    "child_concurrency": "Children of one session that are driven at once.",
    "leaf_concurrency": "Calls of lm and map_lm in flight at once in the session.",
    "process_leaf_concurrency": "Calls of lm and map_lm in flight at once in the process.",
    "leaf_timeout_seconds": "Seconds for one call of lm or map_lm, with its retries.",
}
NO_VALUE = {
    "model": "none; needed",
    "leaf_model": "the model",
    "model_options": "none",
    "prices": "none",
    "work_area": "the current folder",
    "compaction": "none; a full window ends the turn",
    "instructions": "none",
    "max_output_tokens": "what the model allows",
}
"""What a setting that is empty or 0 means, where that is not simply: no limit."""


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for every setting."""
    defaults = Settings()
    for name in reversed(NAMES):
        kind: Any = int if name in NUMBERS else str
        if name in CHOICES:
            kind = click.Choice(CHOICES[name])
        default = getattr(defaults, name) or NO_VALUE.get(name, "no limit")
        option = click.option(
            "--" + name.replace("_", "-"),
            name,
            type=kind,
            help=f"{HELP.get(name, '')}  [default: {default}]",
        )
        function = option(function)
    return function


def turn_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of everything that drives a session."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="No progress on standard error."),
        click.option(
            "--allow-unconfined",
            is_flag=True,
            help="Run model-written code without confinement where there is none. Dangerous.",
        ),
    ):
        function = option(function)
    return function


def input_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that hand something to the code and the model."""
    for name, metavar, text in (
        ("image", "NAME=FILE", "An image for the model to see, and a variable with its bytes."),
        ("file", "NAME=FILE", "A file that the code reads itself, of any size."),
        ("input", "NAME=VALUE", "A variable for the code: text, or @FILE for a file's text."),
    ):
        function = click.option(
            f"--{name}",
            f"{name}s",
            multiple=True,
            metavar=metavar,
            help=f"{text} May be repeated.",
        )(function)
    return function


@command("run")
@click.argument("message")
@input_options
@click.option("--session-id", metavar="ID", help="Id of the session.  [default: a new one]")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="A label to find the session by. May be repeated.",
)
@click.option("--agent", metavar="NAME", help="Agent of the program that --with names.")
@program_option
@settings_options
@turn_options
def run_command(
    call: Call,
    message: str,
    inputs: tuple[str, ...],
    files: tuple[str, ...],
    images: tuple[str, ...],
    session_id: str | None,
    labels: tuple[str, ...],
    agent: str | None,
    program: str | None,
    quiet: bool,
    allow_unconfined: bool,
    **settings: Any,
) -> int:
    """Start a session and work on MESSAGE until the turn ends; `-` reads standard input."""
    text = message_text(message)
    variables = read_inputs(inputs, files, images)
    settings["instructions"] = _from_file(settings["instructions"])
    tags = dict(pair(label, "--label") for label in labels)
    # Here, before there is a store that nobody asked for.
    if agent is None:
        check_model(resolve(settings, folder=find_folder(Path.cwd())).settings)
    offered = runtime_options(load_program(program))

    async def begin(runtime: Runtime) -> str:
        return (await runtime.start(session_id=session_id, labels=tags, agent=agent)).id

    async def act(runtime: Runtime, session: str) -> TurnResult | None:
        return await runtime.send(session, text, inputs=variables)

    options = {**settings, **offered, "allow_unconfined": allow_unconfined}
    return asyncio.run(drive(call, options, begin, act, quiet))


@command("send")
@session_argument
@click.argument("message")
@input_options
@click.option("--queue", is_flag=True, help="If the session is busy, wait in its inbox.")
@click.option("--no-wait", is_flag=True, help="Leave it to a worker, and return at once.")
@click.option("--takeover", is_flag=True, help="Drive an imported copy that has open work.")
@program_option
@turn_options
def send_command(
    call: Call,
    session: str,
    message: str,
    inputs: tuple[str, ...],
    files: tuple[str, ...],
    images: tuple[str, ...],
    queue: bool,
    no_wait: bool,
    takeover: bool,
    program: str | None,
    quiet: bool,
    allow_unconfined: bool,
) -> int:
    """Send MESSAGE to SESSION (id, beginning of it, or name); `-` reads standard input."""
    text = message_text(message)
    variables = read_inputs(inputs, files, images)

    async def act(runtime: Runtime, session_id: str) -> TurnResult | None:
        return await runtime.send(
            session_id,
            text,
            inputs=variables,
            when_busy="queue" if queue else "error",
            takeover=takeover,
            wait=not no_wait,
        )

    options = {**options_of_existing(load_program(program)), "allow_unconfined": allow_unconfined}
    return asyncio.run(drive(call, options, existing(call, session), act, quiet))


@command("resume")
@session_argument
@click.option("--force", is_flag=True, help="Also after two revivals without a new outcome.")
@click.option("--retry", is_flag=True, help="Also take up the last turn if it failed.")
@click.option("--takeover", is_flag=True, help="Drive an imported copy that has open work.")
@program_option
@turn_options
def resume_command(
    call: Call,
    session: str,
    force: bool,
    retry: bool,
    takeover: bool,
    program: str | None,
    quiet: bool,
    allow_unconfined: bool,
) -> int:
    """Resume the open turn of SESSION, and work the messages that wait in its inbox."""

    from holdfast.cli.runs import resume_run, run_above

    async def above(store: SessionStore) -> str | None:
        return await run_above(store, (await find_session(store, session)).id)

    run = with_store(call, above)
    if run is not None:
        return resume_run(call, run, program=program, quiet=quiet, takeover=takeover)

    async def act(runtime: Runtime, session_id: str) -> TurnResult | None:
        if retry:
            return await runtime.retry(session_id, takeover=takeover)
        return await runtime.resume(session_id, force=force, takeover=takeover)

    options = {**options_of_existing(load_program(program)), "allow_unconfined": allow_unconfined}
    return asyncio.run(drive(call, options, existing(call, session), act, quiet))


def message_text(message: str) -> str:
    """Return the message, read from standard input where it is `-`."""
    if message == "-":
        message = _standard_input()
    if not message.strip():
        raise InvalidInput("the message is empty; say what is to be done")
    return message


def _standard_input() -> str:
    if sys.stdin is None:
        raise InvalidInput("the message is '-', but there is no standard input to read it from")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input cannot be read as text: {error}") from error


def read_inputs(
    given: tuple[str, ...], files: tuple[str, ...] = (), images: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the inputs of a turn; `@FILE` is the text of a file, `@@` an `@`."""
    readers = (("--input", given, _from_file), ("--file", files, Path), ("--image", images, _image))
    inputs: dict[str, Any] = {}
    for option, texts, read in readers:
        for text in texts:
            name, value = pair(text, option)
            if name in inputs:
                raise InvalidInput(f"{option} names {name!r} twice")
            # Here, before there is a session that would be left without a turn.
            check_names([name])
            inputs[name] = read(value)
    return inputs


def _image(value: str) -> Image:
    kind, _ = mimetypes.guess_type(value)
    if kind is None or not kind.startswith("image/"):
        raise InvalidInput(f"{value!r} has no ending of an image, such as .png or .jpeg")
    try:
        return Image(Path(value).read_bytes(), kind, Path(value).name)
    except OSError as error:
        raise InvalidInput(f"the image {value!r} cannot be read: {error}") from error


def _from_file(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    path = Path(value[1:])
    try:
        # Not read_text(): it would turn every \r\n of the file into \n.
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the file {str(path)!r} cannot be read as text: {error}") from error


def existing(call: Call, given: str) -> Callable[[Runtime], Awaitable[str]]:
    """Return what finds a session of a store that is there."""
    url, _ = store_url(call.store)
    kind, _, place = url.partition(":")
    if kind != "memory" and not Path(place).exists():
        raise StoreNotFound(f"there is no store at {place!r}; name another with --store")

    async def begin(runtime: Runtime) -> str:
        return (await find_session(runtime.store, given)).id

    return begin


async def drive(
    call: Call,
    options: dict[str, Any],
    begin: Callable[[Runtime], Awaitable[str]],
    act: Act,
    quiet: bool,
) -> int:
    """Open the store, find or start the session, drive it, and report the result."""
    with Interruption() as interruption:
        session = None
        try:
            async with await open_runtime(call.store, **options) as runtime:
                session = await begin(runtime)
                if not quiet:
                    note(f"session {session} ({friendly_name(session)})")
                try:
                    async with shown(runtime, session, quiet=quiet):
                        result = await act(runtime, session)
                    while isinstance(result, Suspended) and _is_attended(call):
                        if not await answered_in_place(runtime.store, session, options):
                            break
                        async with shown(runtime, session, quiet=quiet):
                            result = await runtime.resume(session) or result
                except asyncio.CancelledError:
                    interruption.handled()
                    return await _interrupted(call, runtime, session, interruption)
                code = await _tell(call, runtime, session, result)
                # Messages that came meanwhile are this process's to work.
                await runtime.settled()
                return code
        except asyncio.CancelledError:
            interruption.handled()
            text = f"interrupted{'' if session is None else f'; {session} is as it stood'}"
            if call.as_json and session is None:
                call.answer({"error": {"code": "interrupted", "message": text}}, "")
            else:
                note(text)
            return interruption.exit_code


def _is_attended(call: Call) -> bool:
    """Tell whether a person sits at the terminal, whom open questions can be put to."""
    return not call.as_json and sys.stdin.isatty() and sys.stderr.isatty()


async def _interrupted(
    call: Call, runtime: Runtime, session: str, interruption: Interruption
) -> int:
    state = await runtime.state(session)
    if call.as_json:
        spend = settle.spend_if_broken_off(state)
        so_far = TurnSummary(**results.so_far(state, spend))
        call.answer(result_document(so_far, status="interrupted"), "")
    elif state.turn is not None:
        note(f"interrupted; everything up to here is stored. Resume: {_next(call, session)}")
    else:
        again = call.command_line("send", session, "MESSAGE")
        note(f"interrupted before the turn began. Send again: {again}")
    return interruption.exit_code


def _next(call: Call, session: str) -> str:
    return call.command_line("resume", session)


async def _tell_waits(call: Call, runtime: Runtime, session: str) -> None:
    told = await told_waits(runtime.store, session)
    for wait, asked in told[:SHOWN_WAITS]:
        note(f"suspended: {wait.kind} {wait.call_id}: {asked}")
        note(f"  answer with: {how_to_answer(call, wait)}")
    if len(told) > SHOWN_WAITS:
        note(f"and {len(told) - SHOWN_WAITS} more: {call.command_line('pending')}")


async def _tell(call: Call, runtime: Runtime, session: str, result: TurnResult | None) -> int:
    if result is None:
        info = await runtime.store.session_info(session)
        if call.as_json:
            nothing = TurnSummary(session=session, head=info.head)
            call.answer(result_document(nothing, status=info.status), "")
        else:
            look = call.command_line("show", session)
            note(f"nothing to resume in {session}; send it a message, or see: {look}")
        return 0
    if call.as_json:
        call.answer(result_document(result), "")
        sys.stdout.flush()
        return result.EXIT_CODE
    match result:
        case Final():
            call.answer(None, form_text(value_form(result.value)))
            sys.stdout.flush()
        case Queued():
            note(f"the session is busy; the message waits in its inbox as {result.key!r}")
        case Suspended():
            await _tell_waits(call, runtime, session)
        case Failed(code="revival_limit"):
            note(f"failed: {result.error}; {call.command_line('resume', session, '--force')}")
        case Failed() | BudgetExceeded():
            look = call.command_line("show", session)
            note(f"{result.status}: {result.error.rstrip('.')}. See: {look}")
            if isinstance(result, BudgetExceeded) and result.limit == "context_tokens":
                earlier = call.command_line("fork", session, "--head", "HEAD")
                note(f"The transcript is too long to continue; fork an earlier head: {earlier}")
        case Stopped(turn=None):
            fork = call.command_line("fork", session)
            note(f"stopped: {session} takes no more messages; continue in a fork: {fork}")
        case _:
            note(f"{result.status}: {getattr(result, 'error', '') or session}")
    return result.EXIT_CODE
