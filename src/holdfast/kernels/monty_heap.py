"""Checkpoints of the monty engine: plain values for every engine, the heap for this one.

Each variable that is plain data is stored by itself in the value encoding, so that any engine and
any version can take it over, and an unchanged one costs nothing. What plain data cannot say
(functions, instances, sharing, the state of `random`) is in Monty's own dump of the whole heap,
which only the same version of Monty reads; it is made only where there is such a thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core import payloads, values
from holdfast.core.errors import KernelProtocolError, NotRestorable, UnsupportedValue
from holdfast.core.payloads import Slot
from holdfast.kernels.monty_sandbox import HIDDEN, VALUE
from holdfast.kernels.port import Checkpoint, Encoded, Fetch, Variable
from holdfast.kernels.worker.cell import render

ENGINE = "monty"
FORMAT = 1
_KIND = "vars"
_PREVIEW = 80
_MODULES = """
json re math datetime collections itertools functools dataclasses typing os pathlib hashlib copy
time decimal base64 binascii csv bisect sys unicodedata asyncio tomllib
"""
_IMPORTED_BY_NAME = frozenset(_MODULES.split())


class Survey:
    """What a namespace holds, as the sandbox listed it: checked, because it is not trusted."""

    def __init__(
        self,
        kinds: Any,
        replaced: Any,
        plain: Any,
        engine_names: Sequence[str],
    ) -> None:
        # None is a namespace that the sandbox cannot list.
        self._readable = kinds is not None
        kinds = [] if kinds is None else kinds
        if not (type(kinds) is list and type(plain) is dict):
            raise KernelProtocolError("the monty worker did not list its namespace as asked")
        if type(replaced) is not list:
            raise KernelProtocolError("the monty worker did not list the names that were replaced")
        hidden = set(engine_names)
        self.replaced = tuple(name for name in engine_names if name in replaced)
        self.kinds: dict[str, str] = {}
        for entry in kinds:
            name, kind = entry
            if type(name) is not str or type(kind) is not str:
                raise KernelProtocolError("the monty worker listed a name that is not text")
            if name not in hidden and not name.startswith(HIDDEN):
                self.kinds[name] = kind
        # What the cell shows of its last expression; the sandbox is not trusted with its form.
        self.shown: Any = plain.pop(VALUE, None)
        self.plain: dict[str, Any] = {}
        self.encoded: dict[str, Encoded] = {}
        for name, value in plain.items():
            if name in self.kinds:
                self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        try:
            self.encoded[name] = Encoded(*values.encode(value))
        except UnsupportedValue:
            return
        self.plain[name] = value

    @property
    def needs_heap(self) -> bool:
        """Return whether plain values alone would not bring this namespace back."""
        if not self._readable:
            return True
        for name, kind in self.kinds.items():
            imported = kind == "module" and name in _IMPORTED_BY_NAME
            if name not in self.plain and not imported:
                return True
        return _shares(self.plain.values(), set())


def _shares(items: Iterable[Any], seen: set[int]) -> bool:
    for item in items:
        if isinstance(item, (list, dict, set)):
            if id(item) in seen:
                return True
            seen.add(id(item))
        if isinstance(item, dict):
            if _shares(item.values(), seen):
                return True
        elif isinstance(item, (list, tuple)) and _shares(item, seen):
            return True
    return False


class Stored:
    """The chunks that one session's checkpoints have already."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def checkpoint(self, survey: Survey, heap: bytes | None, version: str) -> Checkpoint:
        """Return a surveyed namespace as a record and the chunks that are new."""
        new: dict[str, bytes] = {}

        def store(encoding: str, data: bytes) -> dict[str, Any]:
            slot = payloads.slot_of_bytes(encoding, data, _KIND)
            if not slot.inline and slot.id not in self._ids:
                new[slot.id] = data
            return payloads.to_record(slot)

        record = {
            "engine": ENGINE,
            "format": FORMAT,
            "version": version,
            "variables": [
                self._variable(name, kind, survey, store) for name, kind in survey.kinds.items()
            ],
            "heap": None if heap is None else store("bytes", heap),
        }
        self.reset(record)
        return Checkpoint(record, new)

    def _variable(self, name: str, kind: str, survey: Survey, store: Any) -> dict[str, Any]:
        encoded = survey.encoded.get(name)
        if encoded is None:
            return {"name": name, "type": kind, "size": 0, "preview": f"<{kind}>", "value": None}
        preview = render.bounded(survey.plain[name], _PREVIEW)[0]
        value = store(encoded.encoding, encoded.data)
        size = len(encoded.data)
        return {"name": name, "type": kind, "size": size, "preview": preview, "value": value}

    def reset(self, manifest: Mapping[str, Any]) -> None:
        """Go on from another checkpoint."""
        self._ids = {slot.id for slot in payloads.walk(dict(manifest))}


def check(manifest: Mapping[str, Any]) -> None:
    """Raise NotRestorable unless this engine wrote the manifest in a form that it knows."""
    if manifest.get("engine") != ENGINE or manifest.get("format") != FORMAT:
        raise NotRestorable(
            f"the checkpoint was written by {manifest.get('engine')!r} in format "
            f"{manifest.get('format')!r}; this is {ENGINE!r} with format {FORMAT}: open the "
            "session with the engine that wrote it, or take over its plain data"
        )


def heap_of(manifest: Mapping[str, Any], version: str) -> Slot | None:
    """Return the dump of the heap, if there is one and this version of Monty reads it."""
    if manifest["heap"] is None or manifest["version"] != version:
        return None
    return payloads.from_record(manifest["heap"])


def plain_of(manifest: Mapping[str, Any]) -> dict[str, Slot]:
    """Return the variables that any engine can take over."""
    return {
        variable["name"]: payloads.from_record(variable["value"])
        for variable in manifest["variables"]
        if variable["value"] is not None
    }


async def plain_variables(
    manifest: Mapping[str, Any], fetch: Fetch
) -> tuple[dict[str, Encoded], dict[str, str]]:
    """Return the variables that are plain data, encoded, and why each other one is not."""
    check(manifest)
    plain = {}
    for name, slot in plain_of(manifest).items():
        data = slot.data
        if data is None:
            data = payloads.check_bytes(slot, await fetch(slot.id))
        plain[name] = Encoded(slot.encoding, data)
    return plain, {name: f"{kind} is not plain data" for name, kind in lost_of(manifest)}


def imports_of(manifest: Mapping[str, Any]) -> list[str]:
    """Return the modules that were imported under their own names."""
    return [
        variable["name"]
        for variable in manifest["variables"]
        if variable["type"] == "module" and variable["name"] in _IMPORTED_BY_NAME
    ]


def lost_of(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and kinds that only the heap would bring back."""
    imported = set(imports_of(manifest))
    return [
        (variable["name"], variable["type"])
        for variable in manifest["variables"]
        if variable["value"] is None and variable["name"] not in imported
    ]


def variables(manifest: Mapping[str, Any]) -> list[Variable]:
    """List the variables of a manifest, by name."""
    found = [
        Variable(variable["name"], variable["type"], variable["size"], variable["preview"])
        for variable in manifest["variables"]
    ]
    return sorted(found, key=lambda variable: variable.name)
