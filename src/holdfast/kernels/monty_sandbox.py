"""The engine's own code inside Monty's sandbox: what it offers, and what may leave it.

What leaves the sandbox becomes Python objects in one call that nothing interrupts. Members of a set
that share a hash take quadratic time there, and a list that holds another twice takes twice the
room. So everything is weighed in the sandbox first, within limits of its own: host functions are
functions of the sandbox around the one that stops the cell, modules of the host are objects of the
sandbox, and the last expression of a cell is bound to a name (`with_value`) and listed like one.

A cell may bind any name, so this code refers to nothing that a cell could have bound before: types
and stubs are inputs of the feed that uses them, and closures keep them. A stub has a name that is
not an identifier, because the host is asked for every name that nobody has bound, with arguments.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from holdfast.core.errors import KernelProtocolError
from holdfast.core.hashing import HashingTooCostly, HashWork

# Names of the engine's own code in the sandbox; no listing and no checkpoint shows them.
HIDDEN = "_holdfast_"
# What a name of the engine stands for, whatever a cell has made of it.
OWN = f"{HIDDEN}own_"
# Where a cell leaves what its last expression shows.
VALUE = f"{HIDDEN}value"
CALL = ":"
WEIGH, FINAL, INSPECT = "::weigh", "::FINAL", "::inspect"
_MODULE = f"{HIDDEN}module_"

MAX_DEPTH = 150
MAX_WORK = 4_000_000
"""How much is made at once: a text or number is 1, and what holds others is 20."""
SHOWN_CHARACTERS = 8_000
_MAX_SOURCE = 1 << 18

# Run in a new sandbox before anything but a heap, which has it already. A cell may use the name of
# a builtin for its own purposes: the engine has another name for the one that it needs.
FIRST_CODE = f"""
try:
    {HIDDEN}type
except NameError:
    {HIDDEN}type = type
"""

_KINDS: tuple[type, ...] = (
    *(int, str, float, bool, bytes, tuple, list, set, frozenset, dict, Decimal),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
)
TYPES: dict[str, Any] = {f"{HIDDEN}{kind.__name__}": kind for kind in _KINDS}
_PARAMETERS = ", ".join(kind.__name__ for kind in _KINDS)
_ARGUMENTS = ", ".join(TYPES)

# Members that could cost much are handed over as a list first, and the host decides. A set within
# a member cannot be a list, so a large one there is refused.
_GUARD = f"""
def {HIDDEN}guard({_PARAMETERS}):
    def weight(member):
        match member:
            case int():
                return 1 if -(2**64) < member < 2**64 else 10_001
            case tuple() | frozenset():
                total = 1
                for part in member:
                    total += weight(part)
                    if total > 10_000:
                        break
                return total
            case str() | bytes():
                return 10_001 if member[64:] else 1
            case Decimal():
                return 10_001
        return 1
    def is_costly(members):
        count = total = 0
        for member in members:
            match member:
                case str() | bytes():
                    continue
            count += 1
            total += weight(member)
            if count >= 16 and count * total > 10_000:
                return True
        return False
    def refusal(value, costly, left, inside=False, depth=0):
        match value:
            case int() | str() | None:
                left[0] -= 1
                return None
            case list() | tuple():
                pass
            case dict():
                if is_costly(value):
                    if inside:
                        return "costly"
                    costly.append([*value])
                for key in value:
                    found = refusal(key, costly, left, True, depth + 1)
                    if found:
                        return found
                value = value.values()
            case set() | frozenset():
                if is_costly(value):
                    if inside:
                        return "costly"
                    costly.append([*value])
                inside = True
            case float() | bool() | bytes():
                left[0] -= 1
                return None
            case date() | datetime() | Decimal() | time() | timedelta():
                left[0] -= 1
                return None
            case _:
                return "code"
        left[0] -= 20
        if depth > {MAX_DEPTH}:
            return "deep"
        for item in value:
            if left[0] < 0:
                return "large"
            found = refusal(item, costly, left, inside, depth + 1)
            if found:
                return found
        return None
    return refusal
