"""How a fact becomes the data of a record, and is read back from it.

Every fact type has a plan, made from its fields once: which of them are values of their own and
stand in the record as refs or inline, and what the others may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from functools import reduce
from operator import attrgetter, or_
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.core import facts, run_facts
from holdfast.core.errors import InvalidRecord
from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot, check_slot, from_record, to_record
from holdfast.core.records import FIELD_DEPTH, Record, explain, fits
from holdfast.core.values import MAX_INTEGER

FACTS: dict[str, type[Fact]] = {
    cls.TYPE: cls
    for module in (facts, run_facts)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Fact) and cls is not Fact
}

Forms = tuple[Record, Record, list[Slot]]


def forms(fact: Fact) -> Forms:
    """Return a fact's data as its digest covers it and as it is stored, and the slots in it.

    Defaults are left out, and slots are records. Raise InvalidInput naming what cannot be stored.
    """
    plan = _plan(type(fact))
    plain = zip(plan.plain, plan.read(fact), plan.defaults, strict=True)
    covered: Record = {name: value for name, value, default in plain if value != default}
    _check_plain(fact, plan, covered)
    expanded: Record = {}  # the slots whose stored form says more than their ref
    slots: list[Slot] = []
    for name, shape in plan.slots:
        value = getattr(fact, name)
        if shape is _SLOT and (value is not None or name in plan.required):
            _check_slot(fact, name, value)
            covered[name] = value.ref()
            slots.append(value)
            if value.inline or value.erased is not None:
                expanded[name] = to_record(value)
        elif shape is _SLOTS and value != {}:
            if type(value) is not dict:
                raise InvalidRecord(f"{fact.TYPE}.{name} is a {type(value).__name__}; pass a dict")
            _check_nested(fact, name, dict.fromkeys(value))
            for item in value.values():
                _check_slot(fact, name, item)
            covered[name] = {key: item.ref() for key, item in value.items()}
            expanded[name] = {key: to_record(item) for key, item in value.items()}
            slots += value.values()
    return covered, covered | expanded if expanded else covered, slots


def _check_slot(fact: Fact, name: str, item: Any) -> None:
    if type(item) is not Slot:
        raise InvalidRecord(
            f"{fact.TYPE}.{name} holds a {type(item).__name__}; pass what `slot(value, kind)` "
            "returns"
        )
    check_slot(item)


def data_of(fact: Fact) -> Record:
    """Return the stored data of a fact: slots as records, defaults left out."""
    return forms(fact)[1]


def _check_plain(fact: Fact, plan: _Plan, plain: Record) -> None:
    """Refuse what records cannot hold, and what no reader would take for this fact."""
    if not _EXACT.issuperset(map(type, plain.values())):
        explain(plain, fact.TYPE)
    try:
        msgspec.convert(plain, plan.checked)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        explain(plain, fact.TYPE)
        raise InvalidRecord(f"{fact.TYPE} cannot be read back: {error}") from error
    for name in plan.nested:
        if name in plain:
            _check_nested(fact, name, plain[name])
            plain[name] = _copied(plain[name])  # the caller may go on with his own


def _check_nested(fact: Fact, name: str, value: Any) -> None:
    """Refuse what records cannot hold, and an object that readers would take for a ref."""
    if not fits(value, FIELD_DEPTH):
        explain(value, f"{fact.TYPE}.{name}", FIELD_DEPTH)
    _check_keys(fact, name, value)


def _copied(value: Any) -> Any:
    if type(value) is dict:
        copy = value.copy()
        for key, part in value.items():
            if type(part) in _NESTED:
                copy[key] = _copied(part)
        return copy
    if type(value) is list:
        return [_copied(part) if type(part) in _NESTED else part for part in value]
    return value


_EXACT = frozenset({str, int, bool, dict, list})
_NESTED = frozenset({dict, list})


def _check_keys(fact: Fact, name: str, value: Any) -> None:
    parts: Iterable[Any] = value
    if isinstance(value, dict):
        for key in value:
            if key[:1] == "$":
                raise InvalidRecord(
                    f"{fact.TYPE}.{name} has the key {key!r}; keys that begin with '$' are reserved"
                )
        parts = value.values()
    for part in parts:
        if type(part) in _NESTED:
            _check_keys(fact, name, part)


def slots_of(fact: Fact) -> list[Slot]:
    """Return the slots of a fact with the bytes they carry."""
    found: list[Slot] = []
    for name, _ in _plan(type(fact)).slots:
        value = getattr(fact, name)
        # Whatever else stands there is refused when the fact is written.
        parts = value.values() if isinstance(value, dict) else [value]
        found += [item for item in parts if isinstance(item, Slot)]
    return found


def fact_from_data(cls: type[Fact], data: Record) -> Fact:
    """Return the fact that stored data describes; raise InvalidRecord where it does not fit."""
    arguments: dict[str, Any] = {}
    plan = _plan(cls)
    for name, shape, default in plan.fields:
        if name not in data:
            if default is MISSING:
                raise InvalidRecord(f"{cls.TYPE} lacks the field {name!r}")
            continue
        value = data[name]
        if shape is _SLOT:
            arguments[name] = from_record(value)
        elif shape is _SLOTS:
            if not isinstance(value, dict):
                raise InvalidRecord(f"{cls.TYPE}.{name} is not an object of values")
            arguments[name] = {key: from_record(item) for key, item in value.items()}
        else:
            try:
                arguments[name] = msgspec.convert(value, shape)
            except msgspec.ValidationError as error:
                raise InvalidRecord(f"{cls.TYPE}.{name}: {error}") from error
    if len(arguments) != len(data):
        unknown = sorted(set(data) - {name for name, _, _ in plan.fields})
        raise InvalidRecord(f"{cls.TYPE} has unknown fields {unknown!r}")
    return cls(**arguments)


_SLOT, _SLOTS = "slot", "slots"


class _Plan(NamedTuple):
    """How to read and check a fact type.

    `fields` are (name, shape, default): a shape is _SLOT, _SLOTS or a plain field's type. The plain
    ones are read all at once, `defaults` in the same order. `checked` has their types, `nested` are
    those that may hold objects and lists.
    """

    fields: tuple[tuple[str, Any, Any], ...]
    slots: tuple[tuple[str, str], ...]
    required: frozenset[str]
    plain: tuple[str, ...]
    defaults: tuple[Any, ...]
    read: Callable[[Fact], tuple[Any, ...]]
    checked: type[msgspec.Struct]
    nested: tuple[str, ...]


_PLANS: dict[type[Fact], _Plan] = {}


def _plan(cls: type[Fact]) -> _Plan:
    return _PLANS.get(cls) or _make_plan(cls)


def check_type(cls: type[Fact]) -> None:
    """Refuse a class that is not one of the fact types."""
    if FACTS.get(getattr(cls, "TYPE", "")) is not cls:
        raise InvalidRecord(
            f"{cls.__qualname__} is not a fact type that this release can read back; store what "
            "you have to say as a value in one that is"
        )


def _make_plan(cls: type[Fact]) -> _Plan:
    check_type(cls)
    hints = get_type_hints(cls)
    found = tuple(
        (
            item.name,
            _shape(hints[item.name]),
            item.default_factory() if item.default_factory is not MISSING else item.default,
        )
        for item in fields(cls)
    )
    slots = tuple((name, shape) for name, shape, _ in found if shape in (_SLOT, _SLOTS))
    plain = [item for item in found if item[1] not in (_SLOT, _SLOTS)]
    names = tuple(name for name, _, _ in plain)
    plan = _PLANS[cls] = _Plan(
        fields=found,
        slots=slots,
        required=frozenset(name for name, _, default in found if default is MISSING),
        plain=names,
        defaults=tuple(default for _, _, default in plain),
        read=_reader(names),
        checked=msgspec.defstruct(
            cls.__name__,
            [(name, _bounded(hint), msgspec.field(default=None)) for name, hint, _ in plain],
        ),
        nested=tuple(name for name, hint, _ in plain if not all(map(_is_scalar, _options(hint)))),
    )
    return plan


def _reader(names: Sequence[str]) -> Callable[[Fact], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda fact: tuple(getattr(fact, name) for name in names)


_SCALARS = frozenset({str, int, bool, type(None)})
_INTEGER = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]


def _is_scalar(option: Any) -> bool:
    return option in _SCALARS or get_origin(option) is Literal


def _bounded(hint: Any) -> Any:
    options = (_INTEGER if option is int else option for option in _options(hint))
    return reduce(or_, options)


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _shape(hint: Any) -> Any:
    options = _options(hint)
    if Slot in options:
        return _SLOT
    if any(get_origin(option) is dict and Slot in get_args(option) for option in options):
        return _SLOTS
    return hint
