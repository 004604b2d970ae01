"""Objects of the standard library that pickle refuses or keeps in part, and how to make them.

They are recognised by the module and name of their type, so that nothing has to be imported to ask.
"""

from __future__ import annotations

import sys

from holdfast.kernels.worker.checkpoint.makers import (
    cached_property_,
    forward_,
    lru_cache_,
    new_type,
    parameters_,
    several_,
    type_variable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _lru_cache(value: Any) -> Any:
    # A checkpoint has no caches, and the worker that goes on must call what a restored one would.
    value.cache_clear()
    parameters = value.cache_parameters()
    made = (value.__wrapped__, parameters["maxsize"], parameters["typed"])
    wrapped = getattr(value.__wrapped__, "__dict__", {})
    attributes = {
        name: item
        for name, item in vars(value).items()
        if wrapped.get(name) is not item and not (name.startswith("__") and name.endswith("__"))
    }
    return lru_cache_, made, attributes or None


def _type_variable(value: Any) -> Any:
    made: tuple[Any, ...] = (value.__name__, value.__constraints__, value.__bound__)
    if value.__covariant__ or value.__contravariant__:
        made += (value.__covariant__, value.__contravariant__)
    return type_variable, made


def _forward(value: Any) -> Any:
    # Not the code that it has compiled, nor what it was last found to mean.
    return forward_, (
        value.__forward_arg__,
        value.__forward_is_argument__,
        value.__forward_module__,
        value.__forward_is_class__,
    )


def _dataclass_singleton(value: Any) -> Any:
    owner = sys.modules["dataclasses"]
    found = next(key for key, item in vars(owner).items() if item is value)
    return getattr, (owner, found)


RULES: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("functools", "_lru_cache_wrapper"): _lru_cache,
    ("functools", "cached_property"): lambda v: (cached_property_, (v.func, v.attrname)),
    ("_struct", "Struct"): lambda v: (type(v), (v.format,)),
    ("typing", "ForwardRef"): _forward,
    ("typing", "NewType"): lambda v: (new_type, (v.__name__, v.__supertype__)),
    ("typing", "ParamSpec"): lambda v: (parameters_, (v.__name__,)),
    ("typing", "TypeVar"): _type_variable,
    ("typing", "TypeVarTuple"): lambda v: (several_, (v.__name__,)),
    # The cache of a `singledispatch` is one.
    ("weakref", "WeakKeyDictionary"): lambda v: (type(v), (dict(v),)),
    ("dataclasses", "_FIELD_BASE"): _dataclass_singleton,
    ("dataclasses", "_MISSING_TYPE"): _dataclass_singleton,
    ("dataclasses", "_KW_ONLY_TYPE"): _dataclass_singleton,
    ("dataclasses", "_HAS_DEFAULT_FACTORY_CLASS"): _dataclass_singleton,
}
