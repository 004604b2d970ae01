"""Tools: functions that an embedder gives to an agent, declared once for every use.

One declaration serves all: the JSON schema that a model calls natively, the module that a cell
imports, the card that the model reads, the stamp that the session stores, and how a call of it is
recorded: its effect class, who carries it out, whether someone must approve it. A tool is denied
until the session's capability names it.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import logging
import sys
import typing
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar, get_args, overload

import msgspec

from holdfast.core.capability import Capability
from holdfast.core.errors import InvalidInput, InvalidSettings, NotFound, check_kind
from holdfast.core.facts import Effect, Executor, UnknownPolicy
from holdfast.core.records import digest_id
from holdfast.kernels.port import HostFunction
from holdfast.runtime.scope import Secret

logger = logging.getLogger("holdfast.runtime")

_F = TypeVar("_F", bound=Callable[..., Any])

Approval = bool | Callable[[Mapping[str, Any]], bool]
"""Whether a person must let a call go ahead: always, never, or by its arguments."""

EFFECTS = get_args(Effect)
EXECUTORS = get_args(Executor)
POLICIES = get_args(UnknownPolicy)
MAX_RETRIES = 10

RESERVED_NAMES = frozenset(
    {"FINAL", "CallError", "inspect", "budget", "ask"}
    | {"lm", "map_lm", "rlm", "map_rlm", "attach_rlm", "open_value"}
    | {"holdfast", "builtins", "site", "usercustomize", "sitecustomize"}
)


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """What someone said to a tool that raised `NeedsAnswer`, with the state that it left.

    `declined` is the reason of whoever did not want to answer.
    """

    value: Any
    state: Any = None
    declined: str | None = None


def _told_nobody(data: Any) -> None:
    """Take the progress of a call that nobody can watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a tool may know about the call that it serves.

    `call_id` is the idempotency key: the same call made again has the same one. `scope` is what
    the caller gave to `send`, `answer` or `resume`, or None where the system acts by itself.
    `answers` are those that it has got to what it asked with `NeedsAnswer`, oldest first.
    `progress(data)` tells those who watch the session how far it is, from any thread; it is live
    only, never stored, and says nothing once the call is over.
    """

    call_id: str
    session: str
    epoch: int
    tenant: str = "default"
    turn: int | None = None
    deadline: datetime | None = None
    scope: Any = None
    answers: tuple[GivenAnswer, ...] = ()
    progress: Callable[[Any], None] = field(default=_told_nobody, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Delegate:
    """The agent behind a tool: a call of it gives the agent a task, in a session of its own.

    `output` is what the value must be ("text", "json" or a schema), `budget` what the session may
    spend at most; without one it gets its share of what is left.
    """

    agent: Any  # an Agent, of which a tool knows nothing but its name and its tools
    output: Any = None
    budget: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One function: what it is called, how it is called, what runs it and what repeating it does.

    `signature` is a stub such as `(query: str, limit: int = 10) -> list[str]`; `parameters` is the
    JSON schema of its arguments. `context` names the argument that takes a `CallContext`, `secrets`
    those that take secrets, with their names. `retry` is how often a call that fails is made again.
    """

    name: str
    call: Callable[..., Any] | Callable[..., Awaitable[Any]] | None = None
    signature: str = "(*args, **kwargs)"
    doc: str = ""
    effect: Effect = "once"
    executor: Executor = "server"
    approval: Approval = False
    deadline_seconds: float | None = None
    unknown: UnknownPolicy = "tell"
    assignee: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    returns: Mapping[str, Any] | None = None  # the JSON schema of its result, where it is known
    context: str | None = None
    needs_scope: bool = False
    retry: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    delegate: Delegate | None = None

    def __post_init__(self) -> None:
        where = f"tool {self.name!r}"
        _check_name(where, self.name)
        if self.executor == "server" and not callable(self.call):
            raise InvalidSettings(f"{where}: call takes a function, not {self.call!r}")
        for what, value, allowed in (
            ("effect", self.effect, EFFECTS),
            ("executor", self.executor, EXECUTORS),
            ("unknown", self.unknown, POLICIES),
        ):
            if value not in allowed:
                raise InvalidSettings(f"{where}: {what} is one of {allowed}, not {value!r}")
        if not isinstance(self.approval, bool) and not callable(self.approval):
            raise InvalidSettings(f"{where}: approval is True, False or a function of arguments")
        if type(self.retry) is not int or not 0 <= self.retry <= MAX_RETRIES:
            raise InvalidSettings(f"{where}: retry is a number from 0 to {MAX_RETRIES}")
        if self.retry and self.effect == "once":
            raise InvalidSettings(
                f"{where}: a tool whose effect is 'once' is never repeated; declare it idempotent "
                "or pure, or leave out retry"
            )
        parsed = _parsed(self.name, self.signature)
        if parsed is None:
            raise InvalidSettings(f"{where}: {self.signature!r} is not a signature")

    @property
    def gone(self) -> bool:
        """Tell whether it only stands for a tool that the agent does not have any more."""
        return self.call is _gone

    def needs_approval(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a person must let this call go ahead; a rule that fails says yes."""
        if isinstance(self.approval, bool):
            return self.approval
        try:
            return bool(self.approval(arguments))
        except Exception:
            logger.warning("the approval rule of tool %r failed", self.name, exc_info=True)
            return True

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; raise TypeError as Python would."""
        stub = _stub(self.name, self.signature)
        bound = stub.bind(*args, **kwargs)
        bound.apply_defaults()
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = stub.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                if value:
                    named[name] = list(value)
            else:
                named[name] = value
        return named

    def stamp(self) -> dict[str, Any]:
        """Return what a session stores of it: what was offered, never the callable."""
        return {"name": self.name, "signature": self.signature, "effect": self.effect}


@dataclass(frozen=True, slots=True, init=False)
class Toolset:
    """A named, versioned group of tools; code reaches them as `import name`.

    Tools that are given to an agent without a group stand in one without a name, and code calls
    them without importing anything.

    `prompt` stands in the card, which is stable over a session. `transient` gives text for one
    request only; it is never stored.
    """

    name: str
    version: int
    tools: tuple[Tool, ...]
    prompt: str
    transient: Callable[[], str] | None

    def __init__(
        self,
        name: str,
        version: int = 1,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        prompt: str = "",
        transient: Callable[[], str] | None = None,
    ) -> None:
        where = f"toolset {name!r}"
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise InvalidSettings(f"{where}: version is a number from 1 up")
        if name:
            _check_name(where, name)
        if name in sys.stdlib_module_names:
            raise InvalidSettings(f"{where}: {name!r} is part of the standard library")
        check_kind(tools, Sequence, "list of tools")
        declared = tuple(map(tool_of, tools))
        if not declared:
            raise InvalidSettings(f"{where} declares no tool")
        seen = set()
        for item in declared:
            if item.name in seen:
                raise InvalidSettings(f"{where} declares {item.name!r} twice")
            seen.add(item.name)
        for field_name, value in (
            ("name", name),
            ("version", version),
            ("tools", declared),
            ("prompt", prompt),
            ("transient", transient),
        ):
            object.__setattr__(self, field_name, value)

    def stamp(self) -> dict[str, Any]:
        """Return the record that a session stores: what was offered, never the callables."""
        return {
            "name": self.name,
            "version": self.version,
            "tools": [item.stamp() for item in self.tools],
            "card": digest_id(self.card().encode()),
        }

    def card(self) -> str:
        """Return what the model is told about this toolset."""
        lines = [f"import {self.name}  # version {self.version}"] if self.name else []
        if self.prompt:
            lines.append(self.prompt.strip())
        for item in self.tools:
            lines.append(f"def {path(self, item)}{item.signature}")
            lines += [f"    {line}" for line in item.doc.strip().splitlines()]
        return "\n".join(lines)


@overload
def tool(function: _F, /) -> _F: ...


@overload
def tool(
    *,
    effect: Effect = ...,
    executor: Executor = ...,
    approval: Approval = ...,
    deadline_seconds: float | None = ...,
    unknown: UnknownPolicy = ...,
    assignee: str | None = ...,
    needs_scope: bool = ...,
    retry: int = ...,
    signature: str | None = ...,
    name: str | None = ...,
) -> Callable[[_F], _F]: ...


def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool: its signature and docstring become schema, stub and card.

    The function itself stays callable as it is. An argument annotated as `CallContext` is filled
    by the runtime and hidden from models.
    """

    def declare(target: _F) -> _F:
        target.__holdfast_tool__ = make_tool(target, **declared)  # type: ignore[attr-defined]
        return target

    return declare if function is None else declare(function)


def tool_of(given: Any) -> Tool:
    """Return the tool that an object is or was declared as; a plain function counts as `once`."""
    if isinstance(given, Tool):
        return given
    if hasattr(given, "as_tool"):
        made: Tool = given.as_tool()
        return made
    declared = getattr(given, "__holdfast_tool__", None)
    if isinstance(declared, Tool):
        return declared
    if callable(given):
        return make_tool(given)
    raise InvalidSettings(
        f"{ascii(given)[:80]} is not a valid tool; pass a function, a Tool or an Agent"
    )


def make_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    signature: str | None = None,
    **declared: Any,
) -> Tool:
    """Return the tool that a function becomes."""
    known = {item.name for item in Tool.__dataclass_fields__.values()}
    for option in declared:
        if option not in known:
            raise InvalidSettings(
                f"a tool takes no {option!r}; known are {', '.join(sorted(known))}"
            )
    title = str(name or getattr(function, "__name__", ""))
    try:
        found = inspect.signature(function, eval_str=True)
        annotated = typing.get_type_hints(function, include_extras=True)
        hints = typing.get_type_hints(function)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidSettings(f"tool {title!r}: its signature cannot be read: {error}") from error
    context = next((key for key, hint in hints.items() if hint is CallContext), None)
    secrets = _secrets(annotated)
    hidden = {context, *secrets}
    shown = found.replace(
        parameters=[item for key, item in found.parameters.items() if key not in hidden]
    )
    text = _written(shown)
    if signature is not None:
        _check_fits(title, signature, shown)
        text = signature
    parameters, check = _schema(title, shown, hints)
    return Tool(
        name=title,
        call=function,
        signature=text,
        doc=inspect.getdoc(function) or "",
        parameters=parameters,
        returns=_returned(hints),
        context=context,
        secrets=secrets,
        check=check,
        **declared,
    )


def _secrets(annotated: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments that take secrets, with the names of those."""
    return {
        argument: part.name
        for argument, hint in annotated.items()
        for part in getattr(hint, "__metadata__", ())
        if isinstance(part, Secret)
    }


def _written(found: inspect.Signature) -> str:
    """Return a signature as a stub: annotations as people write them."""
    text = str(found)
    for noise in ("typing.", "collections.abc."):
        text = text.replace(noise, "")
    # Defaults that are no literals would not parse as a stub.
    return text if _parsed("stub", text) is not None else "(*args, **kwargs)"


def _check_fits(title: str, declared: str, found: inspect.Signature) -> None:
    if _parsed(title, declared) is None:
        raise InvalidSettings(f"tool {title!r}: {declared!r} is not a signature")
    stub = _stub(title, declared)
    mine, theirs = list(stub.parameters.values()), found.parameters
    takes_any = {item.kind for item in theirs.values()}
    for item in mine:
        if item.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        if item.name not in theirs and inspect.Parameter.VAR_KEYWORD not in takes_any:
            raise InvalidSettings(
                f"tool {title!r}: the declared signature has {item.name!r}, which the function "
                f"does not take; it takes {', '.join(theirs) or 'nothing'}"
            )
    named = {item.name for item in mine}
    for item in theirs.values():
        required = item.default is inspect.Parameter.empty
        plain = item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        if required and plain and item.name not in named:
            raise InvalidSettings(
                f"tool {title!r}: the function needs {item.name!r}, which the declared signature "
                "does not have"
            )


def _schema(
    title: str, found: inspect.Signature, hints: Mapping[str, Any]
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], dict[str, Any]] | None]:
    """Return the JSON schema of the arguments, and a check that says what is wrong with some."""
    parts: list[Any] = []
    for item in found.parameters.values():
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            return {"type": "object"}, None
        hint = hints.get(item.name, Any)
        if item.default is inspect.Parameter.empty:
            parts.append((item.name, hint))
        else:
            parts.append((item.name, hint, msgspec.field(default_factory=_giving(item.default))))
    try:
        shape = msgspec.defstruct(
            title or "Arguments", parts, kw_only=True, forbid_unknown_fields=True
        )
        (schema,), components = msgspec.json.schema_components([shape])
    except TypeError:
        return {"type": "object"}, None
    whole = components.pop(shape.__name__, schema)
    if components:
        whole = _inlined(whole, components)
    whole.pop("title", None)
    for name, item in found.parameters.items():
        if item.default is not inspect.Parameter.empty:
            whole["properties"].get(name, {}).pop("default", None)

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            made = msgspec.convert(dict(arguments), shape, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"arguments of {title!r}: {error}") from error
        return {name: getattr(made, name) for name in shape.__struct_fields__}

    return whole, check


