"""The schema of a store: its statements, its migrations, and whether this release can use it.

Migrations run in one transaction under an advisory lock, so that any number of processes may start
at once: the first brings the schema to this release's format, the others find it there.
"""

from __future__ import annotations

import functools

from holdfast.blobs.choose import check_url
from holdfast.core.errors import (
    Corruption,
    StoreNewer,
    StoreNotFound,
    StoreUnsafe,
)
from holdfast.core.events import now
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.jobs import SETTING, is_current, prepare_jobs
from holdfast.stores.postgres.location import Location, lock_number
from holdfast.stores.relational.statements import (
    Migration,
    fill_in,
    load_migrations,
    load_queries,
)

OLDEST_SERVER = 140_000
_PACKAGE = "holdfast.stores.postgres"


@functools.cache
def migrations() -> list[Migration]:
    """Return every migration in order."""
    return load_migrations(_PACKAGE)


@functools.cache
def statements(schema: str) -> dict[str, str]:
    """Return the statements of a store in a schema, by name."""
    return load_queries(_PACKAGE, _parts(schema))


def _parts(schema: str) -> dict[str, str]:
    return {"schema": f'"{schema}"', "seed": str(lock_number(f"holdfast payloads {schema}"))}


async def prepare(connection: Connection, location: Location, *, create: bool) -> None:
    """Bring a schema to this release's format; refuse a newer one, and an older server."""
    sql = statements(location.schema)
    (version,) = await _first(connection, sql["server_version"])
    if version < OLDEST_SERVER:
        raise StoreUnsafe(
            f"{location.shown!r} is PostgreSQL {version // 10000}; Holdfast needs "
            f"{OLDEST_SERVER // 10000} or newer"
        )
    if await _is_current(connection, location):
        return
    if not create and not await _exists(connection, location):
        raise StoreNotFound(
            f"there is no store in schema {location.schema!r} of {location.shown!r}; start a "
            "session there first, or name another with --store"
        )
    async with connection.transaction():
        await connection.execute(
            sql["lock_migrations"], (lock_number(f"holdfast migrations {location.schema}"),)
        )
        await _migrate(connection, location)


async def place_of_blobs(connection: Connection, location: Location) -> str | None:
    """Return where the large payloads of a store are, None for its own table.

    The first process that names a place decides for all: another would miss what is there.
    """
    sql = statements(location.schema)
    if location.blobs is not None:
        await connection.execute(sql["put_setting"], ("blobs", check_url(location.blobs)))
    kept = await _setting(connection, location, "blobs")
    if location.blobs is not None and kept != location.blobs:
        raise StoreUnsafe(
            f"large payloads of {location.shown!r} are kept in {kept!r}; leave blobs=… out of the "
            "URL, or copy the sessions to another store"
        )
    return kept


async def _migrate(connection: Connection, location: Location) -> None:
    sql, schema = statements(location.schema), location.schema
    done: set[int] = set()
    if await _exists(connection, location):
        done = set(await _applied(connection, location))
    elif not (await _first(connection, sql["schema_exists"], schema))[0]:
        await connection.execute(sql["create_schema"])
    elif (await _first(connection, sql["schema_objects"], schema))[0]:
        raise StoreUnsafe(
            f"schema {schema!r} of {location.shown!r} holds something else; name another with "
            "schema=… in the URL"
        )
    for migration in migrations():
        if migration.version not in done:
            await connection.execute(fill_in(migration.text, _parts(schema)))
            record = (migration.version, migration.name, migration.checksum, now())
            await connection.execute(sql["insert_migration"], record)
    kept = await _setting(connection, location, SETTING)
    if not is_current(kept):
        version = await prepare_jobs(connection, location, kept)
        await connection.execute(sql["set_setting"], (SETTING, version))


async def _is_current(connection: Connection, location: Location) -> bool:
    if not await _exists(connection, location):
        return False
    if (await _applied(connection, location))[-1:] != [migrations()[-1].version]:
        return False
    return is_current(await _setting(connection, location, SETTING))


async def _exists(connection: Connection, location: Location) -> bool:
    sql = statements(location.schema)
    found = await _first(connection, sql["migrations_exist"], location.schema)
    return bool(found[0])


async def _applied(connection: Connection, location: Location) -> list[int]:
    """Return the numbers of the migrations that a schema has; refuse those this release lacks."""
    cursor = await connection.execute(statements(location.schema)["list_migrations"])
    applied = await cursor.fetchall()
    newest = migrations()[-1].version
    checksums = {migration.version: migration.checksum for migration in migrations()}
    for number, checksum in applied:
        if number > newest:
            raise StoreNewer(
                f"{location.shown!r} has format {applied[-1][0]}; this release knows {newest}: "
                "upgrade Holdfast to open it",
                format=applied[-1][0],
            )
        if checksums.get(number) != checksum:
            raise Corruption(
                f"migration {number} of {location.shown!r} was applied with other content than "
                "this release has; restore the store from an export"
            )
    return [number for number, _ in applied]


async def _setting(connection: Connection, location: Location, name: str) -> str | None:
    cursor = await connection.execute(statements(location.schema)["get_setting"], (name,))
    found = await cursor.fetchone()
    return None if found is None else str(found[0])


async def _first(connection: Connection, statement: str, *values: object) -> tuple[int, ...]:
    cursor = await connection.execute(statement, values)
    found: tuple[int, ...] | None = await cursor.fetchone()
    assert found is not None
    return found
