"""The PostgreSQL store keeps the whole contract, over a real server."""

from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.testing.postgres_server import url_of
from holdfast.testing.store_contract import StoreContract


class TestPostgres(StoreContract):
    async def open_store(self, path):
        return await PostgresSessionStore.open(url_of(path))
