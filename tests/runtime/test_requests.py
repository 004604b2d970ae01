"""What the model was sent can be proven from the log."""

import pytest

from holdfast.models.port import ModelRequest
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.requests import START, chained, request_digest
from holdfast.views.messages import kept_messages, read_message

from .conftest import Lab, cell


async def proof(lab: Lab, session: str, seq: int) -> str:
    """Return the digest of what the log says was kept at a step."""
    state = await lab.store.load_state(session)
    messages = [
        await read_message(lab.store, session, role, content)
        async for role, content in kept_messages(lab.store, session, state.compact_from, seq)
    ]
    plan = await blueprints.load(lab.store, session)
    return request_digest(
        chained(START, messages),
        system=plan.prompt,
        options=plan.settings.options(),
        max_output_tokens=plan.settings.max_output_tokens,
    )


@pytest.mark.parametrize("options", ["", '{"temperature": 0.2}'])
async def test_the_digest_of_each_step_is_that_of_the_messages_kept_there(
    lab: Lab, options: str
) -> None:
    def respond(request: ModelRequest) -> str:
        return cell("FINAL(1)") if request.ordinal % 3 == 2 else cell(f"print({request.ordinal})")

    runtime = await lab.open(respond, max_steps=3, model_options=options)
    session = await runtime.start()
    await session.send("one")
    await session.send("two")
    assert any("[limit]" in request.messages[-1].text for request in lab.requests)
    steps = await lab.store.read_events(session.id, types=["step.started"])
    found = [event.fact().request for event in steps]
    assert found == [await proof(lab, session.id, event.seq) for event in steps]
    assert len(set(found)) == 6


async def test_the_same_request_has_the_same_digest_in_every_session(lab: Lab) -> None:
    runtime = await lab.open(lambda request: cell("FINAL(1)"))
    found = []
    for text in ("same", "same", "other"):
        session = await runtime.start()
        await session.send(text)
        found.append((await lab.facts(session.id, "step.started"))[0].request)
    assert found[0] == found[1] != found[2]


async def test_a_compacted_transcript_is_proven_too(lab: Lab) -> None:
    runtime = await lab.open(lambda request: cell("FINAL(1)"))
    session = await runtime.start()
    for _ in range(4):
        await session.send("word " * 500)
    await runtime.compact(session, "window")
    await session.send("now")
    step = (await lab.store.read_events(session.id, types=["step.started"]))[-1]
    assert step.fact().request == await proof(lab, session.id, step.seq)
