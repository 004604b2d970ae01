"""How functions, classes and everything that pickle refuses become data.

A function is the source of the top-level statement that holds it, the place of its code in there,
and its closure values; its globals are the namespace, not a copy. A class is its bases and its
attributes. Code without source (made by `exec`, `dataclass`, `namedtuple`) is kept as bytecode,
tagged with the interpreter. What cannot be kept becomes a marker that says why, on the spot, so a
dump never fails half-way.
"""

from __future__ import annotations

import copyreg
import marshal
import sys
import types

from holdfast.kernels.worker.cell.host_calls import HostFunction
from holdfast.kernels.worker.cell.running import Sources
from holdfast.kernels.worker.checkpoint import code_positions, library
from holdfast.kernels.worker.checkpoint.makers import (
    EMPTY_CELL,
    HEAP_TYPE,
    MAIN,
    PLAIN_MAKERS,
    Marker,
    built_,
    cell_,
    class_,
    exception_,
    instance_,
    marker,
    package_,
    proxy_,
    set_abstract,
    set_class,
    set_exception,
    set_function,
    set_instance,
    share_instance,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FUTURE_FLAGS = 0x1FE0000
_NOT_KEPT = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "__doc__", "_abc_impl"}
    | {"__abstractmethods__", "__orig_bases__", "__firstlineno__", "__static_attributes__"}
    | {"__annotations_cache__", "__annotate_func__"}
)


