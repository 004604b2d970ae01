"""Which store: an explicit path or URL, then `$HOLDFAST_STORE`, then the nearest `.holdfast/`.

Like git, a store is found from any folder below it. Where there is none, one is made here.
`sqlite:PATH` is the default kind, `files:PATH` keeps plain files for people and tools, and
`memory:` keeps nothing. `postgresql://…` is a database that many machines share.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast.core.errors import InvalidInput, StoreNotFound, StoreUnsafe, needing
from holdfast.stores.place import denied_error
from holdfast.stores.port import SessionStore
from holdfast.stores.threads import needing_thread

STORE_FOLDER = ".holdfast"
STORE_VARIABLE = "HOLDFAST_STORE"
KINDS = ("sqlite", "files", "memory")
DATABASES = ("postgresql", "postgres")
MARKS = {"sqlite": "events.db", "files": "holdfast.json"}
"""What is in every store of a kind."""


def find_folder(start: Path) -> Path | None:
    """Return the nearest `.holdfast` folder at or above a place."""
    start = start.resolve()
    for place in (start, *start.parents):
        folder = place / STORE_FOLDER
        if folder.is_dir():
            return folder
    return None


def store_url(explicit: str | Path | None = None, start: Path | None = None) -> tuple[str, str]:
    """Return (URL, origin) of the store to use; nothing is created."""
    if explicit is not None:
        return _as_url(str(explicit)), "given"
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return _as_url(named), f"${STORE_VARIABLE}"
    here = start or Path.cwd()
    found = find_folder(here)
    if found is not None:
        return _as_url(str(found)), "found"
    return _as_url(str(here.resolve() / STORE_FOLDER)), "default"


async def open_store(
    explicit: str | Path | None = None, *, start: Path | None = None, create: bool = True
) -> SessionStore:
    """Open the chosen store; a place without one is made one unless `create` is false."""
    url, _ = store_url(explicit, start)
    with needing_thread(url):
        return await _open(url, create)


async def _open(url: str, create: bool) -> SessionStore:
    kind, _, place = url.partition(":")
    # Only the store that is used is loaded: a listing should not wait for the others.
    if kind == "memory":
        from holdfast.stores.memory.store import MemorySessionStore

        return MemorySessionStore()
    if kind in DATABASES:
        return await _open_database(url, create)
    path = Path(place)
    other = "files" if kind == "sqlite" else "sqlite"
    if await asyncio.to_thread(_is_there, path / MARKS[other]):
        # Opened as another kind it would look empty, and be taken for that kind from then on.
        raise StoreUnsafe(
            f"{place!r} holds a store of kind {other!r}; open it as {other}:{place}, or name "
            "another place"
        )
    # A folder that something else made is no store either: looking leaves nothing in it.
    if not create and not await asyncio.to_thread(_is_there, path / MARKS[kind]):
        raise StoreNotFound(
            f"there is no store at {place!r}; start a session there first, or name another with "
            f"--store or ${STORE_VARIABLE}"
        )
    if kind == "files":
        from holdfast.stores.files.store import FilesSessionStore

        return await FilesSessionStore.open(path)
    from holdfast.stores.sqlite.store import SqliteSessionStore

    return await SqliteSessionStore.open(path)


async def _open_database(url: str, create: bool) -> SessionStore:
    with needing("postgres", "a PostgreSQL store"):
        from holdfast.stores.postgres.store import PostgresSessionStore
    return await PostgresSessionStore.open(url, create=create)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError as error:
        raise denied_error(path) from error


def _as_url(text: str) -> str:
    if not text or "\0" in text:
        raise InvalidInput(
            f"{text!r} names no place; write a path, or one of {', '.join(KINDS)}:PATH"
        )
    kind, colon, place = text.partition(":")
    if place.startswith("//") and kind in DATABASES:
        return text
    if colon and kind in KINDS:
        if kind != "memory" and not place:
            raise InvalidInput(f"{text!r} names no place; write {kind}:PATH")
        return text if kind == "memory" else f"{kind}:{Path(place).expanduser().absolute()}"
    if colon and len(kind) > 1 and kind.isalnum() and "/" not in kind and not Path(text).exists():
        raise InvalidInput(
            f"{text!r} is not a store: use a path, one of "
            f"{', '.join(KINDS)}:PATH, or postgresql://HOST/NAME"
        )
    path = Path(text).expanduser().absolute()
    sqlite, files = (_is_there(path / MARKS[kind]) for kind in ("sqlite", "files"))
    marked_files = files and not sqlite
    return f"{'files' if marked_files else 'sqlite'}:{path}"
