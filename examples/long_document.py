"""A text of 2 million characters, read in parts by leaf calls whose answers code puts together."""

import asyncio
import sys

import holdfast
from holdfast.models.port import ModelRequest

TEXT = "The tide was low. " * 60_000 + "The password is heron. " + "The tide rose. " * 60_000

REPLY = """```python
parts = [book[at : at + 200_000] for at in range(0, len(book), 199_000)]
answers = map_lm(["Is there a password in this?\\n" + part for part in parts])
found = {answer for answer in answers if answer != "no"}
FINAL({"parts": len(parts), "found": sorted(found)})
```"""


def model(request: ModelRequest) -> str:
    if request.purpose == "leaf":
        return request.prompt.partition("password is ")[2].partition(".")[0] or "no"
    return REPLY


async def main(store: str) -> None:
    agent = holdfast.Agent("reader", model=holdfast.ScriptedModel(model))
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = runtime.session("book", agent=agent, create=True)
        print(await session.ask("What is the password?", inputs={"book": TEXT}))


asyncio.run(main(sys.argv[1]))