class Reduction:
    """Reduces objects of one namespace and makes them again."""

    def __init__(self, namespace: dict[str, Any], sources: Sources) -> None:
        self.namespace = namespace
        self.sources = sources
        self.functions: dict[str, Any] = {}
        self.error_type: Callable[[str], type] = lambda name: Exception
        self.marked: list[tuple[str, str]] = []
        # How many things that the worker still holds were marked, ever.
        self.lost = 0
        # The worker's own objects that a cell can hold: kept by name, never by what is in them.
        self.engine: dict[str, Any] = {}
        self._statements: dict[str, list[tuple[int, int]]] = {}
        self._codes: dict[tuple[str, str, int], Any] = {}
        self._loaded: tuple[int, list[str]] = (0, [])
        # By identity, as all types here: those of the model may not be hashable.
        self._careful: dict[int, bool] = {}
        rules: dict[type, Callable[[Any], Any]] = {
            types.FunctionType: self._function,
            types.CellType: lambda cell: (cell_, ()),
            types.ModuleType: self._module,
            types.CodeType: self._code,
            types.BuiltinFunctionType: self._builtin,
            types.GeneratorType: self._mark("generators hold a running frame"),
            types.CoroutineType: self._mark("coroutines hold a running frame"),
            types.AsyncGeneratorType: self._mark("generators hold a running frame"),
            types.FrameType: self._mark("frames belong to a running process"),
            types.TracebackType: self._mark("tracebacks belong to a running process"),
            types.MappingProxyType: lambda proxy: (proxy_, (dict(proxy),)),
            property: lambda p: (property, (p.fget, p.fset, p.fdel, p.__doc__)),
            classmethod: lambda method: (classmethod, (method.__func__,)),
            staticmethod: lambda method: (staticmethod, (method.__func__,)),
            memoryview: self._mark("views belong to a running process; keep the bytes instead"),
            Marker: self._kept_marker,
            HostFunction: lambda f: (self.host_function, (f._holdfast_path,)),
        }
        self._by_type = {id(kind): rule for kind, rule in rules.items()}
        self._publish()

    def _publish(self) -> None:
        module = types.ModuleType("_holdfast")
        makers: Iterable[Any] = (
            *PLAIN_MAKERS,
            *(self.function_, self.bytecode_),
            *(self.host_function, self.error_class, self.code_, self.engine_),
        )
        for maker in makers:
            name = maker.__name__
            if isinstance(maker, types.MethodType):
                maker = _Maker(maker, name)
            setattr(module, name, maker)
            if isinstance(maker, _Maker):
                setattr(self, name, maker)
            else:
                maker.__module__ = "_holdfast"
        sys.modules["_holdfast"] = module

    def reduce(self, value: Any) -> Any:
        """Return how to make a value again; NotImplemented for a plain global name."""
        kind = type(value)  # `isinstance` may run code of the model
        if issubclass(kind, type):
            return self._type(value)
        for name, held in self.engine.items():
            if held is value:
                return self.engine_, (name,)
        rule = self._by_type.get(id(kind))
        if rule is not None:
            return rule(value)
        if issubclass(kind, BaseException):
            return self._exception(value)
        try:
            rule = library.RULES.get((type(value).__module__, type(value).__name__))
            if rule is not None:
                return rule(value)
            registered = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(5) if registered is None else registered(value)
        except Exception as error:
            return self._marker(_type_name(type(value)), _reason(error))
        if isinstance(reduced, str):
            # `...` and NotImplemented name no module.
            module = getattr(value, "__module__", None) or "builtins"
            if module == MAIN or not _importable(module, reduced, value):
                return self._marker(_type_name(type(value)), f"{reduced!r} cannot be imported")
            return reduced
        if type(reduced) is tuple and 2 <= len(reduced) <= 6:
            return self._instance(value, reduced)
        return self._marker(_type_name(type(value)), "its __reduce__ gave no usable result")

    def _instance(self, value: Any, reduced: tuple[Any, ...]) -> Any:
        """Return a reduction under which no code of the class runs on an unfinished instance.

        As pickle has it, items are put in by what the class overrides, before the instance has
        its attributes; `__getattr__` is asked for `__setstate__`; and `__new__` is called with
        arguments that it does not take.
        """
        cls = type(value)
        careful = self._careful.get(id(cls))
        if careful is None:
            careful = self._careful[id(cls)] = _careful(cls)
        maker, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        made = maker is copyreg.__newobj__  # type: ignore[attr-defined]
        # More references than those of the instance and of this reduction: others have it, too.
        shared = state is value or (type(state) is dict and sys.getrefcount(state) > _REFERENCES)
        shared = made and shared and _is_own_dict(value, state)
        if len(reduced) == 6 or not (shared or (careful and (made or maker is cls))):
            return reduced
        parts = (state, None if items is None else list(items), None if pairs is None else [*pairs])
        if shared:
            return instance_ if careful else maker, arguments, parts, None, None, share_instance
        if maker is cls:
            if state is None:  # defaultdict forgets its attributes
                attributes = getattr(cls, "__dictoffset__", 0) and vars(value)
                parts = (attributes or None, *parts[1:])
            return built_, (cls, *arguments), parts, None, None, set_instance
        return instance_, arguments, parts, None, None, set_instance

    def _exception(self, error: BaseException) -> Any:
        """Reduce an exception with what its constructor keeps in addition to its arguments."""
        held: dict[str, Any] = {}
        for base in type(error).__mro__:
            for name, item in vars(base).items():
                if type(item) is types.MemberDescriptorType and name != "obj":
                    found = getattr(error, name, None)
                    if found is not None and found is not False:
                        held[name] = found
        for name in ("__cause__", "__context__"):
            if getattr(error, name) is not None:
                held[name] = getattr(error, name)
        arguments = (type(error), error.args)
        if not held:
            return exception_, arguments, dict(error.__dict__)
        return exception_, arguments, (dict(error.__dict__), held), None, None, set_exception

    def _mark(self, reason: str) -> Callable[[Any], Any]:
        return lambda value: self._marker(_type_name(type(value)), reason)

    def _marker(self, kind: str, reason: str) -> Any:
        self.marked.append((kind, reason))
        self.lost += 1
        return marker, (kind, reason)

    def _kept_marker(self, value: Any) -> Any:
        parts = (value._holdfast_kind, value._holdfast_reason)
        self.marked.append(parts)
        return marker, parts

    def _module(self, module: Any) -> Any:
        name = module.__name__
        if sys.modules.get(name) is not module:
            return self._marker("module", f"{name!r} cannot be imported")
        parts = self._parts(name) if "__path__" in vars(module) else ()
        if parts:
            return package_, (name, *parts)
        return __import__("importlib").import_module, (name,)

    def _parts(self, package: str) -> list[str]:
        """Return what was loaded of a package: `import a.b` makes `a.b` an attribute of `a`."""
        if self._loaded[0] != len(sys.modules):
            named = [name for name in list(sys.modules) if type(name) is str]
            parts = sorted(name for name in named if "." in name and "._" not in name)
            self._loaded = (len(sys.modules), parts)
        return [name for name in self._loaded[1] if name.startswith(f"{package}.")]

    # Functions

    def _function(self, function: Any) -> Any:
        if function.__module__ != MAIN and _importable(
            function.__module__, function.__qualname__, function
        ):
            return NotImplemented
        scope = self._scope(function.__globals__)
        cells = function.__closure__ or ()
        made = self._source_of(function.__code__)
        maker = self.function_ if made is not None else self.bytecode_
        if made is None:
            made = (_interpreter_tag(), marshal.dumps(function.__code__))
        contents = [(cell, _contents(cell)) for cell in cells]
        state = {
            "cells": contents,
            "defaults": function.__defaults__,
            "kwdefaults": function.__kwdefaults__,
            "annotations": _annotations(function),
            "doc": function.__doc__,
            "name": function.__name__,
            "qualname": function.__qualname__,
            "module": function.__module__,
            "dict": function.__dict__ or None,
        }
        return maker, (*made, scope, cells), state, None, None, set_function

    def _builtin(self, function: Any) -> Any:
        """Reduce what is written in C; a method goes with the object that it is bound to."""
        owner = function.__self__
        if owner is None or type(owner) is types.ModuleType:
            if _importable(function.__module__, function.__qualname__, function):
                return NotImplemented
            reason = f"{function.__qualname__!r} cannot be imported"
            return self._marker(_type_name(type(function)), reason)
        marked, lost = len(self.marked), self.lost
        reduced = self.reduce(owner)
        del self.marked[marked:]
        self.lost = lost
        if type(reduced) is tuple and reduced[0] is marker:
            return self._marker(_type_name(type(function)), f"its {type(owner).__name__} is lost")
        return getattr, (owner, function.__name__)

    def _code(self, code: Any) -> Any:
        made = self._source_of(code)
        if made is None:
            return self._marker("code", "code objects without source are not kept")
        return self.code_, made

    def _scope(self, namespace: dict[str, Any]) -> Any:
        if namespace is self.namespace:
            return None
        name = namespace.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and module.__dict__ is namespace:
            return name
        return namespace

    def _source_of(self, code: Any) -> tuple[Any, ...] | None:
        """Return (source, filename, lines before it, flags, place) of a code object of a cell."""
        lines = self.sources.lines.get(code.co_filename)
        if lines is None:
            return None
        first = code.co_firstlineno
        statement = self._statement(code.co_filename, lines, first)
        if statement is None:
            return None
        begin, end = statement
        text = "".join(lines[begin - 1 : end])
        flags = code.co_flags & FUTURE_FLAGS
        place = code_positions.place(self._compiled(text, code.co_filename, begin - 1, flags), code)
        if place is None:
            return None
        return (text, code.co_filename, begin - 1, flags, *place)

    def _statement(self, filename: str, lines: list[str], first: int) -> tuple[int, int] | None:
        spans = self._statements.get(filename)
        if spans is None:
            try:
                tree: Any = compile("".join(lines), filename, "exec", 0x2400, True)
            except (SyntaxError, ValueError):
                return None
            spans = self._statements[filename] = code_positions.spans(tree)
        return next((span for span in spans if span[0] <= first <= span[1]), None)

    def _compiled(self, text: str, filename: str, offset: int, flags: int) -> Any:
        key = (text, filename, offset)
        found = self._codes.get(key)
        if found is None:
            found = compile("\n" * offset + text, filename, "exec", flags | 0x2000, True)
            self._codes[key] = found
        return found

    def forget_sources(self, filename: str) -> None:
        """Drop what was derived from a cell whose text is replaced."""
        self._statements.pop(filename, None)
        self._careful.clear()

    def code_(
        self, text: str, filename: str, offset: int, flags: int, qualname: str, line: int, nth: int
    ) -> Any:
        """Return a code object from its source and its place (stored format)."""
        self.sources.add(filename, text.removesuffix("\n"), offset)
        self.forget_sources(filename)
        found = code_positions.find(
            self._compiled(text, filename, offset, flags), qualname, line, nth
        )
        if found is None:
            raise ValueError(f"{qualname!r} is not in its source any more")
        return found

    def function_(self, *made: Any) -> Any:
        """Make a function from source (stored format)."""
        *place, scope, cells = made
        code = self.code_(*place)
        return types.FunctionType(code, self._globals(scope), None, None, tuple(cells))

    def bytecode_(self, tag: str, code: bytes, scope: Any, cells: Any) -> Any:
        """Make a function from bytecode of the same interpreter (stored format)."""
        if tag != _interpreter_tag():
            raise ValueError(f"bytecode of {tag} does not run on {_interpreter_tag()}")
        loaded = marshal.loads(code)
        return types.FunctionType(loaded, self._globals(scope), None, None, tuple(cells) or None)

    def _globals(self, scope: Any) -> dict[str, Any]:
        if scope is None:
            return self.namespace
        if isinstance(scope, str):
            namespace: dict[str, Any] = __import__("importlib").import_module(scope).__dict__
            return namespace
        return dict(scope) if type(scope) is not dict else scope

    def host_function(self, path: str) -> Any:
        """Return a host function by name (stored format)."""
        found = self.functions.get(path)
        return found if found is not None else Marker("host function", f"{path!r} is not offered")

    def engine_(self, name: str) -> Any:
        """Return an object of this worker by name (stored format)."""
        found = self.engine.get(name)
        return found if found is not None else Marker(name, "it is not offered")

    def error_class(self, name: str) -> Any:
        """Return the class of a host error by name (stored format)."""
        return self.error_type(name)

    # Classes

    def _type(self, cls: Any) -> Any:
        if cls.__module__ == "_holdfast":
            return self.error_class, (cls.__name__,)
        if cls.__module__ != MAIN and _importable(cls.__module__, cls.__qualname__, cls):
            return NotImplemented
        if cls.__flags__ & 0x200 == 0:
            # NoneType, which every `X | None` holds, and its like have a name in `types` alone.
            named = next((name for name, item in vars(types).items() if item is cls), None)
            if named is not None:
                return getattr, (types, named)
            return self._marker("type", f"{cls.__qualname__!r} cannot be imported")
        attributes = dict(cls.__dict__)
        meta = type(cls)
        given: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        if isinstance(attributes.get("__doc__"), str):
            given["__doc__"] = attributes["__doc__"]
        if "__orig_bases__" in attributes:
            given["__orig_bases__"] = attributes["__orig_bases__"]
        dropped = set(_NOT_KEPT)
        if "__slots__" in attributes:
            slots = attributes["__slots__"]
            given["__slots__"] = slots
            dropped.update([slots] if isinstance(slots, str) else _mangled(slots, cls.__name__))
        enum = sys.modules.get("enum")
        if enum is not None and issubclass(meta, enum.EnumMeta):
            from holdfast.kernels.worker.checkpoint.enums import reduce_enum

            return reduce_enum(cls, attributes, given, dropped)
        kept = {k: v for k, v in attributes.items() if k not in dropped and not _generated(v)}
        kept.pop("__annotate__", None)
        if "__annotate__" in attributes:
            kept["__annotations__"] = _annotations(cls)
        arguments = (meta, cls.__name__, cls.__bases__, given)
        registered = _registered(cls)
        if registered:
            return class_, arguments, (kept, registered), None, None, set_abstract
        return class_, arguments, kept, None, None, set_class


