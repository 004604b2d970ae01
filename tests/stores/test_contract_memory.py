"""The memory store keeps the whole contract."""

from pathlib import Path

from holdfast.stores.memory import MemoryBank, MemorySessionStore
from holdfast.testing.store_contract import StoreContract


class TestMemory(StoreContract):
    banks: dict[Path, MemoryBank]

    async def open_store(self, path):
        banks = self.__dict__.setdefault("banks", {})
        return MemorySessionStore(banks.setdefault(path, MemoryBank()))

    async def die_holding(self, store, session_id):
        doomed = MemorySessionStore(store.bank)
        await doomed.acquire(session_id)
        store.bank.owners.pop(doomed.owner)
