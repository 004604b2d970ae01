"""Named statements and numbered migrations: SQL stands in files, one set for each backend."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

_ENTRY = re.compile(r"^-- (name|part): (\w+(?:, \w+)*)\n", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")


class Migration(NamedTuple):
    """One step of a schema's history."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Return what tells this text from another of the same number."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


def load_queries(package: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the statements of a backend's `queries.sql` by name, its parts filled in.

    `given` are parts that the file leaves open.
    """
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    _, *fields = _ENTRY.split(text)
    entries = list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))
    parts = dict(given or {})
    for kind, name, body in entries:
        if kind == "part":
            parts[name] = fill_in(body.strip(), parts)
    return {
        name: fill_in(body.strip(), parts)
        for kind, names, body in entries
        if kind == "name"
        for name in names.split(", ")
    }


def load_migrations(package: str) -> list[Migration]:
    """Return a backend's migrations in order."""
    folder = resources.files(package).joinpath("migrations")
    files = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".sql")),
        key=lambda item: item.name,
    )
    return [Migration(int(f.name[:4]), f.name, f.read_text(encoding="utf-8")) for f in files]


def fill_in(text: str, parts: Mapping[str, str]) -> str:
    """Return a text with its parts in place."""
    return _PART.sub(lambda match: parts[match[1]], text)
