"""Problems of a workflow: each with its place, what it is about, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from holdfast.core.errors import InvalidInput


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the text that a workflow was read from, or the line of Python that wrote it."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file or "workflow"
        return (
            f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"
        )

    def moved(self, columns: int) -> Place:
        """Return the place some columns further on; an unknown column stays unknown."""
        return Place(self.file, self.line, self.column + columns) if self.column else self


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a workflow."""

    place: Place
    subject: str  # such as "node judge" or "edge judge → write"
    message: str
    remedy: str
    code: str
    length: int = 1  # of the text that is wrong

    def __str__(self) -> str:
        return f"{self.place}  {self.subject}: {self.message}; {self.remedy}"

    def render(self, source: str | None = None) -> str:
        """Return the problem as people read it, with the line that it stands in."""
        lines = [f"{self.place}  {self.subject}: {self.message}"]
        text = (source or "").splitlines()
        if source is not None and 0 < self.place.line <= len(text):
            line = text[self.place.line - 1]
            margin = f"{self.place.line:6} | "
            lines.append(margin + line)
            if self.place.column:
                carets = max(1, min(self.length, len(line) - self.place.column + 1))
                lines.append(" " * 7 + "| " + " " * (self.place.column - 1) + "^" * carets)
        lines.append(f"    {self.remedy}")
        return "\n".join(lines)

    def document(self) -> dict[str, object]:
        """Return the problem as data."""
        return {
            "code": self.code,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "subject": self.subject,
            "message": self.message,
            "remedy": self.remedy,
        }


class InvalidWorkflow(InvalidInput):
    """A workflow cannot be run as it is written."""

    def __init__(self, message: str | None = None, problems: Sequence[Problem] = ()) -> None:
        text = "\n".join(map(str, problems))
        super().__init__(f"{message}\n{text}" if message and problems else message)
        self.problems = tuple(problems)


def ordered(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems as they stand in the text, each once."""
    return sorted(dict.fromkeys(problems), key=lambda one: (one.place, one.subject, one.message))


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    close = get_close_matches(name, list(known), n=1)
    return close[0] if close else None
