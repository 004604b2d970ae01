"""Artifacts and interactions of a run, as they are read from its log."""

import pytest
from simulation import SESSION, Simulation, World
from test_schedule import EACH, GATE, LOOP, verdicts

from holdfast.core.errors import NotFound
from holdfast.workflows.artifacts import ArtifactNotFound, body, difference, find, scan, versions
from holdfast.workflows.interactions import interactions


async def published():
    text = LOOP.replace("MAX", "3").replace("write: {tool: x,", "write: {tool: x, publish: draft,")
    acts = {
        "judge": verdicts(1, 2, 3, 4),
        "write": lambda doing: {"round": sum(doing.iteration.values()), "text": "same\n"},
    }
    simulation = Simulation(text, World(acts))
    await simulation.run()
    return simulation.store


async def test_versions_are_listed_without_reading_a_body(monkeypatch):
    store = await published()

    async def refuse(*arguments):
        raise AssertionError("a body was read")

    monkeypatch.setattr(store, "get_payload", refuse)
    found = await versions(store, SESSION, "write")
    assert [(one.version, one.name, one.iteration) for one in found] == [
        (0, "draft", {}),
        (1, "draft", {"again": 1}),
        (2, "draft", {"again": 2}),
        (3, "draft", {"again": 3}),
    ]
    assert all(one.size > 10 and one.written_at for one in found)
    assert await versions(store, SESSION, "judge") == []
    assert len(await versions(store, SESSION)) == 4


async def test_the_latest_is_found_without_a_scan(monkeypatch):
    store = await published()
    reads = []
    real = store.read_events

    async def counted(*arguments, **options):
        reads.append(options)
        return await real(*arguments, **options)

    monkeypatch.setattr(store, "read_events", counted)
    assert (await find(store, SESSION, "write")).version == 3
    assert len(reads) == 1
    early = await find(store, SESSION, "write", 1)
    assert await body(store, SESSION, early) == {"round": 1, "text": "same\n"}


@pytest.mark.parametrize(("node", "version"), [("nobody", None), ("write", 4), ("write", -1)])
async def test_what_is_not_there_is_a_typed_not_found(node, version):
    with pytest.raises(ArtifactNotFound, match="it has") as caught:
        await find(await published(), SESSION, node, version)
    assert isinstance(caught.value, NotFound)


async def test_a_scan_stops_when_its_reader_has_seen_enough():
    store = await published()
    async for one in scan(store, SESSION, reverse=True):
        assert one.version == 3
        break


def test_two_versions_are_compared_line_by_line():
    told = difference({"a": 1, "text": "x"}, {"a": 2, "text": "x"}, "draft@0", "draft@1")
    assert '-  "a": 1,' in told
    assert '+  "a": 2,' in told
    assert difference("one\ntwo", "one\nthree", "a", "b").splitlines()[-2:] == ["-two", "+three"]
    assert difference(b"x", b"x") == ""


async def test_each_ask_is_kept_with_its_answer():
    simulation = Simulation(GATE)
    await simulation.run()
    (asked,) = await interactions(simulation.store, SESSION)
    assert (asked.node, asked.open, asked.session) == ("approve", True, SESSION)
    await simulation.run(answers=[("approve", {"answer": "maybe"})])
    await simulation.run(answers=[("approve", {"answer": "yes_do"})])
    found = await interactions(simulation.store, SESSION)
    assert [(one.node, one.outcome) for one in found] == [("approve", "ok"), ("approve", "ok")]
    assert [one.answer.value()["answer"] for one in found] == ["maybe", "yes_do"]
    assert len({one.id for one in found}) == 2
    assert all(one.answered_at >= one.requested_at for one in found)


async def test_a_run_that_asked_nobody_has_no_interactions():
    simulation = Simulation(
        EACH.replace("JOIN", "all"), World({"list": {"xs": []}}), variables={"count": 0}
    )
    await simulation.run()
    assert await interactions(simulation.store, SESSION) == []
