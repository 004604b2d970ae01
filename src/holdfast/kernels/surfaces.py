"""Surfaces: functions that an embedder gives to code in a cell, under a module of their own.

One declaration serves all: the module that a cell imports, the card that the model reads, the stamp
that the session stores and the effect class by which a call is recorded. A function is denied until
the session's capability names it. The host's callables are data here: this module calls none.
"""

from __future__ import annotations

import ast
import keyword
import logging
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

from holdfast.core.capability import Capability
from holdfast.core.errors import InvalidSettings, NotFound
from holdfast.core.facts import Effect
from holdfast.core.records import digest_id
from holdfast.kernels.port import HostFunction

logger = logging.getLogger("holdfast.kernels")

_EFFECTS = get_args(Effect)

RESERVED_NAMES = frozenset(
    {"FINAL", "CallError", "inspect", "budget", "lm", "map_lm", "rlm", "map_rlm", "attach_rlm"}
    | {"holdfast", "builtins", "site", "usercustomize", "sitecustomize"}
)


@dataclass(frozen=True, slots=True)
class SurfaceFunction:
    """One function: what it is called, how it is called, what runs it and what repeating it does.

    `signature` is a stub such as `(query: str, limit: int = 10) -> list[str]`.
    """

    name: str
    call: Callable[..., Any] | Callable[..., Awaitable[Any]]
    signature: str = "(*args, **kwargs)"
    doc: str = ""
    effect: Effect = "once"


@dataclass(frozen=True, slots=True)
class Surface:
    """A named, versioned set of functions under one module name.

    `prompt` stands in the card, which is stable over a session. `transient` gives text for one
    request only; it is never stored.
    """

    id: str
    version: int
    module: str
    functions: tuple[SurfaceFunction, ...]
    prompt: str = ""
    transient: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidSettings("a surface needs an id")
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            raise InvalidSettings(f"surface {self.id!r}: version is a number from 1 up")
        _check_name(self, self.module)
        if self.module in sys.stdlib_module_names:
            raise InvalidSettings(
                f"surface {self.id!r}: module {self.module!r} is part of the standard library"
            )
        if not self.functions:
            raise InvalidSettings(f"surface {self.id!r} declares no function")
        seen = set()
        for function in self.functions:
            _check_function(self, function)
            if function.name in seen:
                raise InvalidSettings(f"surface {self.id!r} declares {function.name!r} twice")
            seen.add(function.name)

    def stamp(self) -> dict[str, Any]:
        """Return the record that a session stores: what was offered, never the callables."""
        return {
            "id": self.id,
            "version": self.version,
            "module": self.module,
            "functions": [
                {"name": f.name, "signature": f.signature, "effect": f.effect}
                for f in self.functions
            ],
            "card": digest_id(self.card().encode()),
        }

    def card(self) -> str:
        """Return what the model is told about this surface."""
        lines = [f"import {self.module}  # {self.id} v{self.version}"]
        if self.prompt:
            lines.append(self.prompt.strip())
        for function in self.functions:
            lines.append(f"def {self.module}.{function.name}{function.signature}")
            lines += [f"    {line}" for line in function.doc.strip().splitlines()]
        return "\n".join(lines)


def admit(surfaces: Iterable[Surface], capability: Capability) -> tuple[Surface, ...]:
    """Return the surfaces with only the functions that the capability names.

    A child session admits its parent's surfaces with its own, narrower capability: what it gets is
    the intersection.
    """
    offered = tuple(surfaces)
    _check_distinct(offered)
    admitted = []
    for surface in offered:
        functions = tuple(
            f
            for f in surface.functions
            if capability.permits("surfaces", f"{surface.module}.{f.name}")
        )
        if functions:
            admitted.append(replace(surface, functions=functions))
    return tuple(admitted)


def host_functions(surfaces: Iterable[Surface]) -> tuple[HostFunction, ...]:
    """Return the surfaces as a kernel takes them."""
    return tuple(
        HostFunction(f.name, surface.module, f.effect == "pure", f.signature, f.doc)
        for surface in surfaces
        for f in surface.functions
    )


def find(surfaces: Iterable[Surface], path: str) -> SurfaceFunction:
    """Return the function behind the path of a call, such as `github.search`."""
    for surface in surfaces:
        for function in surface.functions:
            if f"{surface.module}.{function.name}" == path:
                return function
    raise NotFound(f"no surface of this session has the function {path!r}")


def card(surfaces: Iterable[Surface]) -> str:
    """Return the part of the system prompt that tells of every surface; empty without one."""
    return "\n\n".join(surface.card() for surface in surfaces)


def transient_text(surfaces: Iterable[Surface]) -> str:
    """Return what the surfaces have to say for this one request; empty if nothing.

    One that fails to say it is left out: a turn does not fail for want of such a text.
    """
    texts = []
    for surface in surfaces:
        if surface.transient is None:
            continue
        try:
            text = surface.transient()
        except Exception:
            logger.warning("surface %r has no text for this request", surface.id, exc_info=True)
            continue
        if type(text) is str:
            texts.append(text)
        elif text is not None:
            logger.warning("surface %r gave a %s as text", surface.id, type(text).__name__)
    return "\n\n".join(text for text in texts if text)


def _check_distinct(surfaces: tuple[Surface, ...]) -> None:
    for what in ("id", "module"):
        seen: set[str] = set()
        for surface in surfaces:
            name = getattr(surface, what)
            if name in seen:
                raise InvalidSettings(f"two surfaces have the {what} {name!r}")
            seen.add(name)


def _check_name(surface: Surface, name: str) -> None:
    # Python reads other spellings of a letter as that letter: `ｏｓ` imports `os`.
    spelled = unicodedata.normalize("NFKC", name) == name
    if not (spelled and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
        raise InvalidSettings(f"surface {surface.id!r}: {name!r} is not a public Python name")
    if name in RESERVED_NAMES:
        raise InvalidSettings(f"surface {surface.id!r}: {name!r} is reserved")


def _check_function(surface: Surface, function: SurfaceFunction) -> None:
    _check_name(surface, function.name)
    where = f"surface {surface.id!r}, function {function.name!r}"
    if not callable(function.call):
        raise InvalidSettings(f"{where}: call takes a function, not {function.call!r}")
    if function.effect not in _EFFECTS:
        raise InvalidSettings(f"{where}: effect is one of {_EFFECTS}, not {function.effect!r}")
    try:
        # The body stands on a line of its own, so that the signature cannot bring one.
        parsed = ast.parse(f"def {function.name}{function.signature}:\n    ...").body
    except SyntaxError:
        parsed = []
    if len(parsed) != 1 or "\n" in function.signature:
        raise InvalidSettings(f"{where}: {function.signature!r} is not a signature")
