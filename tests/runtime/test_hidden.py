"""A session reads its work area, and never the store that lies in it."""

from pathlib import Path

import pytest

import holdfast
from holdfast.core.capability import Capability
from holdfast.core.errors import CapabilityDenied
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.brokers import Broker

from .conftest import cell, replies

LOOK = """
import os
found = {}
for folder, names, files in os.walk('.'):
    for name in files:
        path = os.path.join(folder, name)
        try:
            found[path] = open(path, 'rb').read(30)
        except OSError as error:
            found[path] = type(error).__name__
FINAL(found)
"""


@pytest.mark.parametrize("kernel", ["cpython", "monty"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_code_cannot_read_the_store_that_lies_in_its_work_area(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, kernel: str
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("readable")
    monkeypatch.chdir(tmp_path)
    place = tmp_path / ".holdfast"
    code = f"import os\nos.chdir({str(tmp_path)!r})\n{LOOK}"
    if kernel == "monty":
        code = (
            "from pathlib import Path\nfound = []\n"
            f"for path in ['notes/a.txt', '.holdfast/events.db', '.holdfast/holdfast.json']:\n"
            f"    try:\n        found.append(Path({str(tmp_path)!r} + '/' + path).read_text())\n"
            "    except Exception as error:\n        found.append('refused')\nFINAL(found)"
        )
    model = ScriptedModel(replies(cell(code)))
    async with await holdfast.open(f"{kind}:{place}", model=model, kernel=kernel) as runtime:
        other = await runtime.start()
        session = await runtime.start()
        result = await session.send("the secret of another session is swordfish")
        assert isinstance(result, holdfast.Final), (result, await runtime.messages(session.id))
        assert other.id != session.id
    if kernel == "monty":
        assert result.value == ["readable", "refused", "refused"]
        return
    assert result.value["./notes/a.txt"] == b"readable"
    inside = {path: seen for path, seen in result.value.items() if ".holdfast" in path}
    assert inside
    assert set(inside.values()) == {"PermissionError"}


async def test_a_trusted_session_cannot_write_into_a_store_and_sees_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = (
        "import work\nwork.write_text('new.txt', 'fresh')\n"
        "try:\n    work.write_text('.holdfast/config.toml', 'profile = \"trusted\"')\n"
        "except CallError as error:\n    refused = str(error)"
    )
    second = f"FINAL((open({str(tmp_path / 'new.txt')!r}).read(), refused))"
    model = ScriptedModel(replies(cell(first), cell(second)))
    async with await holdfast.open(
        tmp_path / ".holdfast", model=model, profile="trusted"
    ) as runtime:
        session = await runtime.start()
        result = await session.send("write")
    assert isinstance(result, holdfast.Final), result
    assert result.value[0] == "fresh"
    assert "store of sessions" in result.value[1]
    assert not (tmp_path / ".holdfast" / "config.toml").exists()


def test_the_broker_refuses_a_hidden_place_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    broker = Broker(
        Capability(write_roots=(str(tmp_path),)), tmp_path, hidden=(str(tmp_path / "store"),)
    )
    for path in ("store/x", "store", "./store/x", "link/x", "a/../store/x"):
        with pytest.raises(CapabilityDenied):
            broker.write_text(path, "bad")
    assert list((tmp_path / "store").iterdir()) == []
