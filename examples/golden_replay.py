"""A session as a test: exported once, then verified and executed again without a model or a key."""

import asyncio
import sys
from pathlib import Path

import holdfast
from holdfast.stores.portable import export_sessions
from holdfast.testing.pytest_plugin import assert_replays

REPLIES = ["squares = [n * n for n in numbers]\nprint(squares)", "FINAL(sum(squares))"]


async def record(folder: Path) -> Path:
    model = holdfast.ScriptedModel(lambda ask: f"```python\n{REPLIES[ask.ordinal]}\n```")
    async with holdfast.open(str(folder), model=model) as runtime:
        session = await runtime.start(session_id="squares")
        await session.send("Add the squares.", inputs={"numbers": [1, 2, 3]})
        path = folder / "squares.holdfast"
        await export_sessions(runtime.store, ["squares"], path)
        return path


recorded = asyncio.run(record(Path(sys.argv[1])))
for report in assert_replays(recorded):  # raises where an answer differs from the recording
    print(report.session, report.steps, "steps", report.cells, "cells replayed")
