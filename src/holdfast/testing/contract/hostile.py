"""Chapter: what could be a path, a query or a trap, or is another thing, no verb accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InvalidId,
    InvalidInput,
    InvalidRecord,
    InvalidRef,
    LeaseLost,
)
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.payloads import slot, slot_of_bytes
from holdfast.core.replay import Copy
from holdfast.stores.port import InboxDraft, Lease, SessionFilter, SessionStore, Transient
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import drive

HOSTILE_IDS: tuple[Any, ...] = (
    "",
    ".",
    "..",
    "../victim",
    "a/../b",
    "a..b",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\x7f",
    "\x1b[2J",
    "a b",
    " s-1",
    "s-1 ",
    "S-1",
    "-rf",
    ".hidden",
    "a.",
    "con",
    "nul.txt",
    "a:b",
    "a%2fb",
    "a\u2215b",  # division slash
    "a\uff0fb",  # full-width solidus
    "\u2024\u2024",  # one dot leaders
    "\uff0e\uff0e",  # full-width full stops
    "s-\u0661",  # a digit that is not ASCII
    "\u0455-1",  # a Cyrillic letter that looks Latin
    "a\u200bb",
    "e\u0301",
    "\ud800",
    "'; drop table events; --",
    "x" * 129,
    "x" * 10_000,
    None,
    7,
    b"s-1",
    ["s-1"],
)
"""What no entry point may accept as an id."""


WRONG_THINGS: tuple[Any, ...] = (-1.5, object(), {}, "\ud800", 3j)
"""What no argument of any verb is; absent things are None, which some may be."""

EDGE = EdgeDraft(
    type="invocation", from_session="s-0", to_session="s-1", to_head="sha256:" + "5" * 64
)


class HostileContract(ContractPlace):
    """What no verb accepts."""

    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda item: ascii(item)[:24])
    async def test_a_hostile_session_id_is_refused_by_every_verb(
        self, store: SessionStore, tmp_path: Path, hostile: Any
    ) -> None:
        big = slot("b" * 3000, "message")
        before = sorted(path.name for path in tmp_path.parent.iterdir())
        for verb in (
            lambda: store.create_session(hostile, facts.SessionStarted()),
            lambda: store.append(Lease(hostile, store.owner, 1), 0, [facts.SessionStopped()]),
            lambda: store.put_payload(hostile, big),
            lambda: store.get_payload(hostile, big.id),
            lambda: store.load_state(hostile),
            lambda: store.read_events(hostile),
            lambda: store.session_info(hostile),
            lambda: store.put_inbox(hostile, InboxDraft("k", "message")),
            lambda: store.list_inbox(hostile),
            lambda: store.acquire(hostile),
            lambda: store.renew(Lease(hostile, store.owner, 1)),
            lambda: store.release(Lease(hostile, store.owner, 1)),
            lambda: store.lease_of(hostile),
            lambda: store.delete(hostile),
            lambda: store.erase(hostile, big.id, "rule"),
            lambda: store.erased(hostile),
            lambda: store.import_log(Copy(hostile, [])),
            lambda: verify(store, hostile),
        ):
            with pytest.raises(InvalidId):
                await verb()
        with pytest.raises(InvalidId):
            store.subscribe(hostile)
        with pytest.raises(InvalidId):
            store.notify(Transient(hostile, "delta.token", "x"))
        assert sorted(path.name for path in tmp_path.parent.iterdir()) == before

    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda item: ascii(item)[:24])
    async def test_other_hostile_ids_are_refused_too(
        self, store: SessionStore, hostile: Any
    ) -> None:
        driver = await drive(store)
        with pytest.raises(InvalidId):
            await store.get_payload("s-1", hostile)
        with pytest.raises(InvalidId):
            await store.erase("s-1", hostile, "rule")
        with pytest.raises(InvalidInput):
            await store.create_session("s-2", facts.SessionStarted(tenant=hostile))
        if hostile is not None:
            with pytest.raises(InvalidId):
                await store.create_session("s-2", facts.SessionStarted(), adopt_from=hostile)
            with pytest.raises(InvalidId):
                await store.create_session("s-1", facts.SessionStarted(), adopt_from=hostile)
            with pytest.raises(InvalidId):
                await driver.append(driver.message("x"), adopt_from=hostile)
            elsewhere = {"session": hostile}
            for started in (
                facts.SessionStarted(agent=hostile),
                facts.SessionStarted(parent=elsewhere),
                facts.SessionStarted(origin=elsewhere),
            ):
                with pytest.raises(InvalidInput):
                    await store.create_session("s-2", started)
            for named in ("from_session", "to_session", "from_head", "to_head"):
                with pytest.raises(InvalidInput):
                    await driver.append(edges=[replace(EDGE, **{named: hostile})])
        assert (await store.load_state("s-1")).seq == 1
        assert len((await store.list_sessions()).sessions) == 1

    @pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda item: ascii(item)[:24])
    async def test_a_listing_by_a_hostile_id_is_refused(
        self, store: SessionStore, hostile: Any
    ) -> None:
        await drive(store)
        if hostile is not None:
            for where in (
                SessionFilter(tenant=hostile),
                SessionFilter(agent=hostile),
                SessionFilter(parent=hostile),
            ):
                with pytest.raises(InvalidId):
                    await store.list_sessions(where)
            with pytest.raises(InvalidInput):
                await store.list_sessions(cursor=hostile)

    @pytest.mark.parametrize("odd", ["\ud800", 7, b"idle"], ids=ascii)
    async def test_what_is_no_text_is_refused_in_filters_and_types(
        self, store: SessionStore, odd: Any
    ) -> None:
        await drive(store)
        for where in (
            SessionFilter(status=odd),
            SessionFilter(kind=odd),
            SessionFilter(label=(odd, "x")),
            SessionFilter(label=("x", odd)),
            SessionFilter(label=("x",)),  # type: ignore[arg-type]
            SessionFilter(label=odd),
        ):
            with pytest.raises(InvalidInput):
                await store.list_sessions(where)
        lists: list[Any] = [[odd], ["turn.started", odd], "turn.started", iter(["turn.started"])]
        for types in lists:
            with pytest.raises(InvalidInput):
                await store.read_events("s-1", types=types)

    @pytest.mark.parametrize("hostile", ["", "a b", "a\0", "é", "k\n", "x" * 201, None, 7])
    async def test_hostile_keys_are_refused(self, store: SessionStore, hostile: Any) -> None:
        driver = await drive(store)
        with pytest.raises(InvalidId):
            await store.put_inbox("s-1", InboxDraft(hostile, "message"))
        if hostile is not None:
            with pytest.raises(InvalidId):
                await store.put_inbox("s-1", InboxDraft("k", "answer", hostile))
        with pytest.raises(InvalidId):
            await driver.append(driver.message("x"), consumes=[hostile])
        with pytest.raises(InvalidId):
            await store.erase("s-1", "sha256:" + "0" * 64, hostile)

    async def test_what_nests_too_deep_to_be_read_again_is_refused(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        limits: dict[str, Any] = {}
        for _ in range(63):
            limits = {"a": limits}
        for deeper in (1, 500, 50_000):
            deep: Any = limits
            for _ in range(deeper):
                deep = [deep]
            with pytest.raises(InvalidRecord, match="64 deep"):
                await driver.append(facts.TurnStarted(turn=1, limits={"a": deep}))
        for depth in (129, 900):
            text = b'{"a":' * depth + b"1" + b"}" * depth
            names = slot_of_bytes("manifest", text, "vars")
            with pytest.raises(InvalidRef, match="128 deep"):
                await driver.append(facts.VarsCheckpointed(vars=names))
        await driver.append(facts.TurnStarted(turn=1, limits=limits))
        for handle in (store, await place.open()):
            assert (await handle.load_state("s-1")).seq == 2
            assert (await verify(handle, "s-1")).ok

    @pytest.mark.parametrize("wrong", WRONG_THINGS, ids=lambda item: type(item).__name__)
    async def test_a_thing_of_the_wrong_kind_is_refused_by_every_verb(
        self, place: Place, store: SessionStore, wrong: Any
    ) -> None:
        driver = await drive(store)
        lease, text = driver.lease, driver.message("x")
        bare = structs.replace(slot("b" * 3000, "message"), erased=wrong)
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: store.create_session("s-2", wrong),
            lambda: store.create_session("s-2", facts.SessionStarted(), payloads=[wrong]),
            lambda: store.append(wrong, 1, [text]),
            lambda: store.append(lease, 1, [wrong]),
            lambda: store.append(lease, 1, [text], head=wrong),
            lambda: store.append(lease, 1, [text], edges=[wrong]),
            lambda: store.append(lease, 1, [text], payloads=[wrong]),
            lambda: store.append(lease, 1, [replace(text, content=wrong)]),
            lambda: store.append(lease, 1, [replace(text, content=bare)]),
            lambda: store.append(lease, 1, [text], head=HeadDraft(kind=wrong)),
            lambda: store.append(lease, 1, [text], edges=[replace(EDGE, type=wrong)]),
            lambda: store.put_payload("s-1", wrong),
            lambda: store.put_payload("s-1", bare),
            lambda: store.put_inbox("s-1", wrong),
            lambda: store.put_inbox("s-1", InboxDraft("k", "message", content=wrong)),
            lambda: store.put_inbox("s-1", InboxDraft("k", wrong)),
            lambda: store.list_sessions(wrong),
            lambda: store.renew(wrong),
            lambda: store.release(wrong),
            lambda: store.import_log(wrong),
        ]
        for name in ("id", "encoding", "kind", "size", "data"):
            for size in (10, 3000, 300_000):  # in the record, in a row, in a file
                value = structs.replace(slot("b" * size, "message"), **{name: wrong})
                verbs += [
                    partial(store.append, lease, 1, [replace(text, content=value)]),
                    partial(store.append, lease, 1, [text], payloads=[value]),
                    partial(store.put_payload, "s-1", value),
                ]
        if not isinstance(wrong, dict):  # as which lists can be empty
            verbs += [
                lambda: store.create_session("s-2", facts.SessionStarted(), payloads=wrong),
                lambda: store.append(lease, 1, wrong),
                lambda: store.append(lease, 1, [text], edges=wrong),
                lambda: store.append(lease, 1, [text], consumes=wrong),
                lambda: store.append(lease, 1, [text], payloads=wrong),
            ]
        for verb in verbs:
            with pytest.raises((InvalidInput, Corruption)):
                await verb()
        with pytest.raises(InvalidInput):
            store.notify(wrong)
        with pytest.raises(InvalidInput):
            store.subscribe("s-1", after=wrong)
        for handle in (store, await place.open()):
            assert (await handle.load_state("s-1")).seq == 1
            assert not await handle.list_inbox("s-1")
            assert (await verify(handle, "s-1")).ok
            assert len((await handle.list_sessions()).sessions) == 1

    @pytest.mark.parametrize("owner", [None, "\ud800", "o-none", 5])
    @pytest.mark.parametrize("epoch", ["1", 2, 2**70, None, True, 1.0])
    async def test_a_lease_that_is_none_drives_nothing_and_gives_nothing_back(
        self, store: SessionStore, owner: Any, epoch: Any
    ) -> None:
        driver = await drive(store)
        for forged in (Lease("s-1", owner, driver.lease.epoch), replace(driver.lease, epoch=epoch)):
            with pytest.raises(LeaseLost):
                await store.append(forged, 1, [driver.message("x")])
            with pytest.raises(LeaseLost):
                await store.renew(forged)
            await store.release(forged)
        await driver.say("still mine")
