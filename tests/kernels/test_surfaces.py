"""Surfaces: one declaration gives the module, the card, the stamp and the effect class."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.capability import Capability, profile
from holdfast.core.errors import InvalidSettings, NotFound
from holdfast.core.records import canonical
from holdfast.kernels import surfaces
from holdfast.kernels.surfaces import Surface, SurfaceFunction


def _search(query: str, limit: int = 10) -> list[str]:
    return [query] * limit


SEARCH = SurfaceFunction(
    "search", _search, "(query: str, limit: int = 10) -> list[str]", "Search code.", "pure"
)
COMMENT = SurfaceFunction("comment", print, "(issue: int, text: str) -> None")
GITHUB = Surface("code-host", 3, "github", (SEARCH, COMMENT), prompt="Public repositories only.")
WIKI = Surface("wiki", 1, "wiki", (SurfaceFunction("page", print),), transient=lambda: "Page: X")


def test_a_function_is_denied_until_the_capability_names_it() -> None:
    assert surfaces.admit([GITHUB, WIKI], profile("default")) == ()
    (admitted,) = surfaces.admit([GITHUB, WIKI], Capability(surfaces=("github.search",)))
    assert admitted.functions == (SEARCH,)


def test_a_child_gets_the_intersection_of_its_parents_surfaces_and_its_own_capability() -> None:
    parent = Capability(surfaces=("github.*",))
    child = parent.clamp(Capability(surfaces=("github.search", "wiki.*")))
    inherited = surfaces.admit(surfaces.admit([GITHUB, WIKI], parent), child)
    assert [(s.module, [f.name for f in s.functions]) for s in inherited] == [
        ("github", ["search"])
    ]


def test_the_kernel_gets_module_functions_and_knows_the_pure_ones() -> None:
    search, comment = surfaces.host_functions([GITHUB])
    assert (search.path, search.pure, search.signature) == ("github.search", True, SEARCH.signature)
    assert (comment.path, comment.pure) == ("github.comment", False)


def test_a_call_is_found_by_its_path() -> None:
    assert surfaces.find([GITHUB, WIKI], "github.search") is SEARCH
    with pytest.raises(NotFound, match=r"github\.delete"):
        surfaces.find([GITHUB, WIKI], "github.delete")


def test_the_card_shows_only_what_was_admitted() -> None:
    admitted = surfaces.admit([GITHUB, WIKI], Capability(surfaces=("github.search",)))
    assert surfaces.card(admitted) == (
        "import github  # code-host v3\n"
        "Public repositories only.\n"
        "def github.search(query: str, limit: int = 10) -> list[str]\n"
        "    Search code."
    )
    assert surfaces.card([]) == ""


def test_the_stamp_is_a_record_without_callables_and_changes_with_the_card() -> None:
    stamp = GITHUB.stamp()
    canonical(stamp)
    assert stamp["functions"] == [
        {"name": "search", "signature": SEARCH.signature, "effect": "pure"},
        {"name": "comment", "signature": COMMENT.signature, "effect": "once"},
    ]
    other = Surface("code-host", 3, "github", (SEARCH, COMMENT), prompt="Other words.")
    assert other.stamp()["card"] != stamp["card"]


def test_transient_text_is_asked_for_each_request_and_stands_in_no_stamp() -> None:
    counter = iter(range(10))
    surface = Surface("clock", 1, "clock", (SEARCH,), transient=lambda: f"tick {next(counter)}")
    stamp = surface.stamp()
    assert surfaces.transient_text([GITHUB, surface]) == "tick 0"
    assert surfaces.transient_text([GITHUB, surface]) == "tick 1"
    assert surface.stamp() == stamp
    assert surfaces.transient_text([GITHUB]) == ""


@pytest.mark.parametrize(
    "module",
    [
        *(
            "os",
            "json",
            "FINAL",
            "CallError",
            "inspect",
            "lm",
            "holdfast",
            "class",
            "_private",
            "a.b",
        ),
        *("two words", "\uff4f\uff53", "\uff26INAL"),
    ],
)
def test_a_reserved_or_impossible_module_name_is_refused(module: str) -> None:
    with pytest.raises(InvalidSettings, match="surface 'x'"):
        Surface("x", 1, module, (SEARCH,))


@pytest.mark.parametrize(
    "function",
    [
        SurfaceFunction("FINAL", print),
        SurfaceFunction("__getattr__", print),
        SurfaceFunction("f", print, "(a, a"),
        SurfaceFunction("f", print, "():\n    import os\ndef g()"),
        SurfaceFunction("f", print, "(a): return 1 #"),
        SurfaceFunction("f", print, "(a) -> int: pass; b"),
        SurfaceFunction("f", print, effect="maybe"),  # type: ignore[arg-type]
        SurfaceFunction("f", "print"),  # type: ignore[arg-type]
    ],
)
def test_a_function_that_cannot_be_offered_is_refused(function: SurfaceFunction) -> None:
    with pytest.raises(InvalidSettings):
        Surface("x", 1, "x", (function,))


@pytest.mark.parametrize(
    "declaration",
    [
        {"id": ""},
        {"version": 0},
        {"version": True},
        {"functions": ()},
        {"functions": (SEARCH, SEARCH)},
    ],
)
def test_an_incomplete_surface_is_refused(declaration: dict[str, Any]) -> None:
    whole = {"id": "x", "version": 1, "module": "x", "functions": (SEARCH,)}
    with pytest.raises(InvalidSettings):
        Surface(**{**whole, **declaration})


@pytest.mark.parametrize(
    "pair",
    [
        (GITHUB, Surface("code-host", 1, "other", (SEARCH,))),
        (GITHUB, Surface("other", 1, "github", (SEARCH,))),
    ],
)
def test_two_surfaces_with_one_id_or_module_are_refused(pair: tuple[Surface, Surface]) -> None:
    with pytest.raises(InvalidSettings, match="two surfaces"):
        surfaces.admit(pair, Capability(surfaces=("*",)))