class _Maker:
    """A maker bound to its namespace, which pickles as a global of `_holdfast`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> str:
        return self.__name__

    __module__ = "_holdfast"


def _is_own_dict(value: Any, state: Any) -> bool:
    """Tell whether a state is where the instance of a model's class has its attributes."""
    cls = type(value)
    if cls.__module__ != MAIN or hasattr(cls, "__setstate__"):
        return False
    return object.__getattribute__(value, "__dict__") is state


def _references() -> int:
    """Count the references to the attributes of an instance that is being reduced."""

    class Probe:
        pass

    probe: Any = Probe()
    probe.attribute = 1
    reduced: Any = probe.__reduce_ex__(5)
    state = reduced[2]
    return sys.getrefcount(state)


_REFERENCES = _references()


def _careful(cls: Any) -> bool:
    """Tell whether code of a class could run on an instance that has no attributes yet."""
    if cls.__module__ != MAIN:
        return False
    own: set[str] = set()
    # What Counter gives for its subclasses leaves out their attributes and calls their `__init__`.
    counter = getattr(sys.modules.get("collections"), "Counter", None)
    for base in cls.__mro__:
        if base.__flags__ & HEAP_TYPE:
            own.update(vars(base))
            if base is counter:
                own -= {"__reduce__"}
    if own & {"__reduce__", "__reduce_ex__"}:
        return False
    risky = {"__getattr__", "__getattribute__"}
    if any(name in ("list", "dict", "set", "deque") for name in _static_names(cls)):
        risky |= {"__init__", "append", "extend", "add", "__setitem__"}
    if not own & {"__getnewargs__", "__getnewargs_ex__"}:
        risky.add("__new__")
    return bool(own & risky)


