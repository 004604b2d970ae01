"""Whoever may use which payload, and what gc takes, is the same in every store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core import facts
from holdfast.core.errors import HoldfastError
from holdfast.core.payloads import Slot, manifest, slot, to_record
from holdfast.core.state import State
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import InboxDraft, Lease, SessionStore
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.postgres_server import url_of

TENANTS = {"a": "t", "b": "t", "c": "u"}
TEXTS = [slot(letter * 3000, "message") for letter in "pqr"]
TEXTS += [slot("z" * 70_000, "message"), slot("tiny", "message")]
FIRST = manifest({"x": to_record(TEXTS[0])}, "vars")
SECOND = manifest({"x": TEXTS[1].ref(), "pad": "-" * 700}, "vars")
OUTER = manifest({"i": FIRST.ref(), "y": TEXTS[2].ref()}, "vars")
MANIFESTS = [FIRST, SECOND, OUTER]
ITEMS = [*TEXTS, *MANIFESTS]
IN_BLOB = TEXTS[3].id
"""A write that is refused may leave its file to gc, which then counts it."""

session = st.sampled_from("aaabbc")
text, any_item, names = (st.sampled_from(items) for items in (TEXTS, ITEMS, MANIFESTS))
beside = st.lists(any_item, max_size=5, unique_by=lambda item: item.id)
maybe = st.booleans()
STEPS = st.one_of(
    st.tuples(st.just("say"), session, text, maybe),
    st.tuples(st.just("say"), session, any_item, st.just(True)),
    st.tuples(st.just("name"), session, names, maybe, beside),
    st.tuples(st.just("name"), session, names, st.just(False), st.just(ITEMS)),
    st.tuples(st.just("adopt"), session, any_item, session),
    st.tuples(st.just("put"), session, any_item),
    st.tuples(st.just("get"), session, any_item),
    st.tuples(st.just("erase"), session, any_item),
    st.tuples(st.just("ask"), session, text),
    st.tuples(st.just("collect"), maybe, st.sampled_from([-1, 3600])),
    st.tuples(st.just("prove"), session),
    st.tuples(st.just("delete"), session),
)


class Hand:
    """One store, and where the sessions in it stand."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.leases: dict[str, Lease] = {}
        self.states: dict[str, State] = {}
        self.asked: set[str] = set()

    async def start(self) -> None:
        for name, tenant in TENANTS.items():
            started = facts.SessionStarted(tenant=tenant)
            self.states[name] = await self.of(name).create_session(name, started)
            self.leases[name] = await self.of(name).acquire(name)

    def of(self, name: str) -> SessionStore:
        return self.store.of(TENANTS[name])

    async def do(self, step: tuple[Any, ...]) -> Any:
        """Return what comes of a step, a refusal by its kind."""
        verb, *arguments = step
        try:
            return await getattr(self, verb)(*arguments)
        except HoldfastError as error:
            return type(error).__name__

    async def say(self, name: str, item: Slot, bare: bool) -> None:
        await self._append(name, self._message(name, item.bare() if bare else item))

    async def name(self, name: str, item: Slot, bare: bool, along: list[Slot]) -> None:
        kept = facts.VarsCheckpointed(vars=item.bare() if bare else item)
        await self._append(name, kept, payloads=along)

    async def adopt(self, name: str, item: Slot, source: str) -> None:
        await self._append(name, self._message(name, item.bare()), adopt_from=source)

    async def put(self, name: str, item: Slot) -> None:
        await self.of(name).put_payload(name, item)

    async def get(self, name: str, item: Slot) -> int:
        return len(await self.of(name).get_payload(name, item.id))

    async def erase(self, name: str, item: Slot) -> tuple[int, list[str]]:
        places = await self.of(name).erase(name, item.id, "asked")
        return places, sorted(await self.of(name).erased(name))

    async def ask(self, name: str, item: Slot) -> None:
        if item.id != IN_BLOB and name not in self.asked:
            self.asked.add(name)
            await self.of(name).put_inbox(name, InboxDraft("key", "message", content=item))

    async def collect(self, dry_run: bool, grace: float) -> list[str]:
        report = await self.store.gc(dry_run=dry_run, grace_seconds=grace)
        return [found for found in report.ids if found != IN_BLOB]

    async def prove(self, name: str) -> tuple[Any, ...]:
        report = await verify(self.of(name), name)
        return report.ok, report.problems, report.events, report.payloads, report.erased

    async def delete(self, name: str) -> None:
        await self.of(name).release(self.leases[name])
        await self.of(name).delete(name)

    def _message(self, name: str, item: Slot) -> facts.MessageAppended:
        number = self.states[name].next("message")
        return facts.MessageAppended(message=number, role="user", content=item)

    async def _append(self, name: str, fact: facts.Fact, **options: Any) -> None:
        lease, after = self.leases[name], self.states[name].seq
        self.states[name] = (await self.of(name).append(lease, after, [fact], **options)).state


def everything() -> list[tuple[Any, ...]]:
    looks = [("get", name, item) for name in TENANTS for item in ITEMS]
    return [*looks, *(("prove", name) for name in TENANTS)]


Open = Callable[[Path], Awaitable[SessionStore]]
ON_DISK: list[Open] = [
    lambda folder: SqliteSessionStore.open(folder / "sqlite"),
    lambda folder: FilesSessionStore.open(folder / "files"),
]
IN_POSTGRES: list[Open] = [lambda folder: PostgresSessionStore.open(url_of(folder))]


async def compare(steps: list[tuple[Any, ...]], folder: Path, opened: list[Open]) -> None:
    hands = [Hand(MemorySessionStore()), *[Hand(await opens(folder)) for opens in opened]]
    try:
        for hand in hands:
            await hand.start()
        for step in [*steps, *everything(), ("collect", False, -1), *everything()]:
            memory, *others = [await hand.do(step) for hand in hands]
            for hand, other in zip(hands[1:], others, strict=True):
                assert memory == other, (step, hand.store.flags.name)
    finally:
        for hand in hands:
            await hand.store.close()


def check(steps: list[tuple[Any, ...]], opened: list[Open]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(steps, Path(folder), opened))


def profile(examples: int) -> Any:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, suppress_health_check=slow)


@profile(10)
@given(st.lists(STEPS, min_size=3, max_size=15))
def test_stores_agree_on_payloads(steps: list[tuple[Any, ...]]) -> None:
    check(steps, ON_DISK)


@profile(4)
@given(st.lists(STEPS, min_size=3, max_size=15))
def test_a_database_agrees_on_payloads(steps: list[tuple[Any, ...]]) -> None:
    check(steps, IN_POSTGRES)


@pytest.mark.soak
@profile(3000)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_stores_agree_on_payloads_at_length(steps: list[tuple[Any, ...]]) -> None:
    check(steps, ON_DISK)


@pytest.mark.soak
@profile(500)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_a_database_agrees_on_payloads_at_length(steps: list[tuple[Any, ...]]) -> None:
    check(steps, IN_POSTGRES)