"""

# What the host functions of a session share. A value that may not leave is shown by its own text.
_OFFER = f"""
def {HIDDEN}offer(refusal, type, weigh, final, inspect, calls):
    def refused(value):
        costly = []
        found = refusal(value, costly, [{MAX_WORK}])
        if not found and costly and not weigh(costly):
            found = "costly"
        return found
    def check(name, value):
        found = refused(value)
        if found == "code":
            raise TypeError(name + " takes data, not functions, classes or modules")
        if found == "costly":
            raise ValueError(name + ": {HashingTooCostly()}")
        if found:
            raise ValueError(name + ": the value has too many parts or is nested too deep")
    def text(value, found):
        if found == "large" or found == "deep":
            return "<" + type(value).__name__ + " with too many parts to be shown>"
        try:
            return f"{{value!r}}"
        except:
            return "<" + type(value).__name__ + " whose repr raised>"
    def make(name, call):
        def {HIDDEN}call(*args, **kwargs):
            check(name, [args, kwargs])
            return call(*args, **kwargs)
        return {HIDDEN}call
    def {HIDDEN}final(value=None, *more, **named):
        if more or named:
            raise TypeError("FINAL(value) takes one value; pass a tuple or a dict for several")
        check("FINAL", value)
        final(value)
    def {HIDDEN}inspect(value, *args, **kwargs):
        check("inspect", [args, kwargs])
        found = refused(value)
        return inspect(text(value, found) if found else value, *args, **kwargs)
    def {HIDDEN}show(value):
        found = refused(value)
        if not found:
            return [value]
        shown = text(value, found)
        ends = [shown[:{SHOWN_CHARACTERS}], shown[-{SHOWN_CHARACTERS}:]]
        return [type(value).__name__, *ends, shown.count("")]
    class module:
        pass
    functions = [make(name, call) for name, call in calls]
    return [{HIDDEN}final, {HIDDEN}inspect, {HIDDEN}show, module, functions]
"""


def prelude(functions: Iterable[str], *, final: bool) -> str:
    """Return the code that offers host functions, by path; `stubs` and `TYPES` are its inputs.

    Its value is the objects that stand for the modules of the host, in the order of their names.
    """
    paths = sorted(functions)
    calls = ", ".join(f'("{path}", {_stub(path)})' for path in paths)
    given = f"{HIDDEN}type, {_stub('weigh')}, {_stub('FINAL')}, {_stub('inspect')}, [{calls}]"
    bound = [f"{OWN}inspect = inspect = {HIDDEN}made[1]", f"{HIDDEN}show = {HIDDEN}made[2]"]
    if final:
        bound.append(f"{OWN}FINAL = FINAL = {HIDDEN}made[0]")
    modules = modules_of(paths)
    bound += [f"{_MODULE}{module} = {HIDDEN}made[3]()" for module in modules]
    for index, path in enumerate(paths):
        module, _, name = path.rpartition(".")
        targets = f"{_MODULE}{module}.{name}" if module else f"{OWN}{name} = {name}"
        bound.append(f"{targets} = {HIDDEN}made[4][{index}]")
    used = " = ".join([*map(_stub, ["weigh", "FINAL", "inspect", *paths]), f"{HIDDEN}made", VALUE])
    return "\n".join(
        [
            f"{_GUARD}{_OFFER}",
            f"{HIDDEN}made = {HIDDEN}offer({HIDDEN}guard({_ARGUMENTS}), {given})",
            *bound,
            f"{used} = None",
            f"[{', '.join(_MODULE + module for module in modules)}]",
        ]
    )


def stubs(functions: Iterable[str]) -> dict[str, Any]:
    """Return what the prelude calls to stop the cell, by the names of its inputs."""
    own = {"weigh": WEIGH, "FINAL": FINAL, "inspect": INSPECT}
    called = own | {path: f"{CALL}{path}" for path in functions}
    return {_stub(path): _host_function(name) for path, name in called.items()}


def modules_of(functions: Iterable[str]) -> list[str]:
    """Return the modules of host functions, by name."""
    return sorted({path.rpartition(".")[0] for path in functions if "." in path})


def _stub(path: str) -> str:
    return f"{HIDDEN}stub_{path.replace('.', '_dot_')}"


def _host_function(name: str) -> Any:
    """Return a callable that Monty knows by this name; it stops the cell and is never called."""

    def stub(*args: Any, **kwargs: Any) -> None:
        raise KernelProtocolError(f"{name!r} is answered through its snapshot")

    stub.__name__ = stub.__qualname__ = name
    return stub


# Only what passes this leaves the sandbox: an instance inside a value can end Monty's worker.
SURVEY = f"""{_GUARD}
def {HIDDEN}survey(refusal):
    global {HIDDEN}namespace, {HIDDEN}values, {VALUE}
    listed, {HIDDEN}namespace = {HIDDEN}namespace, None
    shown, {VALUE} = {VALUE}, None
    values, costly, left, found = {{}}, [], [{MAX_WORK}], []
    match listed:
        case {HIDDEN}dict():
            readable = not refusal([{HIDDEN}kinds, {HIDDEN}replaced], found, left, True)
        case _:
            readable = False
    namespace = [("{VALUE}", shown), *(listed.items() if readable else [])]
    for name, value in namespace:
        match name:
            case {HIDDEN}str():
                if name[:{len(HIDDEN)}] != "{HIDDEN}" or value is shown:
                    found, before = [], left[0]
                    if refusal(value, found, left):
                        left[0] = before
                    else:
                        values[name] = value
                        if found:
                            costly.append((name, found))
    {HIDDEN}values = values if costly else None
    kinds = [{HIDDEN}kinds, {HIDDEN}replaced] if readable else [None, []]
    return [*kinds, costly, {{}} if costly else values]
{HIDDEN}survey({HIDDEN}guard({_ARGUMENTS}))
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


