"""The figures as a chart: one row of bars for each case, on a logarithmic scale."""

from __future__ import annotations

import html
import math
from typing import Any

from bench.table import number

SHOWN = {
    "B1": ("seconds", "bytes"),
    "B2": ("ms",),
    "B3": ("ms for 100",),
    "B4": ("ms each of 100", "ms each of 1000"),
    "B5": ("bytes each",),
    "B6": ("turns/s",),
    "B7": ("seconds",),
    "B8": ("events/s",),
    "B9": ("times its size",),
    "B10": ("seconds",),
}
COLOURS = {"holdfast": "#2457c5", "langgraph": "#c2571a", "dbos": "#2b7d4f", "openai": "#7a7a7a"}
WIDTH, LABEL, BAR, GAP = 900, 260, 16, 6


def draw(results: dict[str, Any]) -> str:
    """Return the chart as SVG, with the value of each bar beside it."""
    parts: list[str] = []
    top = 40
    for case, by_system in results["work"].items():
        for figure in SHOWN[case]:
            bars = {s: f[figure] for s, f in by_system.items() if figure in f}
            if not bars:
                continue
            better = "more is better" if figure.endswith("/s") else "less is better"
            title = f"{case} {results['titles'][case]}: {figure} ({better})"
            parts.append(_text(10, top, title, "bold"))
            top += BAR + GAP
            low, high = min(bars.values()), max(bars.values())
            for system, value in bars.items():
                parts.append(_bar(top, system, value, low, high))
                top += BAR + GAP
            top += 2 * GAP
    parts.append(_text(10, top, f"logarithmic; {results['on']}", "normal"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 20}" '
        f'font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="Figures of Holdfast beside other systems">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bar(top: int, system: str, value: float, low: float, high: float) -> str:
    room = WIDTH - LABEL - 120
    span = math.log(max(high, 1e-9) / max(low, 1e-9)) or 1.0
    share = math.log(max(value, 1e-9) / max(low, 1e-9)) / span
    length = 20 + share * (room - 20)
    colour = COLOURS[system.replace(",", " ").split()[0]]
    return "\n".join(
        [
            _text(20, top + 12, system, "normal"),
            f'<rect x="{LABEL}" y="{top}" width="{length:.0f}" height="{BAR}" fill="{colour}"/>',
            _text(LABEL + int(length) + 6, top + 12, number(value), "normal"),
        ]
    )


def _text(x: int, y: int, text: str, weight: str) -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{html.escape(text)}</text>'
