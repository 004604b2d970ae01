"""Tools: one declaration gives the module, the card, the stamp and the effect class."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.capability import Capability, profile
from holdfast.core.errors import InvalidInput, InvalidSettings, NotFound
from holdfast.core.records import canonical
from holdfast.runtime import tools
from holdfast.runtime.tools import CallContext, Tool, Toolset, make_tool, tool, tool_of


def _search(query: str, limit: int = 10) -> list[str]:
    return [query] * limit


SEARCH = Tool(
    "search", _search, "(query: str, limit: int = 10) -> list[str]", "Search code.", "pure"
)
COMMENT = Tool("comment", print, "(issue: int, text: str) -> None")
GITHUB = Toolset("github", 3, (SEARCH, COMMENT), prompt="Public repositories only.")
WIKI = Toolset("wiki", 1, (Tool("page", print),), transient=lambda: "Page: X")


def test_a_function_is_denied_until_the_capability_names_it() -> None:
    assert tools.admit([GITHUB, WIKI], profile("default")) == ()
    (admitted,) = tools.admit([GITHUB, WIKI], Capability(tools=("github.search",)))
    assert admitted.tools == (SEARCH,)


def test_a_child_gets_the_intersection_of_its_parents_surfaces_and_its_own_capability() -> None:
    parent = Capability(tools=("github.*",))
    child = parent.clamp(Capability(tools=("github.search", "wiki.*")))
    inherited = tools.admit(tools.admit([GITHUB, WIKI], parent), child)
    assert [(s.name, [f.name for f in s.tools]) for s in inherited] == [("github", ["search"])]


def test_the_kernel_gets_module_functions_and_knows_the_pure_ones() -> None:
    search, comment = tools.host_functions([GITHUB])
    assert (search.path, search.pure, search.signature) == ("github.search", True, SEARCH.signature)
    assert (comment.path, comment.pure) == ("github.comment", False)


def test_a_call_is_found_by_its_path() -> None:
    assert tools.find([GITHUB, WIKI], "github.search") is SEARCH
    with pytest.raises(NotFound, match=r"github\.delete"):
        tools.find([GITHUB, WIKI], "github.delete")


def test_the_card_shows_only_what_was_admitted() -> None:
    admitted = tools.admit([GITHUB, WIKI], Capability(tools=("github.search",)))
    assert tools.card(admitted) == (
        "import github  # version 3\n"
        "Public repositories only.\n"
        "def github.search(query: str, limit: int = 10) -> list[str]\n"
        "    Search code."
    )
    assert tools.card([]) == ""


def test_the_stamp_is_a_record_without_callables_and_changes_with_the_card() -> None:
    stamp = GITHUB.stamp()
    canonical(stamp)
    assert stamp["tools"] == [
        {"name": "search", "signature": SEARCH.signature, "effect": "pure"},
        {"name": "comment", "signature": COMMENT.signature, "effect": "once"},
    ]
    other = Toolset("github", 3, (SEARCH, COMMENT), prompt="Other words.")
    assert other.stamp()["card"] != stamp["card"]


def test_transient_text_is_asked_for_each_request_and_stands_in_no_stamp() -> None:
    counter = iter(range(10))
    surface = Toolset("clock", 1, (SEARCH,), transient=lambda: f"tick {next(counter)}")
    stamp = surface.stamp()
    assert tools.transient_text([GITHUB, surface]) == "tick 0"
    assert tools.transient_text([GITHUB, surface]) == "tick 1"
    assert surface.stamp() == stamp
    assert tools.transient_text([GITHUB]) == ""


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
    with pytest.raises(InvalidSettings, match="toolset"):
        Toolset(module, 1, (SEARCH,))


@pytest.mark.parametrize(
    "declared",
    [
        {"name": "FINAL"},
        {"name": "__getattr__"},
        {"signature": "(a, a"},
        {"signature": "():\n    import os\ndef g()"},
        {"signature": "(a): return 1 #"},
        {"signature": "(a) -> int: pass; b"},
        {"effect": "maybe"},
        {"executor": "someone"},
        {"unknown": "guess"},
        {"approval": "sometimes"},
        {"call": "print"},
    ],
)
def test_a_tool_that_cannot_be_offered_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        Tool(**{"name": "f", "call": print, **declared})


@pytest.mark.parametrize(
    "declaration",
    [
        {"name": "a b"},
        {"version": 0},
        {"version": True},
        {"tools": ()},
        {"tools": (SEARCH, SEARCH)},
    ],
)
def test_an_incomplete_toolset_is_refused(declaration: dict[str, Any]) -> None:
    whole = {"name": "x", "version": 1, "tools": (SEARCH,)}
    with pytest.raises(InvalidSettings):
        Toolset(**{**whole, **declaration})


def test_two_toolsets_with_one_name_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="two toolsets"):
        tools.admit((GITHUB, Toolset("github", 1, (SEARCH,))), Capability(tools=("*",)))


@tool(effect="idempotent")
def book(room: str, nights: int = 1, *, tags: list[str] | None = None) -> dict[str, int]:
    """Book a room."""
    return {room: nights}


def test_a_decorated_function_is_schema_stub_and_card_and_stays_a_function() -> None:
    assert book("a") == {"a": 1}
    made = tool_of(book)
    assert (made.name, made.doc, made.effect) == ("book", "Book a room.", "idempotent")
    assert made.parameters["required"] == ["room"]
    assert made.parameters["properties"]["nights"] == {"type": "integer"}
    assert "nights: int = 1" in made.signature
    assert made.check is not None
    assert made.check({"room": "b", "nights": 2}) == {"room": "b", "nights": 2, "tags": None}
    for wrong in ({}, {"room": 1}, {"room": "a", "nights": "many"}, {"room": "a", "more": 1}):
        with pytest.raises(InvalidInput, match="book"):
            made.check(wrong)


def test_the_context_of_a_call_is_no_argument_of_the_tool() -> None:
    def note(text: str, about: CallContext) -> None:
        """Note something."""

    made = tool_of(note)
    assert (made.context, list(made.parameters["properties"])) == ("about", ["text"])
    assert made.effect == "once"
    assert "about" not in made.signature


def test_a_declared_signature_that_does_not_fit_the_function_is_refused() -> None:
    def page(title: str, size: int) -> str:
        return title * size

    assert make_tool(page, signature="(title: str, size: int = 3) -> str").signature
    with pytest.raises(InvalidSettings, match="'name', which the function does not take"):
        make_tool(page, signature="(name: str, title: str, size: int)")
    with pytest.raises(InvalidSettings, match="needs 'size'"):
        make_tool(page, signature="(title: str)")


def test_arguments_are_bound_by_name_as_the_signature_says() -> None:
    made = Tool("f", print, "(a, b=2, *rest, c=3, **more)")
    assert made.bind((1,), {}) == {"a": 1, "b": 2, "c": 3}
    assert made.bind((1, 5, 6), {"d": 4}) == {"a": 1, "b": 5, "rest": [6], "c": 3, "d": 4}
    with pytest.raises(TypeError):
        made.bind((), {})
