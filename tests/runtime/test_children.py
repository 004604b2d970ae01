"""Child sessions from code: tasks given out, envelopes returned, limits kept, kills survived."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.stores.verify import verify

from .conftest import Lab, cell


def by_task(scripts: dict[str, list[str]]) -> Any:
    """Return a responder that serves steps by the beginning of a session's first message."""

    def respond(request: ModelRequest) -> str:
        if request.purpose == "leaf":
            return f"<{request.prompt}>"
        for start, steps in scripts.items():
            if request.first_user_text.startswith(start):
                return steps[request.ordinal]
        raise AssertionError(f"no script for {request.first_user_text!r}")

    return respond


async def test_a_task_is_worked_by_a_session_of_its_own_and_its_value_returned(lab: Lab) -> None:
    runtime = await lab.open(
        by_task(
            {
                "root": [cell("found = rlm('double', inputs={'n': 21})"), cell("FINAL(found)")],
                "double": [cell("m = n * 2"), cell("FINAL(m)")],
            }
        )
    )
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    envelope = result.value
    assert (envelope["value"], envelope["status"], envelope["steps"]) == (42, "final", 2)
    assert envelope["task"] == "double"
    child = await runtime.state(envelope["session"])
    assert child.parent is not None
    assert (child.parent["session"], child.depth, child.kind) == (session.id, 1, "child")
    assert child.head == envelope["head"]
    edges = await lab.facts(session.id, "lineage.added")
    assert [(edge.type, edge.to_session, edge.to_head) for edge in edges] == [
        ("invocation", child.session, child.head)
    ]
    assert (await runtime.state(session.id)).delegated.calls == 2
    for one in (session.id, child.session):
        assert (await verify(lab.store, one)).ok


async def test_many_tasks_keep_their_order_and_a_failed_one_is_a_sentinel(lab: Lab) -> None:
    runtime = await lab.open(
        by_task(
            {
                "root": [
                    cell("found = map_rlm(['a', 'bad', 'c'])\nFINAL(found)"),
                ],
                "a": [cell("FINAL('A')")],
                "bad": ["prose"] * 30,
                "c": [cell("FINAL(lm('x'))")],
            }
        )
    )
    result = await (await runtime.start(max_steps=3)).send("root")
    assert isinstance(result, holdfast.Final), result
    first, second, third = result.value
    assert (first["value"], third["value"]) == ("A", "<x>")
    assert (second["failed"], second["index"], second["status"]) == (True, 1, "budget_exceeded")
