"""What pickled streams call to make functions, classes and markers again.

They are found under the module name `_holdfast`; their names and arguments are part of the stored
format.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAIN = "__main__"
HEAP_TYPE = 0x200
EMPTY_CELL = "_holdfast.empty"


class Marker:
    """Stands for a value that could not be kept; using it says so."""

    def __init__(self, kind: str, reason: str) -> None:
        object.__setattr__(self, "_holdfast_kind", kind)
        object.__setattr__(self, "_holdfast_reason", reason)

    def __repr__(self) -> str:
        return f"<not kept: {self._holdfast_kind}: {self._holdfast_reason}>"

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"this {self._holdfast_kind} was not kept: {self._holdfast_reason}; make it again"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_holdfast") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return self._refuse()

    __call__ = __iter__ = __next__ = __len__ = __getitem__ = __enter__ = __setattr__ = _refuse
    __bool__ = __add__ = __contains__ = __await__ = _refuse
    # `with` looks for both ends before it calls the first.
    __exit__ = __aenter__ = __aexit__ = __aiter__ = __anext__ = _refuse
    __setitem__ = __delitem__ = __delattr__ = _refuse


def marker(kind: str, reason: str) -> Marker:
    """Make a marker (stored format)."""
    return Marker(kind, reason)


def cell_() -> Any:
    """Make an empty closure cell (stored format)."""
    return types.CellType()


def proxy_(mapping: dict[Any, Any]) -> Any:
    """Make a read-only view of a dict (stored format)."""
    return types.MappingProxyType(mapping)


def set_function(function: Any, state: dict[str, Any]) -> None:
    """Give a function its closure values and attributes (stored format)."""
    for cell, value in state["cells"]:
        if type(value) is not str or value != EMPTY_CELL:
            cell.cell_contents = value
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    if state["annotations"]:
        function.__annotations__ = state["annotations"]
    function.__doc__ = state["doc"]
    function.__name__ = state["name"]
    function.__qualname__ = state["qualname"]
    function.__module__ = state["module"]
    if state["dict"]:
        function.__dict__.update(state["dict"])


def class_(meta: Any, name: str, bases: Any, given: dict[str, Any]) -> Any:
    """Make a class without its attributes (stored format)."""
    abc = sys.modules.get("abc")
    new = abc.ABCMeta.__new__ if abc is not None and issubclass(meta, abc.ABCMeta) else type.__new__
    hooked = [
        (base, base.__dict__["__init_subclass__"])
        for base in {b for direct in bases for b in direct.__mro__}
        if "__init_subclass__" in base.__dict__ and base.__module__ == MAIN
    ]
    # It ran when the class was first made; what it did is in the checkpoint.
    for base, _ in hooked:
        del base.__init_subclass__
    try:
        return new(meta, name, bases, dict(given))
    finally:
        for base, hook in hooked:
            type.__setattr__(base, "__init_subclass__", hook)


def set_class(cls: Any, attributes: dict[str, Any]) -> None:
    """Give a class its attributes (stored format)."""
    for name, value in attributes.items():
        type.__setattr__(cls, name, value)
    abc = sys.modules.get("abc")
    if abc is not None and isinstance(cls, abc.ABCMeta):
        abc.update_abstractmethods(cls)


def set_abstract(cls: Any, state: tuple[dict[str, Any], list[Any]]) -> None:
    """Give an abstract class its attributes and the classes registered with it (stored format)."""
    attributes, registered = state
    abc = __import__("abc")
    # First, so that a `__subclasshook__` of the class is not asked about classes half made.
    for other in registered:
        if isinstance(other, type):
            abc.ABCMeta.register(cls, other)
    set_class(cls, attributes)


def enum_(
    meta: Any,
    name: str,
    bases: Any,
    given: dict[str, Any],
    members: dict[str, Any],
    boundary: str | None = None,
) -> Any:
    """Make an enumeration with its members (stored format)."""
    namespace = meta.__prepare__(name, bases)
    for key, item in given.items():
        namespace[key] = item
    for key, (value, _) in members.items():
        namespace[key] = value
    options = {} if boundary is None else {"boundary": __import__("enum").FlagBoundary[boundary]}
    cls = meta.__new__(meta, name, bases, namespace, **options)
    for key, (_, attributes) in members.items():
        cls.__members__[key].__dict__.update(attributes)
    return cls


class _Member:
    """What a member of an enumeration is made of: its value, and what its other type is."""

    def __init__(self, value: Any, plain: tuple[Any, ...]) -> None:
        self.value, self.plain = value, plain


def mixed_enum_(
    meta: Any, name: str, bases: Any, given: dict[str, Any], members: dict[str, Any], base: Any
) -> Any:
    """Make an enumeration whose members are not what its other type makes of their values.

    Each is given as (value, arguments for the other type); no code of the class runs (stored
    format).
    """

    def new(cls: Any, member: _Member) -> Any:
        made = _static(base).__new__(cls, *member.plain)
        made._value_ = member.value
        return made

    parts: dict[str, Any] = {key: (_Member(*item), {}) for key, item in members.items()}
    hidden = {"__new__": new, "__init__": lambda self, *args: None}
    cls = enum_(meta, name, bases, given | hidden, parts)
    type.__delattr__(cls, "__init__")
    return cls


def set_enum(cls: Any, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Give an enumeration its attributes and those of its members (stored format)."""
    attributes, members = state
    set_class(cls, attributes)
    for name, own in members.items():
        cls.__members__[name].__dict__.update(own)


