"""Files and images as inputs: read in the cell, pinned by digest, seen by the model."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.core.errors import InputFileChanged, InvalidInput
from holdfast.core.messages import Image
from holdfast.runtime.replay import replay_session
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies

COUNT = cell("with open(table['path']) as file:\n    lines = sum(1 for _ in file)\nFINAL(lines)")
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(2_000)


LINES = "a,b\n" * 50_000


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "table.csv"
    write(path, LINES)
    return path


async def test_a_file_is_read_in_the_cell_and_recorded_by_its_digest(
    lab: Lab, table: Path, tmp_path: Path
) -> None:
    runtime = await lab.open(replies(COUNT), work_area=str(tmp_path))
    session = await runtime.start()
    result = await session.send("count the lines", inputs={"table": table})
    assert isinstance(result, holdfast.Final)
    assert result.value == 50_000
    (turn,) = await lab.facts(session.id, "turn.started")
    record = turn.inputs["table"].value()
    assert (record["path"], record["bytes"]) == (str(table), 200_000)
    assert record["sha256"].startswith("sha256:")
    shown = lab.requests[0].messages[-1].text
    assert "table: a file of 200,000 bytes" in shown
    assert "a,b" not in shown
    assert (await replay_session(lab.store, session.id)).difference is None


async def test_a_file_that_changed_is_an_error_until_it_is_put_back(
    lab: Lab, table: Path, tmp_path: Path
) -> None:
    runtime = await lab.open(replies(COUNT, COUNT, COUNT), work_area=str(tmp_path))
    session = await runtime.start()
    await session.send("count", inputs={"table": table})
    fork = await runtime.fork(session)
    write(table, LINES + "more\n")
    with pytest.raises(InputFileChanged, match=r"table\.csv.*put back"):
        await session.send("again")
    await runtime.close()
    again = await lab.open(replies(COUNT, COUNT, COUNT), work_area=str(tmp_path))
    with pytest.raises(InputFileChanged):
        await again.resume(session.id)
    with pytest.raises(InputFileChanged):
        await replay_session(lab.store, session.id)
    with pytest.raises(InputFileChanged):
        await again.send(fork.id, "in the fork")
    write(table, LINES)
    result = await again.resume(session.id)
    assert isinstance(result, holdfast.Final)
    assert result.value == 50_000


async def test_a_file_that_the_code_may_not_read_is_refused_before_anything_is_stored(
    lab: Lab, table: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    runtime = await lab.open(replies(COUNT), work_area=str(work))
    session = await runtime.start()
    with pytest.raises(InvalidInput, match="may not read"):
        await session.send("count", inputs={"table": table})
    with pytest.raises(InvalidInput, match="not a regular file"):
        await session.send("count", inputs={"table": work})
    assert await lab.types(session.id) == ["session.started"]


async def test_a_file_waits_in_the_inbox_with_its_message(
    lab: Lab, table: Path, tmp_path: Path
) -> None:
    runtime = await lab.open(replies(COUNT), work_area=str(tmp_path))
    session = await runtime.start()
    await session.send("count", inputs={"table": table}, wait=False)
    result = await runtime.resume(session.id)
    assert isinstance(result, holdfast.Final)
    assert result.value == 50_000


async def test_an_image_is_shown_to_the_model_and_is_a_variable(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(len(chart))"), cell("FINAL(len(chart))")))
    session = await runtime.start()
    result = await session.send("look", inputs={"chart": Image(PICTURE, "image/png")})
    assert isinstance(result, holdfast.Final)
    assert result.value == len(PICTURE)
    assert Image(PICTURE, "image/png", "chart") in lab.requests[0].messages[0].parts
    assert "chart: bytes" in lab.requests[0].messages[-1].text
    await runtime.close()
    again = await lab.open(replies(cell("FINAL(1)"), cell("FINAL(len(chart))")))
    await again.send(session.id, "and again?")
    assert Image(PICTURE, "image/png", "chart") in lab.requests[-1].messages[0].parts
    assert (await verify(lab.store, session.id)).ok
    assert (await replay_session(lab.store, session.id)).difference is None
