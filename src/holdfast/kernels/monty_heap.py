"""Checkpoints of the monty engine: plain values for every engine, the heap for this one.

Each variable that is plain data is stored by itself in the value encoding, so that any engine and
any version can take it over, and an unchanged one costs nothing. What plain data cannot say
(functions, instances, sharing, the state of `random`) is in Monty's own dump of the whole heap,
which only the same version of Monty reads; it is made only where there is such a thing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core import payloads, values
from holdfast.core.errors import KernelProtocolError, NotRestorable, UnsupportedValue
from holdfast.core.hashing import HashingTooCostly, HashWork
from holdfast.core.payloads import Slot
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

# Names of the engine's own code in the sandbox; no listing and no checkpoint shows them.
HIDDEN = "_holdfast_"
FINAL_CALL = f"{HIDDEN}final"
# What a name of the engine stands for, whatever a cell has made of it.
OWN = f"{HIDDEN}own_"

# Run in a new sandbox before anything but a heap, which has it already. A cell may use the name of
# a builtin for its own purposes: the engine has another name for the one that it needs.
FIRST_CODE = f"""
try:
    {HIDDEN}type
except NameError:
    {HIDDEN}type = type
"""

# Functions and the like would cross to the host as mere text, so FINAL checks its value first.
FINAL_CODE = f"""
def {HIDDEN}code(value, depth=0):
    kind = {HIDDEN}type(value).__name__
    if kind == "dict":
        items = value.values()
    elif kind in ("list", "tuple", "set", "frozenset"):
        items = value
    else:
        return kind in ("function", "type", "module", "builtin_function_or_method", "method")
    for item in items:
        if depth > 40 or {HIDDEN}code(item, depth + 1):
            return True
    return False
def FINAL(value=None, *more, **named):
    if more or named:
        raise TypeError("FINAL(value) takes one value; pass a tuple or a dict for several")
    if {HIDDEN}code(value):
        raise TypeError("FINAL takes data, not functions, classes or modules")
    {FINAL_CALL}(value)
{OWN}FINAL = FINAL
"""

# Types that the engine's code compares with. They are bound anew whenever it runs, because a cell
# can replace every name that it can say.
_COMPARED = (
    *(int, str, float, bool, bytes, datetime.date, datetime.datetime),
    *(tuple, list, set, frozenset, dict),
)
TYPES: dict[str, Any] = {f"{HIDDEN}{kind.__name__}": kind for kind in _COMPARED}

# A set or dict of the sandbox becomes one of the host in a single call that nothing interrupts and
# that takes quadratic time if the members share a hash. What a table could cost at most is counted
# here; members that could cost much are handed over as a list first, and the host decides. A set
# within a member cannot be a list, so a large one there is refused.
_COST = f"""
def {HIDDEN}weight(member):
    match member:
        case {HIDDEN}int():
            return 1 if -(2**64) < member < 2**64 else 10_001
        case {HIDDEN}tuple() | {HIDDEN}frozenset():
            total = 1
            for part in member:
                total += {HIDDEN}weight(part)
                if total > 10_000:
                    break
            return total
        case {HIDDEN}str() | {HIDDEN}bytes():
            return 10_001 if member[64:] else 1
    return 1
def {HIDDEN}is_costly(members):
    count = total = 0
    for member in members:
        match member:
            case {HIDDEN}str() | {HIDDEN}bytes():
                continue
        count += 1
        total += {HIDDEN}weight(member)
        if count >= 16 and count * total > 10_000:
            return True
    return False
"""

# Only what passes this leaves the sandbox: an instance inside a value can end Monty's worker.
SURVEY = f"""{_COST}
def {HIDDEN}plain(value, costly, inside=False, depth=0):
    match value:
        case {HIDDEN}int() | {HIDDEN}str() | None:
            return True
        case {HIDDEN}list() | {HIDDEN}tuple():
            pass
        case {HIDDEN}dict():
            if {HIDDEN}is_costly(value):
                if inside:
                    return False
                costly.append([*value])
            for key in value:
                if depth > 40 or not {HIDDEN}plain(key, costly, True, depth + 1):
                    return False
            value = value.values()
        case {HIDDEN}set() | {HIDDEN}frozenset():
            if {HIDDEN}is_costly(value):
                if inside:
                    return False
                costly.append([*value])
            inside = True
        case {HIDDEN}float() | {HIDDEN}bool() | {HIDDEN}bytes():
            return True
        case {HIDDEN}date() | {HIDDEN}datetime():
            return True
        case _:
            return False
    for item in value:
        if depth > 40 or not {HIDDEN}plain(item, costly, inside, depth + 1):
            return False
    return True
def {HIDDEN}survey():
    global {HIDDEN}namespace, {HIDDEN}values
    namespace, {HIDDEN}namespace = {HIDDEN}namespace, None
    values, costly = {{}}, []
    match namespace:
        case {HIDDEN}dict():
            pass
        case _:
            raise TypeError("the namespace is not listed")
    if not {HIDDEN}plain([{HIDDEN}kinds, {HIDDEN}replaced], [], True):
        raise TypeError("the namespace is not listed")
    for name, value in namespace.items():
        match name:
            case {HIDDEN}str():
                found = []
                if name[:{len(HIDDEN)}] != "{HIDDEN}" and {HIDDEN}plain(value, found):
                    values[name] = value
                    if found:
                        costly.append((name, found))
    {HIDDEN}values = values if costly else None
    return [{HIDDEN}kinds, {HIDDEN}replaced, costly, {{}} if costly else values]
{HIDDEN}survey()
"""

# Nothing of the listing stays behind, or the heap would keep what the cells let go.
REFUSED = f"{HIDDEN}refused"
HAND_OUT = f"""
def {HIDDEN}hand_out():
    global {HIDDEN}values
    values, {HIDDEN}values = {HIDDEN}values, None
    return {{name: value for name, value in values.items() if name not in {REFUSED}}}
{HIDDEN}hand_out()
"""


def names(engine_names: Iterable[str]) -> str:
    """Return the code that lists a namespace and which of the engine's names were replaced.

    It is the last that calls what a cell may have replaced.
    """
    # A name may stand for a function of the model: its kind does not tell whose it is.
    pairs = ", ".join(f'("{name}", {name} is {OWN}{name})' for name in engine_names)
    return f"""
{HIDDEN}replaced = [name for name, same in [{pairs}] if not same]
{HIDDEN}namespace = locals()
{HIDDEN}kinds = [
    (name, {HIDDEN}type(value).__name__) for name, value in {HIDDEN}namespace.items()
]
None
"""


def refused(costly: Any) -> list[str]:
    """Return the names of the variables whose sets and dicts take too long to make."""
    hashing, names = HashWork(), []
    for name, tables in costly:
        try:
            for members in tables:
                hashing.check(members)
                set(hashing.paced(members))
        except HashingTooCostly:
            names.append(name)
    return names


class Survey:
    """What a namespace holds, as the sandbox listed it: checked, because it is not trusted."""

    def __init__(
        self,
        kinds: Any,
        replaced: Any,
        plain: Any,
        engine_names: Sequence[str],
        *,
        readable: bool = True,
    ) -> None:
        self._readable = readable
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
