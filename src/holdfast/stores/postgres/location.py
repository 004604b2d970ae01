"""Where a PostgreSQL store is: `postgresql://user@host/database?schema=…`.

Parameters of our own stand beside those of PostgreSQL: `schema` (default `holdfast`), `pool` (most
connections of one handle), `pooler=transaction` for a proxy that hands out connections for single
transactions, and `blobs`, the URL of an object store for large payloads.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.blobs.choose import check_url
from holdfast.core.errors import InvalidInput

SCHEMA = "holdfast"
CONNECTIONS = 8
SCHEMES = ("postgresql", "postgres")
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Location:
    """One schema of one database; `shown` is its URL without a password."""

    conninfo: str
    shown: str
    schema: str = SCHEMA
    connections: int = CONNECTIONS
    pooled: bool = False
    blobs: str | None = None

    @property
    def lock(self) -> int:
        """Return the number of the store's advisory lock, which is the same in every process."""
        return lock_number(f"holdfast {self.schema}")


def lock_number(name: str) -> int:
    """Return the number of an advisory lock by its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def read_location(url: str) -> Location:
    """Return what a URL says; InvalidInput where it says something that is not understood."""
    split = urlsplit(url)
    if split.scheme not in SCHEMES:
        raise InvalidInput(f"{url!r} is not a valid PostgreSQL URL; write postgresql://HOST/NAME")
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    schema = given.pop("schema", SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidInput(
            f"{schema!r} is not a valid schema name: use a-z, 0-9 and '_', up to 63 characters, "
            "not starting with a digit or 'pg_'"
        )
    pooler = given.pop("pooler", "session")
    if pooler not in ("session", "transaction"):
        raise InvalidInput(f"{pooler!r} is not a valid pooler mode; use transaction or session")
    try:
        connections = int(given.pop("pool", str(CONNECTIONS)))
    except ValueError:
        connections = 0
    if connections < 2:
        raise InvalidInput("the pool of a PostgreSQL store needs at least 2 connections")
    blobs = given.pop("blobs", None) or None
    if blobs is not None:
        check_url(blobs)
    secret = given.pop("password", None)
    own = {"schema": schema} if schema != SCHEMA else {}
    own |= {"pooler": pooler} if pooler != "session" else {}
    own |= {"pool": str(connections)} if connections != CONNECTIONS else {}
    own |= {"blobs": blobs} if blobs else {}
    shown = split._replace(
        netloc=_without_password(split.netloc), query=urlencode(given | own, quote_via=quote)
    )
    theirs = given | ({"password": secret} if secret is not None else {})
    conninfo = split._replace(query=urlencode(theirs, quote_via=quote))
    _check(_written(urlunsplit(conninfo)), _written(urlunsplit(shown)))
    return Location(
        conninfo=_written(urlunsplit(conninfo)),
        shown=_written(urlunsplit(shown)),
        schema=schema,
        connections=connections,
        pooled=pooler == "transaction",
        blobs=blobs,
    )


def _check(conninfo: str, shown: str) -> None:
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error as error:
        raise InvalidInput(f"{shown!r} is not a valid PostgreSQL URL: {error}") from None


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return user.partition(":")[0] + at + host


def _written(url: str) -> str:
    # An empty authority is dropped when a URL is put together, but PostgreSQL wants its slashes.
    scheme, colon, rest = url.partition(":")
    return url if rest.startswith("//") else f"{scheme}{colon}//{rest}"
