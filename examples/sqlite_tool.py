"""A tool over a real SQLite database: the agent queries it, and the answer has a type."""

import asyncio
import sqlite3
import sys
from dataclasses import dataclass

import holdfast

DATABASE = sqlite3.connect(":memory:", check_same_thread=False)
DATABASE.execute("create table city as select 'Ulm' name, 126 k union select 'Bonn', 336")


@dataclass
class Largest:
    name: str
    thousands: int


@holdfast.tool(effect="pure")
def query(sql: str) -> list[list[object]]:
    """Run one SQL query on the table city(name, k), k in thousands."""
    return [list(row) for row in DATABASE.execute(sql)]


REPLY = """```python
FINAL(dict(zip(("name", "thousands"), query("select * from city order by k desc")[0])))
```"""


async def main(store: str) -> None:
    model = holdfast.ScriptedModel(lambda request: REPLY)
    agent = holdfast.Agent("cities", model=model, tools=[query], output_type=Largest)
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = runtime.session("cities", agent=agent, create=True)
        print(await session.ask("Which is largest?"))


asyncio.run(main(sys.argv[1]))
