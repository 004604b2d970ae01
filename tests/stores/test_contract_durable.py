"""The durable stores keep the whole contract, reopened as often as it likes."""

from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.testing.store_contract import StoreContract


class TestSqlite(StoreContract):
    async def open_store(self, path):
        return await SqliteSessionStore.open(path)


class TestFiles(StoreContract):
    async def open_store(self, path):
        return await FilesSessionStore.open(path)
