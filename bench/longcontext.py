"""Questions about texts that no window holds: sets made by a script, answered by way of code.

Three kinds, over 1 and 10 million characters: a needle (one line that matters), an aggregation (a
sum over all lines of a kind) and pairs (which two people were in the most rooms together). The text
is an input of the session and never part of a request. The scripted model follows the way of code,
so the figures are those of the runtime; `HOLDFAST_BENCH_MODEL` names a real model instead, and the
share of right answers is then what is measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import holdfast
from bench.table import Figure, as_result
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel

SIZES = (1_000_000, 10_000_000)
PEOPLE = ("Ada", "Ben", "Cy", "Dot", "Eve", "Flo", "Gus", "Hal")
FILL = "The ledger of the harbour goes on with nothing of note for this hour."


@dataclass(frozen=True, slots=True)
class Case:
    """A text, a question about it, the right answer, and code that finds it."""

    kind: str
    text: str
    question: str
    answer: Any
    code: str


def needle(size: int, seed: int) -> Case:
    """Return a text with one line that matters."""
    dice = random.Random(seed)
    lines = [FILL] * (size // (len(FILL) + 1))
    number = dice.randrange(10**6)
    lines[dice.randrange(len(lines))] = f"The number of the vault is {number}."
    code = (
        "import re\nplace = text.index('vault')\n"
        "FINAL(int(re.search(r'\\d+', text[place : place + 80])[0]))"
    )
    return Case("needle", "\n".join(lines), "Which number has the vault?", number, code)


def aggregation(size: int, seed: int) -> Case:
    """Return a text of payments, of which one kind is to be summed up."""
    dice = random.Random(seed)
    lines, total, length = list[str](), 0, 0
    while length < size:
        person, amount = dice.choice(PEOPLE), dice.randrange(1, 1000)
        total += amount if person == "Eve" else 0
        lines.append(f"{person} paid {amount} for tar, rope and a night at the inn.")
        length += len(lines[-1]) + 1
    code = "FINAL(sum(int(line.split()[2]) for line in text.splitlines() if line[:4] == 'Eve '))"
    return Case("aggregation", "\n".join(lines), "How much did Eve pay in all?", total, code)


def pairwise(size: int, seed: int) -> Case:
    """Return a text of rooms, of which every pair of guests counts."""
    dice = random.Random(seed)
    lines, pairs, length = list[str](), Counter[tuple[str, ...]](), 0
    while length < size:
        guests = sorted(dice.sample(PEOPLE, 3))
        pairs.update(combinations(guests, 2))
        lines.append(f"Room {len(lines)}: {', '.join(guests)} stayed until the morning came.")
        length += len(lines[-1]) + 1
    code = """
from collections import Counter
from itertools import combinations
pairs = Counter()
for line in text.splitlines():
    guests = line.partition(': ')[2].partition(' stayed')[0].split(', ')
    pairs.update(combinations(sorted(guests), 2))
best = max(pairs.values())
FINAL(sorted(list(pair) for pair, count in pairs.items() if count == best)[0])
"""
    best = max(pairs.values())
    answer = sorted(list(pair) for pair, count in pairs.items() if count == best)[0]
    question = (
        "Which two people shared the most rooms? Answer with their names in order, as a list."
    )
    return Case("pairwise", "\n".join(lines), question, answer, code)


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    for size in SIZES:
        for make in (needle, aggregation, pairwise):
            case = make(size, seed=size)
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
                took, right, sent = asyncio.run(_asked(Path(place), case))
            name = f"{case.kind} in {size // 1_000_000} million characters"
            note = f"{'right' if right else 'WRONG'}, at most {sent:,} characters sent at once"
            figures.append(Figure(name, took, "s", note=note))
    return as_result("questions about long texts (cpython, SQLite)", figures)


async def _asked(place: Path, case: Case) -> tuple[float, bool, int]:
    sent = 0

    def respond(request: ModelRequest) -> str:
        nonlocal sent
        sent = max(sent, sum(len(message.text) for message in request.messages))
        return f"```python\n{case.code}\n```"

    named = os.environ.get("HOLDFAST_BENCH_MODEL")
    model = named or ScriptedModel(respond, name="by-code")
    async with holdfast.open(place / "store", model=model) as runtime:
        session = await runtime.start()
        began = time.perf_counter()
        result = await session.send(case.question, inputs={"text": case.text})
        took = time.perf_counter() - began
    value = result.value if isinstance(result, holdfast.Final) else None
    return took, value == case.answer, sent
