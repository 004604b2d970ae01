"""Capabilities: what a session may do, as data, ordered so that a child never gets more.

A capability is a set of gates. Each gate is ordered, so that two capabilities have a meet: the most
that both allow. Sets hold patterns (a path stands for all below it, `*` for everything, `github.*`
and `*.example.org` for a branch); numbers are ceilings; booleans allow. Nothing here touches the
world: paths are compared as text, so whoever passes one resolves it first (symbolic links too).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from holdfast.core.errors import CapabilityDenied, InvalidRecord, InvalidSettings

Confinement = Literal["os", "language", "none"]
Profile = Literal["locked_down", "default", "trusted"]
_STRICTNESS = {"none": 0, "language": 1, "os": 2}


def _path_covers(wide: str, narrow: str) -> bool:
    return narrow == wide or narrow.startswith(wide.rstrip("/") + "/")


def _name_covers(wide: str, narrow: str) -> bool:
    return wide in ("*", narrow) or (wide.endswith(".*") and narrow.startswith(wide[:-1]))


def _host_covers(wide: str, narrow: str) -> bool:
    return wide in ("*", narrow) or (wide.startswith("*.") and narrow.endswith(wide[1:]))


_COVERS: dict[str, Callable[[str, str], bool]] = {
    "read_roots": _path_covers,
    "write_roots": _path_covers,
    "shell_commands": _name_covers,
    "network_hosts": _host_covers,
    "tools": _name_covers,
    "packages": str.__eq__,
}


@dataclass(frozen=True, slots=True)
class Capability:
    """Every gate of a session. The empty one reads, calls and reaches nothing.

    `tools` holds tools as `toolset.tool`, `packages` names of installed packages that code may
    import. `processes` counts threads too. `confinement` is the weakest that the session accepts:
    "os" is the strictest.
    """

    read_roots: tuple[str, ...] = ()
    write_roots: tuple[str, ...] = ()
    shell_commands: tuple[str, ...] = ()
    network_hosts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    model_calls: bool = False
    memory_bytes: int = 1 << 30
    cpu_seconds: int = 60
    wall_seconds: int = 600
    output_bytes: int = 4 << 20
    processes: int = 64
    open_files: int = 128
    confinement: Confinement = "language"

    def __post_init__(self) -> None:
        for gate in fields(self):
            checked = _check(gate.name, getattr(self, gate.name))
            object.__setattr__(self, gate.name, checked)

    def meet(self, other: Capability) -> Capability:
        """Return the most that both allow."""
        return Capability(
            **{
                gate.name: _meet(gate.name, getattr(self, gate.name), getattr(other, gate.name))
                for gate in fields(self)
            }
        )

    def clamp(self, wish: Capability) -> Capability:
        """Return what a child gets that wishes for something: never more than this."""
        return self.meet(wish)

    def wider_gates(self, other: Capability) -> list[str]:
        """List the gates at which the other one allows more than this."""
        allowed = self.meet(other)
        return [
            gate.name
            for gate in fields(self)
            if getattr(allowed, gate.name) != getattr(other, gate.name)
        ]

    def override(self, **gates: Any) -> Capability:
        """Return this with some gates narrowed; one that would be wider is refused by name."""
        unknown = sorted(set(gates) - GATES)
        if unknown:
            raise InvalidSettings(f"no such gate: {unknown[0]!r}; gates are {sorted(GATES)}")
        wish = replace(self, **gates)
        for gate in self.wider_gates(wish):
            raise CapabilityDenied(
                f"override of gate {gate!r} to {getattr(wish, gate)!r} is wider than "
                f"{getattr(self, gate)!r}; start from a wider profile instead",
                gate=gate,
            )
        return wish

    def permits(self, gate: str, name: str) -> bool:
        """Return whether a set gate lets this path, command, host or name through."""
        return any(_COVERS[gate](allowed, name) for allowed in getattr(self, gate))

    def require(self, gate: str, name: str) -> None:
        """Raise CapabilityDenied, naming the gate, unless it lets this name through."""
        if not self.permits(gate, name):
            allowed = ", ".join(getattr(self, gate)) or "nothing"
            raise CapabilityDenied(
                f"{name!r} is denied by gate {gate!r}, which allows {allowed}", gate=gate, name=name
            )

    def to_record(self) -> dict[str, Any]:
        """Return this as a record: lists, strings, whole numbers and booleans."""
        values = {gate.name: getattr(self, gate.name) for gate in fields(self)}
        if not self.packages:
            del values["packages"]  # as releases write and read it that do not know this gate
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Capability:
        """Read a record. A gate that this version does not know makes it unreadable.

        A gate left out is one that the writer did not know: it is taken as closed, or as the
        default ceiling.
        """
        if "surfaces" in record:  # what the first format called the tools of code
            record = {**record, "tools": record["surfaces"]}
            del record["surfaces"]
        unknown = sorted(set(record) - GATES)
        if unknown:
            raise InvalidRecord(
                f"capability record has the unknown gate {unknown[0]!r}; "
                "it was written by a newer version"
            )
        gates: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in record.items()
        }
        try:
            return cls(**gates)
        except InvalidSettings as error:
            raise InvalidRecord(f"capability record: {error}") from error


GATES = frozenset(gate.name for gate in fields(Capability))


def profile(name: Profile, work_area: str | None = None, tools: tuple[str, ...] = ()) -> Capability:
    """Return a profile by name; `work_area` is an absolute, resolved path.

    A tool is denied until it is named here: `("github.search", "wiki.*")`. `locked_down` takes
    neither a work area nor tools.
    """
    if name == "locked_down":
        return Capability()
    roots = () if work_area is None else (work_area,)
    reading = Capability(read_roots=roots, tools=tools, model_calls=True)
    if name == "default":
        return reading
    if name == "trusted":
        return replace(reading, write_roots=roots, shell_commands=("*",), network_hosts=("*",))
    raise InvalidSettings(f"no profile {name!r}; profiles are {', '.join(get_args(Profile))}")


def _meet(gate: str, mine: Any, other: Any) -> Any:
    if gate in _COVERS:
        covers = _COVERS[gate]
        both = [b for a in mine for b in other if covers(a, b)]
        return tuple(both + [a for a in mine for b in other if covers(b, a)])
    if gate == "confinement":
        return max(mine, other, key=_STRICTNESS.__getitem__)
    return min(mine, other)


def _check(gate: str, value: Any) -> Any:
    """Return a gate's value in its one normal form."""
    if gate in _COVERS:
        return _normal(gate, value)
    if gate == "confinement":
        if value not in _STRICTNESS:
            raise InvalidSettings(f"gate 'confinement' takes {list(_STRICTNESS)}, not {value!r}")
        return value
    if gate == "model_calls":
        if not isinstance(value, bool):
            raise InvalidSettings(f"gate 'model_calls' takes true or false, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidSettings(f"gate {gate!r} takes a whole number of at least 0, not {value!r}")
    return value


def _normal(gate: str, values: Iterable[str]) -> tuple[str, ...]:
    """Sort a set gate and leave out what another entry of it covers."""
    if isinstance(values, str):
        raise InvalidSettings(f"gate {gate!r} takes a list, not the text {values!r}")
    entries = set(values)
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            raise InvalidSettings(f"gate {gate!r} takes names, not {entry!r}")
        absolute = entry.startswith("/") and posixpath.normpath(entry) == entry
        if gate.endswith("_roots") and not absolute:
            raise InvalidSettings(f"gate {gate!r} takes absolute, normal paths, not {entry!r}")
    covers = _COVERS[gate]
    return tuple(sorted(e for e in entries if not any(covers(o, e) for o in entries if o != e)))