def weighed(tables: Any) -> bool:
    """Return whether sets and dicts with these members can be made in time."""
    hashing = HashWork()
    try:
        for members in tables:
            hashing.check(members)
            set(hashing.paced(members))
    except HashingTooCostly:
        return False
    return True


# The source of a cell

_SHOW = f"{VALUE} = {HIDDEN}show(("
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)')


@dataclass(frozen=True, slots=True)
class Source:
    """A cell as it is run: it leaves the value of its last expression behind.

    Lines stay where they are. Code that this interpreter does not read shows no value: the sandbox
    says what is wrong with it, or knows more.
    """

    written: str
    run: str
    shown_line: int = 0

    @classmethod
    def of(cls, code: str) -> Source:
        """Return a cell that leaves its value behind, if it ends with an expression."""
        last = _last_expression(code)
        if last is None:
            return cls(code, f"{code}\nNone")
        lines = code.encode("utf-8", "surrogatepass").split(b"\n")
        first, final = last.lineno - 1, (last.end_lineno or last.lineno) - 1
        # The end first: what is put in there does not move the start.
        end, start = last.end_col_offset or 0, last.col_offset
        lines[final] = lines[final][:end] + b"))" + lines[final][end:]
        lines[first] = lines[first][:start] + _SHOW.encode() + lines[first][start:]
        run = b"\n".join(lines).decode("utf-8", "surrogatepass")
        return cls(code, f"{run}\nNone", last.lineno)

    def as_written(self, shown: str, filename: str) -> str:
        """Return a traceback with the lines of the cell as the model wrote them, and no others."""
        written, kept = self.written.split("\n"), list[str]()
        skipped, line, moved = False, 0, 0
        for text in shown.split("\n"):
            frame = _FRAME.fullmatch(text)
            if frame is not None:
                skipped = frame["function"].startswith(HIDDEN)
                line = int(frame["line"]) if frame["file"] == filename else 0
                moved = 0
            elif not text.startswith("    "):
                skipped, line = False, 0
            elif 0 < line <= len(written) and text.strip("~^ "):
                if line == self.shown_line and _SHOW in text:
                    moved = len(_SHOW)
                text = f"    {written[line - 1].strip()}"
                line = 0
            elif moved:
                text, moved = _moved(text, moved), 0
            if not skipped:
                kept.append(text)
        return "\n".join(kept)


def _moved(marks: str, by: int) -> str:
    """Return the line that marks a part of the one before it, so much further to the left."""
    blank = len(marks) - len(marks.lstrip())
    return " " * max(blank - by, 4) + marks.lstrip()


def _last_expression(code: str) -> ast.Expr | None:
    if len(code) > _MAX_SOURCE:
        return None
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree: Any = compile(code, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    last = tree.body[-1] if tree.body else None
    return last if isinstance(last, ast.Expr) else None
