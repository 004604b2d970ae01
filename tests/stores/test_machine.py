"""Every store answers as the plain model does, whatever it is asked in whatever order."""

import pytest
from hypothesis import HealthCheck, settings

from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.memory.database import MemoryDatabase
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.testing.postgres_server import url_of
from holdfast.testing.store_machine import StoreMachine


class MemoryMachine(StoreMachine):
    async def open_store(self, path):
        banks = self.__dict__.setdefault("banks", {})
        return MemorySessionStore(banks.setdefault(path, MemoryDatabase()))


class FilesMachine(StoreMachine):
    async def open_store(self, path):
        return await FilesSessionStore.open(path)


class SqliteMachine(StoreMachine):
    async def open_store(self, path):
        return await SqliteSessionStore.open(path)


class PostgresMachine(StoreMachine):
    async def open_store(self, path):
        return await PostgresSessionStore.open(url_of(path))


def profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class TestMemory(MemoryMachine.TestCase):
    settings = profile(20, 30)


class TestSqlite(SqliteMachine.TestCase):
    settings = profile(10, 25)


class TestFiles(FilesMachine.TestCase):
    settings = profile(10, 25)


class TestPostgres(PostgresMachine.TestCase):
    settings = profile(6, 25)


@pytest.mark.soak
class TestMemoryLong(MemoryMachine.TestCase):
    settings = profile(1000, 60)


@pytest.mark.soak
class TestSqliteLong(SqliteMachine.TestCase):
    settings = profile(500, 60)


@pytest.mark.soak
class TestFilesLong(FilesMachine.TestCase):
    settings = profile(500, 60)


@pytest.mark.soak
class TestPostgresLong(PostgresMachine.TestCase):
    settings = profile(200, 60)
