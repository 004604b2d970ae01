"""The corpus of escape attempts: documents in which every heading is one attempt.

An attempt says in prose what it tries, then `Expect:` with the outcomes that count as denied or
contained, then the code. Code that gets through prints ESCAPED. `@NAME@` stands for something that
the trap puts in the way: the secret beside the readable area, the ports that nobody may reach.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent / "escapes"
_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_BODY = re.compile(r"\n(.+?)\nExpect: (.+?)\n```python\n(.*?)```", re.DOTALL)

# Doors of the kernel are tried by number; anything but "no" and "no such call" let the call in.
_BY_NUMBER = """
import ctypes, os
_c = ctypes.CDLL(None, use_errno=True)
def N(x86_64, aarch64):
    return {"x86_64": x86_64, "aarch64": aarch64}[os.uname().machine]
def bytes_of(count):
    return ctypes.create_string_buffer(count)
def attempt(number, *arguments):
    result = _c.syscall(ctypes.c_long(number), *arguments)
    refused = result == -1 and ctypes.get_errno() in (1, 38)
    print(number, result, ctypes.get_errno(), "" if refused else "ESCAPED")
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt and the outcomes that count as denied or contained."""

    name: str
    tries: str
    expected: frozenset[str]
    code: str

    def code_for(self, places: dict[str, str]) -> str:
        """Return the code with the trap's places filled in."""
        return re.sub(r"@([A-Z_]+)@", lambda match: places[match[1]], self.code)


def chapters(engine: str) -> list[str]:
    """Return the names of an engine's documents."""
    return sorted(path.stem for path in (DIRECTORY / engine).glob("*.md"))


def read_chapter(engine: str, chapter: str) -> list[Attempt]:
    """Read every attempt of one document."""
    text = (DIRECTORY / engine / f"{chapter}.md").read_text()
    headings = list(_HEADING.finditer(text))
    attempts = []
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        section = text[heading.end() : following.start() if following else len(text)]
        body = _BODY.fullmatch(section.rstrip())
        if body is None:
            raise ValueError(f"{chapter}: {heading[1]!r} lacks prose, Expect or code")
        tries, expected, code = body.groups()
        prelude = _BY_NUMBER if "attempt(" in code else ""
        outcomes = frozenset(outcome.strip() for outcome in expected.split("|"))
        attempts.append(Attempt(heading[1], tries.strip(), outcomes, prelude + code))
    return attempts
