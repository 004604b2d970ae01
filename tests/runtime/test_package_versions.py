"""Packages come from a declared environment; a cell that runs with other versions says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import holdfast
from holdfast.core.capability import profile

from .conftest import Lab, cell, replies

STEPS = (cell("import tiny\nFINAL(tiny.VERSION)"), cell("FINAL(tiny.VERSION)"), cell("FINAL(1)"))


def environment(place: Path, version: str) -> Path:
    """Make an environment with one package."""
    place.mkdir()
    (place / "tiny.py").write_text(f"VERSION = {version!r}\n")
    about = place / f"tiny-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
    (about / "RECORD").write_text(f"tiny.py,,\ntiny-{version}.dist-info/METADATA,,\n")
    return place


async def test_versions_of_packages_are_recorded_and_others_are_told(
    lab: Lab, tmp_path: Path
) -> None:
    gates = replace(profile("default", work_area=str(tmp_path)), packages=("tiny",))
    first = environment(tmp_path / "first", "1.0")
    runtime = await lab.open(replies(*STEPS), packages_from=first)
    session = await runtime.start(capability=gates)
    result = await session.send("which?")
    assert isinstance(result, holdfast.Final)
    assert result.value == "1.0"
    assert "tiny 1.0" in lab.requests[0].system
    await runtime.close()
    second = environment(tmp_path / "second", "1.1")
    again = await lab.open(replies(*STEPS), packages_from=second)
    await again.send(session.id, "and now?")
    outputs = [str(fact.output.value()) for fact in await lab.facts(session.id, "eval.added")]
    assert "tiny is 1.1, and was 1.0" in outputs[1]
    assert "have changed" not in outputs[0]
