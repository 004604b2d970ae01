"""Packages that cells may import: what an embedder allows, out of a declared environment.

A worker sees the standard library and nothing else. What is allowed beyond that, with all that it
requires, is put together as a directory of links: the worker may read what they lead to, and finds
nothing but them. The environment is that of the host unless another one is named; it must belong
to the same version of Python.
"""

from __future__ import annotations

import os
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

from holdfast.core.errors import InvalidSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NO_MODULES = frozenset({"", ".", "..", "__pycache__"})


class Packages:
    """One set of allowed packages: `path` is where they are found, `roots` is what may be read."""

    def __init__(self, names: tuple[str, ...], environment: str | None = None) -> None:
        places = [environment] if environment is not None else _own_places()
        found = {_normal(item.name): item for item in distributions(path=places)}
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-packages-")
        self.path = os.path.realpath(self._directory.name)
        roots = {self.path}
        self.versions = {
            name: found[_normal(name)].version for name in names if _normal(name) in found
        }
        for distribution in _with_requirements(names, found, ", ".join(places)):
            for entry in _entries(distribution):
                real = os.path.realpath(str(distribution.locate_file(entry)))
                link = os.path.join(self.path, entry)
                if os.path.exists(real) and not os.path.lexists(link):
                    os.symlink(real, link)
                    roots.add(real)
        self.roots = tuple(sorted(roots))

    def close(self) -> None:
        """Remove the links."""
        self._directory.cleanup()


def _own_places() -> list[str]:
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_requirements(
    names: tuple[str, ...], found: dict[str, Distribution], where: str
) -> list[Distribution]:
    """Return the distributions of these names and all that they require, as far as it is there."""
    chosen: dict[str, Distribution] = {}
    rest = [_normal(name) for name in names]
    for name, given in zip(rest, names, strict=True):
        if name not in found:
            raise InvalidSettings(
                f"package {given!r} is not installed in {where}; install it there, or leave it out "
                "of the gate 'packages'"
            )
    while rest:
        name = rest.pop()
        if name in found and name not in chosen:
            chosen[name] = found[name]
            rest += _requirements(found[name])
    return list(chosen.values())


def _requirements(distribution: Distribution) -> Iterator[str]:
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement.strip())
        # What an extra asks for is another package that somebody would have to allow.
        if match is not None and "extra" not in marker:
            yield _normal(match[0])


def _entries(distribution: Distribution) -> set[str]:
    """Return the files and directories at the top that belong to a distribution."""
    return {file.parts[0] for file in distribution.files or () if file.parts} - _NO_MODULES