def exception_(cls: Any, args: tuple[Any, ...]) -> Any:
    """Make an exception without running its constructor (stored format)."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error


def set_exception(error: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give an exception what is not among its arguments (stored format)."""
    attributes, held = state
    error.__dict__.update(attributes)
    suppress = held.pop("__suppress_context__", False)
    for name, value in held.items():
        try:
            BaseException.__setattr__(error, name, value)
        except (AttributeError, TypeError):
            continue  # read-only: made from the arguments
    error.__suppress_context__ = suppress


def instance_(cls: Any, *args: Any) -> Any:
    """Make an instance without running code of its class (stored format)."""
    return _static(cls).__new__(cls, *args)


def built_(cls: Any, *args: Any) -> Any:
    """Make an instance as the built-in class below its class does (stored format)."""
    base = _static(cls)
    made = base.__new__(cls, *args)
    base.__init__(made, *args)
    return made


def _static(cls: Any) -> Any:
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)


def set_instance(instance: Any, parts: tuple[Any, Any, Any]) -> None:
    """Give an instance its items and its state past what its class overrides (stored format)."""
    state, items, pairs = parts
    _fill(instance, items, pairs)
    restore = getattr(type(instance), "__setstate__", None)
    if state is not None and restore is not None:
        restore(instance, state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    if attributes:
        object.__getattribute__(instance, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(instance, name, value)


def share_instance(instance: Any, parts: tuple[Any, Any, Any]) -> None:
    """Give an instance its items, and attributes that others hold as well (stored format)."""
    state, items, pairs = parts
    _fill(instance, items, pairs)
    object.__setattr__(instance, "__dict__", state)


def _fill(instance: Any, items: Any, pairs: Any) -> None:
    base = _static(type(instance))
    if items:
        base.extend(instance, items)
    for key, value in pairs or ():
        base.__setitem__(instance, key, value)


def type_variable(
    name: str,
    constraints: tuple[Any, ...],
    bound: Any,
    covariant: bool = False,
    contravariant: bool = False,
) -> Any:
    """Make a type variable (stored format)."""
    import typing

    variance = {"covariant": covariant, "contravariant": contravariant}
    return typing.TypeVar(name, *constraints, bound=bound, **variance)


def new_type(name: str, supertype: Any) -> Any:
    """Make a distinct type for checkers (stored format)."""
    import typing

    made: Any = typing.NewType(name, supertype)  # type: ignore[misc]
    made.__module__ = MAIN
    return made


def forward_(argument: str, is_argument: bool, module: Any, is_class: bool) -> Any:
    """Make a type hint that names what is not there yet (stored format)."""
    import typing

    return typing.ForwardRef(argument, is_argument, module, is_class=is_class)


def parameters_(name: str) -> Any:
    """Make a parameter specification (stored format)."""
    import typing

    return typing.ParamSpec(name)


def lru_cache_(function: Any, maxsize: int | None, typed: bool) -> Any:
    """Make a cached function with an empty cache (stored format)."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def several_(name: str) -> Any:
    """Make a variable for any number of types (stored format)."""
    import typing

    return typing.TypeVarTuple(name)


def cached_property_(function: Any, name: str | None) -> Any:
    """Make a cached property (stored format)."""
    import functools

    made: Any = functools.cached_property(function)
    if name is not None:
        made.__set_name__(None, name)
    return made


def package_(name: str, *parts: str) -> Any:
    """Import a package and those of its parts that were loaded (stored format)."""
    from importlib import import_module

    for part in parts:
        try:
            import_module(part)
        except Exception:
            continue  # made by hand, or gone: what uses it says so
    return import_module(name)


PLAIN_MAKERS = (
    *(marker, cell_, proxy_, class_, set_class, enum_, exception_, type_variable),
    *(instance_, built_, set_instance, share_instance, new_type, parameters_),
    *(set_exception, set_enum, set_abstract, forward_, package_, mixed_enum_),
    *(lru_cache_, cached_property_, set_function, several_),
)
