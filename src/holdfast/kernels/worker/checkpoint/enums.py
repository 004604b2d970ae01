"""How enumerations become data: their members by value, and by type where that is not the same."""

from __future__ import annotations

from holdfast.kernels.worker.checkpoint.makers import HEAP_TYPE, enum_, mixed_enum_, set_enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
_HOOKS = frozenset({"_missing_", "_generate_next_value_"})
_OWN = frozenset({"__new__", "__new_member__", "__members__", "__reduce_ex__", "__class_getitem__"})


def reduce_enum(
    cls: Any, attributes: dict[str, Any], given: dict[str, Any], dropped: set[str]
) -> Any:
    """Return how to make an enumeration again; `given` goes into its body, `dropped` nowhere."""
    members: dict[str, Any] = {k: (v._value_, {}) for k, v in cls.__members__.items()}
    # Put in place once the class is there: they may hold other members.
    own = {
        name: {k: v for k, v in vars(member).items() if k not in _MEMBER}
        for name, member in cls.__members__.items()
    }
    skipped = dropped | set(members) | _OWN
    kept = {
        k: v
        for k, v in attributes.items()
        if k not in skipped
        and (k in _HOOKS or not (k.startswith("_") and k.endswith("_") and "__" not in k))
    }
    if not isinstance(attributes.get("__new__"), staticmethod) or "__new_member__" in attributes:
        kept.pop("__new__", None)
    kept = {k: v for k, v in kept.items() if not _is_inherited(cls, k, v)}
    arguments: tuple[Any, ...] = (type(cls), cls.__name__, cls.__bases__, given)
    plain = _plain_members(cls)
    if plain is not None:
        arguments += (plain, cls._member_type_)
        return mixed_enum_, arguments, (kept, own), None, None, set_enum
    boundary: Any = getattr(cls, "_boundary_", None)
    if boundary is getattr(cls.__bases__[-1], "_boundary_", None):
        arguments += (members,)
    else:
        arguments += (members, boundary.name)
    return enum_, arguments, (kept, own), None, None, set_enum


def _plain_members(cls: Any) -> dict[str, Any] | None:
    """Return what members are made of where their values alone would make others."""
    base = cls._member_type_
    if base is object or not cls.__members__ or getattr(cls, "_boundary_", None) is not None:
        return None
    if base.__flags__ & HEAP_TYPE:
        return {name: (member._value_, ()) for name, member in cls.__members__.items()}
    made = {name: (m._value_, (_plain(base, m),)) for name, m in cls.__members__.items()}
    try:
        alike = all(base(value) == plain for value, (plain,) in made.values())
    except Exception:
        alike = False
    return None if alike else made


def _plain(base: Any, member: Any) -> Any:
    """Return a member as nothing but what its other type makes of it."""
    return base.__str__(member) if base is str else base(member)


def _is_inherited(cls: Any, name: str, value: Any) -> bool:
    # Enum copies some methods of its bases into each class.
    return any(base.__dict__.get(name) is value for base in cls.__mro__[1:])
