"""`holdfast demo`: a tour with real commands, a real kill and a scripted model.

Every act is the `holdfast` command itself, in a process of its own. The one that works is killed
with SIGKILL as soon as the log says that it is in the middle of its leaf calls; what the tour
claims afterwards is read from the log.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from holdfast.cli.demo_material import FOLLOW_UP, QUESTION, REPORTS, harbour_log, write_script
from holdfast.cli.doctor import auto_kernel
from holdfast.cli.options import Call, command, program
from holdfast.core.errors import HoldfastError, InvalidInput, SessionNotFound
from holdfast.core.facts import BudgetSettled, LeafCalled
from holdfast.stores.choose import open_store
from holdfast.stores.port import SessionStore

KILL_AFTER_LEAVES = 9
LEAF_CONCURRENCY = 4
LEAF_DELAYS_MS = (200, 1000)  # the second only where this machine is too busy to hit the first
ONLY = "Corrin"


class DemoFailed(HoldfastError):
    """A step of the demo did not do what it should."""


@command("demo")
@click.option(
    "--at",
    "place",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where to work: a new or empty folder. By default a temporary one.",
)
def demo_command(call: Call, place: Path | None) -> None:
    """Question a text larger than a context window, kill the process, resume, fork, verify."""
    if place is None:
        place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    if place.exists() and any(place.iterdir()):
        raise InvalidInput(f"{str(place)!r} is not empty; name a new folder for the demo")
    place.mkdir(parents=True, exist_ok=True)
    document = asyncio.run(Demo(place.resolve(), quiet=call.as_json).run())
    if call.as_json:
        call.answer(document, "")


@dataclass(slots=True)
class Demo:
    """One tour, in one folder."""

    place: Path
    quiet: bool
    session: str = "harbour"
    fork: str = "harbour-what-if"
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """Return the place of the store."""
        return str(self.place / ".holdfast")

    async def run(self) -> dict[str, Any]:
        """Give the whole tour and return what it found."""
        text = await asyncio.to_thread(self._prepare)
        self._say(f"Everything of this tour is in {self.place}")
        self._say(
            f"  log.txt       {len(text):,} characters, about {len(text) // 4:,} tokens: more than "
            "a context window\n"
            "  script.jsonl  the replies of the scripted model: no network, no key"
        )
        problems: list[str] = []
        kernel = await auto_kernel(problems)
        if problems:
            raise DemoFailed(problems[0])
        self._say(f"Code runs in the {kernel['auto']} kernel, confinement: {kernel['confinement']}")
        store = await open_store(self.store)
        try:
            await self._run_and_kill(store)
            await self._resume(store)
            await self._fork(store)
            await self._verify()
        finally:
            await store.close()
        self._say_what_next()
        return {"folder": str(self.place), "store": self.store, "kernel": kernel, **self.found}

    def _prepare(self) -> str:
        text = harbour_log()
        (self.place / "log.txt").write_text(text, encoding="utf-8")
        return text

    async def _run_and_kill(self, store: SessionStore) -> None:
        self._say("\n1. A question over the whole log, answered by code and model calls from code:")
        for delay in LEAF_DELAYS_MS:
            write_script(self.place / "script.jsonl", delay)
            self._say_command(self._question())
            async with store.subscribe_all() as hints:
                process = await self._start(self._question())
                ended = asyncio.ensure_future(process.communicate())
                while not ended.done():
                    hint = asyncio.ensure_future(anext(aiter(hints)))
                    await asyncio.wait({hint, ended}, return_when=asyncio.FIRST_COMPLETED)
                    hint.cancel()
                    if len(await _leaves(store, self.session)) >= KILL_AFTER_LEAVES:
                        break
            if not ended.done():
                process.kill()
            _, told = await ended
            leaves = await _leaves(store, self.session)
            if process.returncode == -9 and len(leaves) < REPORTS:
                self._say(
                    f"\n2. Killed with SIGKILL (process {process.pid}) in the middle of {REPORTS} "
                    f"model calls. The log has {len(leaves)} answers."
                )
                self.found |= {"session": self.session, "leaves_before_kill": leaves}
                return
            if process.returncode not in (0, -9):
                raise DemoFailed(f"the run failed: {told.decode(errors='replace').strip()}")
            self._say("   (it ended before it could be killed; once more, with slower answers)")
            self.session = f"{self.session}-again"
        raise DemoFailed("the run could not be killed midway; this machine is too busy")

    async def _resume(self, store: SessionStore) -> None:
        self._say("\n3. Another process resumes from the log:")
        answer = await self._holdfast("resume", self.session)
        kept = self.found["leaves_before_kill"]
        leaves = await _leaves(store, self.session)
        asked_once = len({leaf["item"] for leaf in leaves}) == len(leaves) == REPORTS
        if leaves[: len(kept)] != kept or not asked_once:
            raise DemoFailed("a recorded answer was asked for again")
        lost = len(await store.read_events(self.session, types=[BudgetSettled.TYPE]))
        self._say(
            f"   {len(kept)} answers came from the log and were not asked for again; the other "
            f"{len(leaves) - len(kept)} were asked now.\n"
            f"   {lost} of those had been in flight: the log says that their cost is unknown.\n"
            f"   answer: {json.dumps(answer['value'])}"
        )
        self.found |= {
            "value": answer["value"],
            "leaves_before_kill": len(kept),
            "leaves_after_resume": len(leaves) - len(kept),
            "leaves_lost": lost,
        }

    async def _fork(self, store: SessionStore) -> None:
        self._say("\n4. A fork starts from the answer; the original stays as it is:")
        await self._holdfast("fork", self.session, "--session-id", self.fork)
        answer = await self._holdfast("send", self.fork, FOLLOW_UP, "--input", f"only={ONLY}")
        asked = len(await _leaves(store, self.fork))
        self._say(
            f"   {asked} model calls from code: the fork has the variables, the verdicts among "
            f"them.\n   answer: {json.dumps(answer['value'])}"
        )
        self.found |= {"fork": self.fork, "fork_value": answer["value"], "fork_leaves": asked}

    async def _verify(self) -> None:
        self._say("\n5. Every digest, head and stored value is verified:")
        report = await self._holdfast("verify")
        events = sum(item["events"] for item in report["sessions"])
        payloads = sum(item["payloads"] for item in report["sessions"])
        self._say(f"   {events} events and {payloads} stored values are intact")
        self.found |= {"verified": report["ok"]}

    def _say_what_next(self) -> None:
        self._say("\nTry next:")
        for words in (
            ("show", self.session),
            ("events", self.session, "--type", "leaf.called"),
            ("vars", self.session),
            ("tree",),
            ("fork", self.session),
        ):
            self._say("  " + self._line(*words))
        self._say(f"\nRemove it all with: rm -r {shlex.quote(str(self.place))}")

    def _question(self) -> tuple[str, ...]:
        return (
            *("run", QUESTION),
            *("--session-id", self.session),
            *("--model", f"script:{self.place / 'script.jsonl'}"),
            *("--input", f"text=@{self.place / 'log.txt'}"),
            *("--leaf-concurrency", str(LEAF_CONCURRENCY)),
        )

    async def _holdfast(self, *words: str) -> Any:
        """Do one command in a process of its own and return its document."""
        self._say_command(words)
        process = await self._start((*words, "--json"))
        out, told = await process.communicate()
        if process.returncode != 0:
            why = (told or out).decode(errors="replace").strip()
            raise DemoFailed(f"`{self._line(*words)}` failed: {why}")
        return json.loads(out)

    async def _start(self, words: tuple[str, ...]) -> Process:
        # The tour is the same for everyone: settings of this user or folder stay out of it.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "--store", self.store, *words),
            stdout=PIPE,
            stderr=PIPE,
            cwd=self.place,
            env=environment,
        )

    def _line(self, *words: str) -> str:
        return shlex.join([*program(), "--store", self.store, *words])

    def _say_command(self, words: tuple[str, ...]) -> None:
        self._say(f"   {self._line(*words)}")

    def _say(self, text: str) -> None:
        if not self.quiet:
            click.echo(text)


async def _leaves(store: SessionStore, session: str) -> list[dict[str, Any]]:
    """Return what the log has of a session's leaf calls."""
    try:
        events = await store.read_events(session, types=[LeafCalled.TYPE])
    except SessionNotFound:
        return []
    return [
        {"seq": event.seq, "digest": event.digest, "item": event.data.get("item", 0)}
        for event in events
    ]
