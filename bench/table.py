"""Figures as rows: printed for people, kept as JSON for comparison."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; `target` says what it should be, None where it is only reported."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Tell whether the target is met, None where there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        enough = self.at_least is None or self.value >= self.at_least
        return enough and (self.at_most is None or self.value <= self.at_most)


def as_result(title: str, figures: list[Figure]) -> dict[str, object]:
    """Return what a bench's `run` gives back."""
    return {
        "title": title,
        "on": place(),
        "figures": [asdict(f) | {"met": f.met} for f in figures],
    }


def place() -> str:
    """Return what figures depend on beside the disk; one Python may be a third quicker."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    build = f"{platform.python_compiler()}, {' '.join(filter(None, platform.python_build()))}"
    return f"{python} ({build}), {os.cpu_count()} processors, {platform.system()}"


def print_result(result: dict[str, object]) -> None:
    """Print one bench's figures as an aligned table."""
    rows = [("", "value", "target", "", "")]
    for figure in result["figures"]:  # type: ignore[attr-defined]
        rows.append(
            (
                figure["name"],
                f"{number(figure['value'])} {figure['unit']}".strip(),
                _target(figure),
                {True: "ok", False: "MISSED", None: ""}[figure["met"]],
                figure["note"],
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    print(f"\n{result['title']}\n{result['on']}")
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join(cells).rstrip())


def write_result(name: str, result: dict[str, object]) -> None:
    """Keep one bench's figures as JSON."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def number(value: float) -> str:
    """Return a figure as people read it."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def _target(figure: dict[str, float | None]) -> str:
    if figure["at_least"] is not None:
        return f"≥ {number(figure['at_least'])}"
    return "" if figure["at_most"] is None else f"≤ {number(figure['at_most'])}"
