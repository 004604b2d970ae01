"""The escape corpus against both engines, as whoever runs the tests and, for root, as nobody.

Every attempt must end as its document expects, must not print that it got through, must not bring
the host's secret back, and must leave files, ports, its own session and its neighbour unharmed.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from escape_corpus import Attempt, chapters, read_chapter
from identities import command_as, identities

DRIVER = Path(__file__).with_name("escape_driver.py")
ENGINES = ("cpython", "monty")
CASES = [
    pytest.param(engine, chapter, identity, id=f"{engine}-{chapter}-{identity}")
    for engine in ENGINES
    for chapter in chapters(engine)
    for identity in identities()
]


def judge(attempt: Attempt, outcome: dict[str, Any], secret: str) -> list[str]:
    """Return every reason why this attempt was not denied or contained."""
    faults = list(outcome["harm"])
    if not {outcome["outcome"], "any"} & attempt.expected:
        faults.append(f"ended as {outcome['outcome']!r}, not {sorted(attempt.expected)}")
    if secret in outcome["text"]:
        faults.append("brought the secret back")
    return faults


def run_chapter(engine: str, chapter: str, identity: str, secret: str) -> dict[str, Any]:
    """Run one chapter in a host of its own and return what it saw."""
    command = [sys.executable, str(DRIVER), engine, chapter, secret]
    environment = {"HOLDFAST_ESCAPE_SECRET": secret, "PATH": os.environ["PATH"]}
    host = subprocess.run(
        command_as(identity, command), capture_output=True, env=environment, timeout=120
    )
    assert host.returncode == 0, host.stderr.decode()
    document: dict[str, Any] = json.loads(host.stdout)
    names = [attempt.name for attempt in read_chapter(engine, chapter)]
    assert [outcome["name"] for outcome in document["outcomes"]] == names
    return document


@pytest.mark.parametrize(("engine", "chapter", "identity"), CASES)
def test_every_attempt_of_the_chapter_is_denied_or_contained(
    engine: str, chapter: str, identity: str
) -> None:
    secret = f"holdfast-secret-{secrets.token_hex(8)}"
    document = run_chapter(engine, chapter, identity, secret)
    attempts = read_chapter(engine, chapter)
    faults = {
        attempt.name: [*found, outcome["text"][:1500]]
        for attempt, outcome in zip(attempts, document["outcomes"], strict=True)
        if (found := judge(attempt, outcome, secret))
    }
    assert faults == {}
    assert document["neighbour"] == ""
    assert document["confinement"] == "os"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_corpus_of_an_engine_has_at_least_eighty_attempts(engine: str) -> None:
    attempts = [attempt for name in chapters(engine) for attempt in read_chapter(engine, name)]
    assert len(attempts) >= 80
    assert len({(attempt.name, attempt.code) for attempt in attempts}) == len(attempts)


@pytest.mark.parametrize("identity", identities())
def test_the_trap_notices_every_attempt_that_is_not_confined(identity: str) -> None:
    secret = f"holdfast-secret-{secrets.token_hex(8)}"
    document = run_chapter("unconfined", "control", identity, secret)
    assert document["confinement"] == "none"
    for attempt, outcome in zip(
        read_chapter("unconfined", "control"), document["outcomes"], strict=True
    ):
        assert judge(attempt, outcome, secret), attempt.name
