"""Sessions that earlier releases exported still verify and replay."""

from pathlib import Path

import pytest

from holdfast.testing.pytest_plugin import assert_replays

FILES = sorted(Path(__file__).parent.glob("*/*.holdfast"))


def test_there_are_golden_sessions() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_exported_session_verifies_and_replays(path: Path) -> None:
    (report,) = assert_replays(path)
    assert report.cut is None
    assert report.steps > 0