def _static_names(cls: Any) -> list[str]:
    return [base.__name__ for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE]


def _registered(cls: Any) -> list[Any]:
    """Return the classes that were registered with an abstract class, in an order of their own."""
    abc = sys.modules.get("abc")
    if abc is None or not isinstance(cls, abc.ABCMeta):
        return []
    found = [reference() for reference in abc._get_dump(cls)[0]]
    return sorted((other for other in found if other is not None), key=_type_name)


def _generated(value: Any) -> bool:
    kind = type(value)
    return kind is types.GetSetDescriptorType or kind is types.MemberDescriptorType


def _mangled(slots: Any, owner: str) -> list[str]:
    stripped = owner.lstrip("_")
    return [
        f"_{stripped}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in slots
    ]


def _annotations(owner: Any) -> Any:
    try:
        return owner.__annotations__ or None
    except Exception:
        return None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY_CELL


def _importable(module: Any, qualname: str, value: Any) -> bool:
    found = sys.modules.get(module) if isinstance(module, str) else None
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return found is value


def _reason(error: Exception) -> str:
    """Return the first line of an error; its type if it says nothing, as MemoryError does."""
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _type_name(cls: type) -> str:
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _interpreter_tag() -> str:
    from importlib.util import MAGIC_NUMBER

    return f"{sys.implementation.cache_tag}-{MAGIC_NUMBER.hex()}"
