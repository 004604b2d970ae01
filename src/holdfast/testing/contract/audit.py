"""Chapter: the audit of model calls stands beside the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidInput, SessionDeleted, SessionNotFound
from holdfast.core.facts import SessionStarted
from holdfast.stores.port import SessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import drive

ROW = {"model": "m", "usage": {"input_tokens": 3}, "error": None, "text": 'quote " and \u2028'}


class AuditContract(ContractPlace):
    """What the audit keeps, and for how long."""

    async def test_rows_are_numbered_kept_over_a_restart_and_read_in_pages(
        self, place: Place, store: SessionStore
    ) -> None:
        await drive(store)
        assert await store.list_audit("s-1") == []
        for number in (1, 2, 3):
            row = await store.put_audit("s-1", ROW | {"n": number})
            assert (row.session, row.number, row.record) == ("s-1", number, ROW | {"n": number})
        store = await place.reopen(store)
        assert [row.record["n"] for row in await store.list_audit("s-1")] == [1, 2, 3]
        page = await store.list_audit("s-1", after=1, limit=1)
        assert [row.number for row in page] == [2]

    async def test_concurrent_rows_get_numbers_of_their_own(self, store: SessionStore) -> None:
        await drive(store)
        await asyncio.gather(*(store.put_audit("s-1", {"n": n}) for n in range(20)))
        assert [row.number for row in await store.list_audit("s-1")] == list(range(1, 21))

    async def test_gc_takes_rows_by_age_and_by_count_and_verify_stays_clean(
        self, store: SessionStore
    ) -> None:
        for session in ("s-1", "s-2"):
            driver = await drive(store, session)
            await driver.say("hello")
            for number in range(4):
                await store.put_audit(session, {"n": number})
        middle = (await store.list_audit("s-1"))[2].at
        digest = (await verify(store, "s-1")).digest
        assert await store.gc_audit(before="2020-01-01T00:00:00Z") == 0
        assert await store.gc_audit(keep=3) == 2
        assert [row.number for row in await store.list_audit("s-2")] == [2, 3, 4]
        await store.gc_audit(before=middle)
        assert [row.number for row in await store.list_audit("s-1")][-1] == 4
        assert await store.gc_audit(before="2100-01-01T00:00:00Z") >= 2
        assert await store.list_audit("s-1") == []
        report = await verify(store, "s-1")
        assert report.ok
        assert report.digest == digest

    async def test_a_view_takes_only_rows_of_its_tenant(self, store: SessionStore) -> None:
        for tenant in ("default", "acme"):
            await drive(store, "s-1", SessionStarted(tenant=tenant))
            await store.of(tenant).put_audit("s-1", {"of": tenant})
        acme = store.of("acme")
        assert [row.record for row in await acme.list_audit("s-1")] == [{"of": "acme"}]
        assert await acme.gc_audit(keep=0) == 1
        assert len(await store.list_audit("s-1")) == 1

    async def test_no_export_carries_the_audit_and_deleting_removes_it(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        driver = await drive(store)
        await driver.say("hello")
        await store.put_audit("s-1", ROW)
        await store.release(driver.lease)
        await export_sessions(store, ["s-1"], tmp_path / "copy")
        await store.delete("s-1")
        with pytest.raises((SessionDeleted, SessionNotFound)):
            await store.list_audit("s-1")
        with pytest.raises((SessionDeleted, SessionNotFound)):
            await store.put_audit("s-1", ROW)
        other = await place.sibling("other").open()
        await import_sessions(other, tmp_path / "copy")
        assert await other.list_audit("s-1") == []

    @pytest.mark.parametrize("record", [None, [1], {"x": object()}, {"x": {1j}}])
    async def test_a_record_that_is_not_json_is_refused(
        self, store: SessionStore, record: object
    ) -> None:
        await drive(store)
        with pytest.raises(InvalidInput):
            await store.put_audit("s-1", record)  # type: ignore[arg-type]
        assert await store.list_audit("s-1") == []
