"""What the demo works on: a harbour log of several megabytes, and a script that stands for a model.

Both are the same every time. The log is far larger than any context window; a few of its lines
are reports, and only those need judgement. The script is written to a file, so that everyone can
read what "the model" says and run it again.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

DAYS = 1500
ENTRIES_PER_DAY = 55
REPORTS = 32
HARBOURS = ("Ardmore", "Brael", "Corrin", "Dunvik")
SHIPS = ("Alma", "Borealis", "Cormorant", "Dorothea", "Esperance", "Fulmar", "Guillemot")
ROUTINE = (
    "takes on water and provisions for the next leg",
    "unloads timber at the north quay, papers in order",
    "waits for the tide outside the bar with two others",
    "pays harbour dues and leaves for the fishing grounds",
    "has her hull scraped; the yard expects two more days",
)
INCIDENTS = {
    "collision": ("grave", "rammed the pier in a collision and is holed below the waterline"),
    "fire": ("grave", "reports a fire in the galley, out after an hour, two men burnt"),
    "grounding": ("serious", "ran aground, a grounding on the western sand, refloated at noon"),
    "anchor": ("minor", "lost an anchor in the roads and borrows one from the yard"),
    "quarrel": ("minor", "reports a quarrel over the berth, settled by the harbour master"),
}
QUESTION = (
    "The variable `text` is a harbour log. Which harbour had the most grave incidents, and how "
    "are all reported incidents spread over the harbours?"
)
FOLLOW_UP = "And what if only the harbour in `only` counts?"

STEPS = (
    """The log is too large to read. I look at its size and shape first.

```python
lines = text.splitlines()
reports = [line for line in lines if "REPORT" in line]
print(f"{len(text):,} characters, {len(lines):,} lines, {len(reports)} of them reports")
print(lines[0])
```""",
    """Code finds the reports; how grave each is takes judgement, so I ask for each of them.

```python
if "verdicts" not in globals():
    verdicts = map_lm([f"Answer grave, serious or minor. How bad is this?\\n{r}" for r in reports])
print(len(verdicts), verdicts[:5])
```""",
    """Now code counts.

```python
from collections import Counter
wanted = globals().get("only")
counts = {}
for report, verdict in zip(reports, verdicts):
    harbour = report.split(" | ")[1]
    if wanted in (None, harbour):
        counts.setdefault(harbour, Counter())[verdict] += 1
worst = max(counts, key=lambda harbour: counts[harbour]["grave"])
FINAL({"worst": worst, "incidents": {name: dict(counts[name]) for name in sorted(counts)}})
```""",
)


def harbour_log() -> str:
    """Return the text: about nine megabytes of routine with a few reports in it."""
    chance = random.Random(1847)
    kinds = list(INCIDENTS)
    days = sorted(chance.sample(range(DAYS), REPORTS))
    lines: list[str] = []
    for day in range(DAYS):
        for entry in range(ENTRIES_PER_DAY):
            lines.append(
                f"day {day:04d}.{entry:02d} | {chance.choice(HARBOURS)} | the "
                f"{chance.choice(SHIPS)} {chance.choice(ROUTINE)}; wind {chance.randint(1, 9)}, "
                f"glass at {chance.randint(960, 1040)}"
            )
        if day in days:
            what = INCIDENTS[kinds[days.index(day) % len(kinds)]][1]
            lines.append(
                f"day {day:04d}.99 | {chance.choice(HARBOURS)} | REPORT: the "
                f"{chance.choice(SHIPS)} {what}"
            )
    return "\n".join(lines)


def write_script(path: Path, leaf_delay_ms: int) -> None:
    """Write the script; a leaf takes a while, as a real one would, so there is time for a kill."""
    lines: list[dict[str, object]] = [{"reply": reply} for reply in STEPS]
    lines += [
        {"leaf": True, "match": kind, "reply": verdict, "delay_ms": leaf_delay_ms}
        for kind, (verdict, _) in INCIDENTS.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
