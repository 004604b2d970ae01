"""YAML as workflows use it: plain data with the place of every part, and no surprises.

Anchors, tags and double keys are refused, and `yes` is a text: what a file says is what a reader of
it sees. Values are those of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from holdfast.workflows.problems import Place, Problem

Path = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_DEPTH = 60

_INTEGER = re.compile(r"[-+]?[0-9]{1,15}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class Source:
    """A file that was read: its data, where each part of it stands, and what is wrong with it."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.data: Any = None
        self.places: dict[Path, Place] = {}
        self.problems: list[Problem] = []
        if len(text.encode()) > MAX_BYTES:
            self._add(
                Place(file), f"the file has {len(text.encode())} bytes", "split it into files"
            )
            return
        try:
            root = yaml.compose(text, Loader=_Loader)
        except yaml.MarkedYAMLError as error:
            self._refuse(error)
            return
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            self._add(Place(file), f"the file is not valid YAML: {error}"[:200], "correct it")
            return
        if root is None:
            self._add(Place(file, 1, 1), "the file is empty", "begin with 'workflow: NAME'")
            return
        self.data = self._value(root, ())

    def _add(self, place: Place, message: str, remedy: str, length: int = 1) -> None:
        self.problems.append(Problem(place, "file", message, remedy, "yaml", length))

    def _refuse(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        place = Place(self.file, mark.line + 1, mark.column + 1) if mark else Place(self.file)
        line = self.text.splitlines()[mark.line] if mark and self.text else ""
        remedy = "check the indentation and the quotes of this line"
        if isinstance(error, _Refused):
            remedy = error.remedy
        elif "{" in line or "[" in line:
            remedy = "quote the expression: braces, brackets, ': ' and ', ' have a meaning in YAML"
        elif "\t" in line:
            remedy = "indent with spaces"
        self._add(place, f"{error.problem or error.context}", remedy)

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        place = self._place(node)
        self.places[path] = place
        if len(path) > MAX_DEPTH:
            self._add(place, f"the file is nested more than {MAX_DEPTH} deep", "flatten it")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, number)) for number, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        if node.style in ("'", '"') and "\n" not in node.value:
            self.places[path] = place.moved(1)  # inside the quotes
        elif node.style in ("|", ">"):
            # The text begins on the next line, at its own indentation.
            self.places[path] = Place(self.file, place.line + 1, self._indentation(place.line + 1))
        return _scalar(node)

    def _indentation(self, line: int) -> int:
        text = self.text.splitlines()
        found = text[line - 1] if line <= len(text) else ""
        return len(found) - len(found.lstrip(" ")) + 1

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                self._add(place, "a key must be a word", "write 'name: value'; quote expressions")
                continue
            name = key.value
            if name in found:
                remedy = "remove one of them"
                if not name.replace("_", "").isalnum():
                    remedy = "quote the expression: in {…} YAML ends it at a comma"
                self._add(place, f"the key {name!r} stands here twice", remedy, len(name))
                continue
            found[name] = self._value(value, (*path, name))
            self.places[(*path, name, KEY)] = place
        return found


KEY = "\0key"
"""The last part of the path to the place of a key itself."""


def _scalar(node: yaml.ScalarNode) -> Any:
    if node.style is not None:  # quoted or block: text
        return node.value
    text: str = node.value
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


class _Refused(yaml.MarkedYAMLError):
    """Something that YAML has and workflows leave out."""

    def __init__(self, problem: str, mark: Any, remedy: str) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.remedy = remedy


class _Loader(yaml.SafeLoader):
    """Composes nodes, and refuses what would make a file mean something else than it shows."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused(
                "anchors and aliases are not part of workflow files",
                event.start_mark,
                "repeat the part, or declare it under 'schemas' or 'vars'",
            )
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS:
            raise _Refused(
                f"{tag!r} is a YAML tag",
                event.start_mark,
                "quote the text; in conditions write 'not x' instead of '!x'",
            )
        return super().compose_node(parent, index)


def places_of(data: Any, place: Place, path: Path = ()) -> Mapping[Path, Place]:
    """Return the same place for every part of some data."""
    found = {path: place}
    if isinstance(data, dict):
        for key, part in data.items():
            found |= places_of(part, place, (*path, key))
    elif isinstance(data, list):
        for number, part in enumerate(data):
            found |= places_of(part, place, (*path, number))
    return found
