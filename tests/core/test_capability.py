"""Capabilities form a lattice: the meet is the most both allow, and nothing widens by it."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.capability import GATES, Capability, profile
from holdfast.core.errors import CapabilityDenied, InvalidRecord, InvalidSettings
from holdfast.core.records import canonical

_PARTS = st.sampled_from(["a", "b", "c"])
_PATHS = st.lists(_PARTS, max_size=3).map(lambda parts: "/" + "/".join(parts))
_NAMES = st.sampled_from(["*", "github.*", "github.search", "github.open", "git", "git.log", "ls"])
_HOSTS = st.sampled_from(
    ["*", "*.example.org", "example.org", "a.example.org", "*.a.example.org", "b.net"]
)
_CEILINGS = st.integers(min_value=0, max_value=5)


def _sets(entries: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(entries, max_size=4).map(tuple)


capabilities = st.builds(
    Capability,
    read_roots=_sets(_PATHS),
    write_roots=_sets(_PATHS),
    shell_commands=_sets(_NAMES),
    network_hosts=_sets(_HOSTS),
    tools=_sets(_NAMES),
    packages=_sets(st.sampled_from(["numpy", "pandas", "scipy"])),
    model_calls=st.booleans(),
    memory_bytes=_CEILINGS,
    cpu_seconds=_CEILINGS,
    wall_seconds=_CEILINGS,
    output_bytes=_CEILINGS,
    processes=_CEILINGS,
    open_files=_CEILINGS,
    confinement=st.sampled_from(["os", "language", "none"]),
)


@given(capabilities, capabilities)
def test_meet_is_commutative(one: Capability, other: Capability) -> None:
    assert one.meet(other) == other.meet(one)


@given(capabilities, capabilities, capabilities)
def test_meet_is_associative(one: Capability, two: Capability, three: Capability) -> None:
    assert one.meet(two).meet(three) == one.meet(two.meet(three))


@given(capabilities)
def test_meet_is_idempotent(one: Capability) -> None:
    assert one.meet(one) == one


@given(capabilities, capabilities)
def test_meet_never_widens(one: Capability, other: Capability) -> None:
    both = one.meet(other)
    assert one.wider_gates(both) == []
    assert other.wider_gates(both) == []


@given(capabilities, capabilities, _PATHS, _NAMES, _HOSTS)
def test_what_the_meet_permits_is_exactly_what_both_permit(
    one: Capability, other: Capability, path: str, name: str, host: str
) -> None:
    both = one.meet(other)
    for gate, asked in (
        ("read_roots", path),
        ("write_roots", path),
        ("shell_commands", name),
        ("tools", name),
        ("network_hosts", host),
    ):
        expected = one.permits(gate, asked) and other.permits(gate, asked)
        assert both.permits(gate, asked) is expected


@given(capabilities)
def test_a_record_brings_the_same_capability_back_and_is_canonical(one: Capability) -> None:
    assert Capability.from_record(one.to_record()) == one
    canonical(one.to_record())


@given(capabilities, capabilities)
def test_a_child_that_wishes_for_anything_gets_no_more_than_its_parent(
    parent: Capability, wish: Capability
) -> None:
    assert parent.wider_gates(parent.clamp(wish)) == []


@pytest.mark.parametrize(
    ("gate", "wider"),
    [
        ("read_roots", ("/",)),
        ("write_roots", ("/area",)),
        ("shell_commands", ("ls",)),
        ("network_hosts", ("example.org",)),
        ("memory_bytes", 1 << 40),
        ("cpu_seconds", 61),
        ("wall_seconds", 601),
        ("output_bytes", 1 << 30),
        ("processes", 65),
        ("open_files", 129),
        ("confinement", "none"),
    ],
)
def test_a_wider_override_is_refused_by_the_name_of_its_gate(gate: str, wider: object) -> None:
    with pytest.raises(CapabilityDenied, match=f"gate '{gate}'") as refusal:
        profile("default", "/area").override(**{gate: wider})
    assert refusal.value.details["gate"] == gate


@pytest.mark.parametrize("gate", ["tools", "model_calls"])
def test_locked_down_cannot_be_opened_by_an_override(gate: str) -> None:
    wish = True if gate == "model_calls" else ("*",)
    with pytest.raises(CapabilityDenied, match=gate):
        profile("locked_down").override(**{gate: wish})


def test_a_surface_is_denied_until_the_profile_names_it() -> None:
    assert not profile("default").permits("tools", "github.search")
    assert not profile("trusted").permits("tools", "github.search")
    assert profile("default", tools=("github.*",)).permits("tools", "github.search")
    assert not profile("locked_down", tools=("github.*",)).permits("tools", "github.search")


def test_a_narrower_override_is_taken_and_leaves_the_other_gates() -> None:
    narrowed = profile("default", "/area").override(
        read_roots=("/area/docs",), cpu_seconds=5, confinement="os"
    )
    assert narrowed.read_roots == ("/area/docs",)
    assert narrowed.cpu_seconds == 5
    assert narrowed.confinement == "os"
    assert narrowed.model_calls


def test_the_profiles_are_ordered_from_locked_down_to_trusted() -> None:
    locked, default, trusted = (profile(n, "/area") for n in ("locked_down", "default", "trusted"))
    assert default.wider_gates(locked) == []
    assert trusted.wider_gates(default) == []
    assert set(locked.wider_gates(default)) == {"read_roots", "model_calls"}
    assert set(default.wider_gates(trusted)) == {"write_roots", "shell_commands", "network_hosts"}


def test_a_root_covers_what_lies_below_it_and_not_its_neighbours() -> None:
    area = profile("default", "/area")
    assert area.permits("read_roots", "/area")
    assert area.permits("read_roots", "/area/deep/file")
    assert not area.permits("read_roots", "/area-of-others")
    with pytest.raises(CapabilityDenied, match="gate 'read_roots'"):
        area.require("read_roots", "/etc/passwd")


def test_a_host_pattern_covers_its_subdomains_only() -> None:
    one = Capability(network_hosts=("*.example.org",))
    assert one.permits("network_hosts", "api.example.org")
    assert not one.permits("network_hosts", "example.org")
    assert not one.permits("network_hosts", "badexample.org")


@pytest.mark.parametrize(
    "gates",
    [
        {"read_roots": ("relative",)},
        {"read_roots": ("/a/../b",)},
        {"read_roots": "/a"},
        {"tools": ("",)},
        {"memory_bytes": 1.5},
        {"memory_bytes": -1},
        {"memory_bytes": True},
        {"model_calls": 1},
        {"confinement": "docker"},
    ],
)
def test_a_gate_with_a_wrong_value_is_refused(gates: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings):
        Capability(**gates)  # type: ignore[arg-type]


def test_a_record_with_a_gate_of_the_future_is_not_read() -> None:
    with pytest.raises(InvalidRecord, match="teleport"):
        Capability.from_record({"teleport": True})


def test_every_gate_is_generated_above() -> None:
    assert {field.name for field in fields(Capability)} == GATES
    assert len(GATES) == 14
