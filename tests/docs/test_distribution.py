"""The wheel holds what the package needs and nothing else, and runs where only the wheel is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pages import ROOT

SCRIPT = '{"reply": "```python\\nFINAL(6 * 7)\\n```"}\n'


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    source = place / "source"  # a copy: building leaves folders behind
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(source)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def sources() -> set[str]:
    return {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == sources()


def test_the_source_archive_holds_what_a_build_needs(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    assert {f"src/{name}" for name in sources()} <= held
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= held
    assert not {name for name in held if name.split("/")[0] in ("tests", "bench", "docs", ".venv")}


def test_the_wheel_alone_runs_a_session(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    (tmp_path / "answer.jsonl").write_text(SCRIPT, encoding="utf-8")
    program = (
        "import sys, holdfast, holdfast.__main__ as main\n"
        f"assert holdfast.__file__.startswith({str(unpacked)!r}), holdfast.__file__\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "What is it?", "--model", "script:answer.jsonl"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip().endswith("42"), done.stderr
