"""The jobs of a store: Procrastinate's tables in the store's own schema, and what is changed there.

Its SQL is run from the installed package, and its version is kept among the settings, so that a
newer package brings the tables forward. Two things differ from what it sets up by itself. Its
functions name their schema, so that an append needs no search path to leave a wake-up. And its
trigger that sends NOTIFY is off: inside an append that would make all commits of the database wait
for each other; `notices` says it afterwards.
"""

from __future__ import annotations

import hashlib
from importlib import metadata, resources

from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.location import Location

SETTING = "procrastinate"
WAKE = "wake"
SWEEP = "sweep"


def queue_of(schema: str, tenant: str) -> str:
    """Return the queue of a tenant's sessions; `queue` in `queries.sql` says the same."""
    return "hf_" + hashlib.md5(f'"{schema}"/{tenant}'.encode()).hexdigest()[:24]


def installed() -> str:
    """Return the version of Procrastinate that is here."""
    return metadata.version("procrastinate")


def is_current(kept: str | None) -> bool:
    """Tell whether tables of a version are what this process needs; newer ones are."""
    return kept is not None and _number(kept) >= _number(installed())


async def prepare_jobs(connection: Connection, location: Location, kept: str | None) -> str:
    """Make the tables, or bring them forward, in the transaction of the caller; return the version.

    The migrations lock is held.
    """
    await connection.execute(f'SET LOCAL search_path = "{location.schema}"'.encode())
    for text in _steps(kept):
        await connection.execute(text.encode())
    await connection.execute(_OWN_WAYS)
    await connection.execute(b"SET LOCAL search_path = DEFAULT")
    return installed()


def _steps(kept: str | None) -> list[str]:
    folder = resources.files("procrastinate.sql")
    if kept is None:
        return [folder.joinpath("schema.sql").read_text(encoding="utf-8")]
    files = [item for item in folder.joinpath("migrations").iterdir() if item.name[:1].isdigit()]
    return [
        item.read_text(encoding="utf-8")
        for item in sorted(files, key=lambda item: item.name)
        if _number(item.name.partition("_")[0]) > _number(kept)
    ]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


_OWN_WAYS = b"""
DO $$
DECLARE found record;
BEGIN
  FOR found IN
    SELECT p.oid::regprocedure AS name FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace AND p.proname LIKE 'procrastinate%'
  LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path FROM CURRENT', found.name);
  END LOOP;
  FOR found IN
    SELECT t.tgname AS name, c.relname AS tab FROM pg_trigger t
    JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = current_schema()::regnamespace
      AND t.tgname LIKE 'procrastinate%notify%inserted%'
  LOOP
    EXECUTE format('ALTER TABLE %I DISABLE TRIGGER %I', found.tab, found.name);
  END LOOP;
END $$
"""