def _returned(hints: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema of a function's result, where its annotation has one."""
    hint = hints.get("return", Any)
    if hint in (Any, None, type(None)):
        return None
    try:
        (schema,), components = msgspec.json.schema_components([hint])
    except TypeError:
        return None
    made: dict[str, Any] = _inlined(schema, components)
    return made


def _giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def _inlined(schema: Any, components: Mapping[str, Any], depth: int = 8) -> Any:
    """Return a schema with its references replaced by what they refer to, for providers."""
    if isinstance(schema, dict):
        ref = schema.get("$ref")
        if isinstance(ref, str) and depth:
            return _inlined(components.get(ref.rpartition("/")[2], {}), components, depth - 1)
        return {key: _inlined(part, components, depth) for key, part in schema.items()}
    if isinstance(schema, list):
        return [_inlined(part, components, depth) for part in schema]
    return schema


def admit(toolsets: Iterable[Toolset], capability: Capability) -> tuple[Toolset, ...]:
    """Return the toolsets with only the tools that the capability names.

    A child session admits its parent's toolsets with its own, narrower capability: what it gets is
    the intersection.
    """
    offered = tuple(toolsets)
    seen: set[str] = set()
    for item in offered:
        if item.name in seen:
            raise InvalidSettings(f"two toolsets have the name {item.name!r}")
        seen.add(item.name)
    admitted = []
    for item in offered:
        kept = tuple(
            one
            for one in item.tools
            if capability.permits("tools", path(item, one))
            and (one.delegate is None or capability.model_calls)
        )
        if kept:
            admitted.append(replace(item, tools=kept))
    return tuple(admitted)


def delegates(toolsets: Iterable[Toolset]) -> dict[str, Tool]:
    """Return the agents among tools, by the name under which calls of them are recorded."""
    return {
        path(item, one): one for item in toolsets for one in item.tools if one.delegate is not None
    }


def path(toolset: Toolset, item: Tool) -> str:
    """Return the name under which calls of a tool are recorded."""
    return f"{toolset.name}.{item.name}" if toolset.name else item.name


def _gone(*args: Any, **kwargs: Any) -> None:
    raise NotFound("the agent does not have this tool any more")


def stand_in(stamp: Mapping[str, Any]) -> Tool:
    """Return what stands for a tool that is gone: an open turn was offered it."""
    return Tool(stamp["name"], _gone, stamp["signature"], effect=stamp["effect"])


def not_here(name: str) -> str:
    """Return what is said of a call whose tool is gone."""
    return f"the tool {name!r} is not here any more"


def host_functions(toolsets: Iterable[Toolset]) -> tuple[HostFunction, ...]:
    """Return the toolsets as a kernel takes them."""
    return tuple(
        HostFunction(one.name, item.name, one.effect == "pure", one.signature, one.doc)
        for item in toolsets
        for one in item.tools
    )


def find(toolsets: Iterable[Toolset], name: str) -> Tool:
    """Return the tool behind the name of a call, such as `github.search`."""
    for item in toolsets:
        for one in item.tools:
            if path(item, one) == name:
                return one
    raise NotFound(f"no toolset of this session has the tool {name!r}")


def card(toolsets: Iterable[Toolset]) -> str:
    """Return the part of the system prompt that tells of every toolset; empty without one."""
    return "\n\n".join(item.card() for item in toolsets)


def transient_text(toolsets: Iterable[Toolset]) -> str:
    """Return what the toolsets have to say for this one request; empty if nothing.

    One that fails to say it is left out: a turn does not fail for want of such a text.
    """
    texts = []
    for item in toolsets:
        if item.transient is None:
            continue
        try:
            text = item.transient()
        except Exception:
            logger.warning("toolset %r has no text for this request", item.name, exc_info=True)
            continue
        if type(text) is str:
            texts.append(text)
        elif text is not None:
            logger.warning("toolset %r gave a %s as text", item.name, type(text).__name__)
    return "\n\n".join(text for text in texts if text)


def _check_name(where: str, name: str) -> None:
    # Python reads other spellings of a letter as that letter: `ｏｓ` imports `os`.
    spelled = isinstance(name, str) and unicodedata.normalize("NFKC", name) == name
    if not (spelled and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
        raise InvalidSettings(f"{where}: {name!r} is not a public Python name")
    if name in RESERVED_NAMES:
        raise InvalidSettings(f"{where}: {name!r} is reserved")


def _parsed(name: str, signature: str) -> ast.FunctionDef | None:
    try:
        # The body stands on a line of its own, so that the signature cannot bring one.
        body = ast.parse(f"def {name}{signature}:\n    ...").body
    except (SyntaxError, ValueError):
        return None
    found = body[0] if len(body) == 1 and "\n" not in signature else None
    return found if isinstance(found, ast.FunctionDef) else None


def _stub(name: str, signature: str) -> inspect.Signature:
    """Return a signature made from its text; defaults are literals, annotations are left out."""
    parsed = _parsed(name, signature)
    assert parsed is not None
    spec = parsed.args
    made: list[inspect.Parameter] = []
    places = [*spec.posonlyargs, *spec.args]
    gap = len(places) - len(spec.defaults)
    for index, item in enumerate(places):
        kind = (
            inspect.Parameter.POSITIONAL_ONLY
            if index < len(spec.posonlyargs)
            else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        found = spec.defaults[index - gap] if index >= gap else None
        made.append(inspect.Parameter(item.arg, kind, default=_literal(found)))
    if spec.vararg:
        made.append(inspect.Parameter(spec.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for item, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        default = _literal(given)
        made.append(inspect.Parameter(item.arg, inspect.Parameter.KEYWORD_ONLY, default=default))
    if spec.kwarg:
        made.append(inspect.Parameter(spec.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(made)


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return None
