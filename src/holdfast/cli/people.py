"""Calls that wait for people: list them, answer them, apply their deadlines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.program import load_program, options_of_existing, program_option, redaction
from holdfast.cli.reading import opened, with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.core.errors import AgentMissing, InvalidInput
from holdfast.stores.port import PendingFilter, PendingPage, PendingWait, SessionStore
from holdfast.views.documents import pending_document
from holdfast.views.values import read_value

if TYPE_CHECKING:
    from holdfast.runtime.results import TurnResult
    from holdfast.runtime.runtime import Runtime

COLUMNS = (
    Column("SESSION", least=15, is_id=True),
    Column("CALL", least=8),
    Column("KIND"),
    Column("SINCE", spare=1),
    Column("UNTIL", spare=2),
    Column("FOR", spare=3),
    Column("QUESTION", least=16),
)


@command("pending")
@click.option("--session", help="Only calls of this session.")
@click.option("--assignee", help="Only calls that wait for this person.")
@click.option("--tenant", help="Calls of this tenant, or of all with '*'.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to list."
)
@click.option("--cursor", help="Start after the page that gave this cursor.")
def pending_command(
    call: Call,
    session: str | None,
    assignee: str | None,
    tenant: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """List the calls of all sessions that wait for someone, longest wait first."""
    from holdfast.runtime.answers import waiting

    async def read(store: SessionStore) -> tuple[PendingPage, list[Any]]:
        chosen = None if session is None else (await find_session(store, session)).id
        where = PendingFilter(tenant=tenant, session=chosen, assignee=assignee)
        page = await waiting(store, where, limit=limit, cursor=cursor)
        return page, [await _prompt(store, wait) for wait in page.waits]

    page, prompts = with_store(call, read)
    shown = list(zip(page.waits, prompts, strict=True))
    document = {
        "pending": [pending_document(wait, prompt) for wait, prompt in shown],
        "cursor": page.cursor,
    }
    rows = table(COLUMNS, (_row(wait, prompt) for wait, prompt in shown), screen_width())
    call.answer(document, rows if shown else "nothing waits for anybody")
    if shown and not call.as_json:
        note(f"answer the first with: {how_to_answer(call, page.waits[0])}")


def how_to_answer(call: Call, wait: PendingWait) -> str:
    """Return the command that answers a call."""
    how = "--approve (or --deny REASON, --edit JSON)" if wait.kind == "approval" else "--value JSON"
    return f"{call.command_line('answer', wait.session, wait.call_id)} {how}"


async def told_waits(store: SessionStore, session: str) -> list[tuple[PendingWait, str]]:
    """Return what a session and its children wait for, each with what is asked in one line."""
    from holdfast.runtime.answers import waiting_below

    waits = await waiting_below(store, session)
    return [(wait, question_text(await _prompt(store, wait))) for wait in waits]


async def _prompt(store: SessionStore, wait: PendingWait) -> Any:
    if wait.prompt is None:
        return None
    return await read_value(store.of(wait.tenant), wait.session, wait.prompt)


def question_text(prompt: Any) -> str:
    """Return what is asked, in one line."""
    if isinstance(prompt, dict):
        if "question" in prompt:
            return f"{prompt.get('tool', '')}: {prompt['question']}"
        arguments = prompt.get("arguments")
        shown = "" if arguments is None else f"({json.dumps(arguments, default=str)})"
        return f"{prompt.get('tool', '')}{shown}"
    return "" if prompt is None else str(prompt)


def _row(wait: PendingWait, prompt: Any) -> tuple[str, ...]:
    return (
        wait.session,
        wait.call_id,
        wait.kind,
        wait.since[:16].replace("T", " "),
        "" if wait.deadline is None else wait.deadline[:16].replace("T", " "),
        wait.assignee or "",
        question_text(prompt),
    )


@command("answer")
@session_argument
@click.argument("call_id", metavar="CALL")
@click.option("--value", metavar="JSON", help="The answer, as JSON; plain words are text.")
@click.option("--approve", is_flag=True, help="Let the call go ahead.")
@click.option("--deny", metavar="REASON", help="Refuse the call.")
@click.option("--edit", metavar="JSON", help="Let it go ahead with these arguments.")
@click.option("--fail", metavar="ERROR", help="Say that the call failed.")
@click.option("--extend", metavar="TIME", help="Move its deadline to this time (ISO 8601).")
@click.option("--cancel", is_flag=True, help="Call it off.")
@click.option("--by", metavar="NAME", help="Who answers.")
@click.option("--scope", metavar="REFERENCE", help="For whom an approved call acts.")
@click.option("--no-resume", is_flag=True, help="Leave it to another process to go on.")
@program_option
def answer_command(
    call: Call, session: str, call_id: str, no_resume: bool, program: str | None, **said: Any
) -> int:
    """Answer CALL of SESSION, which waits for someone; the session goes on here.

    The first answer wins. Without an option that says the answer, it is asked for on the terminal.
    """
    from holdfast.cli.runs import resume_run, run_above
    from holdfast.cli.turns import drive, existing

    by, reference = said.pop("by"), said.pop("scope")
    chosen = _chosen(said)
    offered = load_program(program)

    async def put() -> tuple[str, str | None]:
        from holdfast.runtime import answers
        from holdfast.runtime.scope import Scope

        about: dict[str, Any] = {"by": by, **redaction(offered)}
        if reference is not None:
            about["scope"] = Scope(reference=reference)
        async with opened(call) as store:
            info = await find_session(store, session)
            match chosen:
                case ("extend", deadline):
                    await answers.extend(store, info.id, call_id, deadline, by)
                case ("cancel", _):
                    await answers.cancel(store, info.id, call_id, by)
                case ("answer", content):
                    await answers.answer(store, info.id, call_id, content, **about)
                case _:
                    content = await _asked(store, info.id, call_id)
                    await answers.answer(store, info.id, call_id, content, **about)
            return await _root(store, info.id), await run_above(store, info.id)

    root, run = asyncio.run(put())
    if no_resume:
        call.answer({"session": session, "call": call_id, "stored": True}, "the answer is stored")
        return 0
    if run is not None:
        return resume_run(call, run, program=program, quiet=call.as_json)
    begin = existing(call, root)

    async def act(runtime: Runtime, found: str) -> TurnResult | None:
        return await runtime.resume(found)

    try:
        return asyncio.run(drive(call, options_of_existing(offered), begin, act, call.as_json))
    except AgentMissing as error:
        stored = {"session": session, "call": call_id, "stored": True}
        call.answer(stored, "the answer is stored")
        note(f"{error}; a process that has it goes on, as with --with FILE or `holdfast worker`")
        return 0


async def _root(store: SessionStore, session: str) -> str:
    """Return the session at the top of a tree: with it, what waits for an answer below goes on."""
    while (parent := (await store.load_state(session)).parent) is not None:
        session = parent["session"]
    return session


def _chosen(said: dict[str, Any]) -> tuple[str, Any] | None:
    """Return what the options say; refuse more than one answer."""
    from holdfast.runtime.answers import Approve, Deny, Fail

    given = [name for name, value in said.items() if value not in (None, False)]
    if len(given) > 1:
        options = ", ".join(f"--{name}" for name in given)
        raise InvalidInput(f"{options} are several answers; give one")
    if not given:
        return None
    value = said[given[0]]
    match given[0]:
        case "value":
            return "answer", json_or_text(value)
        case "approve":
            return "answer", Approve()
        case "deny":
            return "answer", Deny(value)
        case "fail":
            return "answer", Fail(value)
        case "edit":
            return "answer", Approve(_object(value))
        case "extend":
            return "extend", _moment(value)
    return "cancel", None


def json_or_text(text: str) -> Any:
    """Return a value that was typed: JSON where it is some, else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _object(text: str) -> dict[str, Any]:
    found = json_or_text(text)
    if not isinstance(found, dict):
        raise InvalidInput(f"--edit {text[:80]!r} is not a JSON object of arguments")
    return found


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"--extend {text!r} is not a time like 2026-01-31T12:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


async def _asked(store: SessionStore, session: str, call_id: str) -> Any:
    """Ask on the terminal for the answer to a call."""
    import sys

    page = await store.pending(PendingFilter(session=session), limit=1000)
    wait = next((wait for wait in page.waits if wait.call_id == call_id), None)
    if wait is None:
        from holdfast.core.errors import CallNotFound

        raise CallNotFound(f"no call {call_id!r} of session {session!r} waits for an answer")
    if not sys.stdin.isatty():
        raise InvalidInput(
            "stdin is not a terminal; say the answer with --value, --approve, --deny"
        )
    return answer_in_place(wait, await _prompt(store, wait))


async def answered_in_place(
    store: SessionStore, session: str, offered: Mapping[str, Any] | None = None
) -> bool:
    """Put the open questions of a session to the person at the terminal; tell if one was answered.

    Those of the children that it waits for are among them. Those for someone else, and those that
    are left with Ctrl-D, go on waiting.
    """
    from holdfast.runtime import answers

    answered = False
    for wait in await answers.waiting_below(store, session):
        if wait.assignee is not None or wait.kind == "client":
            continue
        prompt = await _prompt(store, wait)
        while True:
            try:
                said = await asyncio.to_thread(answer_in_place, wait, prompt)
            except click.Abort:
                return False
            try:
                await answers.answer(
                    *(store, wait.session, wait.call_id, said),
                    wait=wait.wait,
                    **redaction(offered or {}),
                )
                answered = True
                break
            except InvalidInput as error:
                note(str(error))
    return answered


def answer_in_place(wait: PendingWait, prompt: Any) -> Any:
    """Ask the person at the terminal, and return what they say as an answer."""
    from holdfast.runtime.answers import Approve, Deny

    note(f"{wait.kind}: {question_text(prompt)}")
    if wait.kind != "approval":
        return json_or_text(click.prompt("answer (Ctrl-D leaves it open)", err=True))
    if click.confirm("approve? (Ctrl-D leaves it open)", err=True):
        return Approve()
    return Deny(click.prompt("reason", default="denied", err=True))


@command("tick")
def tick_command(call: Call) -> None:
    """Apply the deadlines that have passed, for cron; sessions go on with the next resume."""

    async def work() -> list[str]:
        from holdfast.runtime.runtime import Runtime
        from holdfast.runtime.settings import resolve

        async with opened(call) as store, Runtime(store, resolved=resolve()) as runtime:
            found = await runtime.tick()
            await runtime.settled()
            return found

    found = asyncio.run(work())
    lines = "\n".join(found) if found else "no deadline has passed"
    call.answer({"sessions": found}, lines)
