"""A recorded model says again what was said, to the right session, and nothing else."""

from collections import deque

import pytest

from holdfast.core.messages import assistant, user
from holdfast.models.errors import QuotaExceeded
from holdfast.models.port import ModelReply, ModelRequest
from holdfast.models.recorded import (
    RecordedAnswer,
    RecordedModel,
    RecordedSession,
    Recording,
    ReplayExhausted,
    ReplayLeafUnknown,
    ReplayUnknownSession,
)


def said(text: str) -> RecordedAnswer:
    return RecordedAnswer(ModelReply(assistant(text), "m"))


def step(session: str, ordinal: int, first: str = "hi") -> ModelRequest:
    return ModelRequest((user("x"),), session_id=session, ordinal=ordinal, first_user_text=first)


def leaf(prompt: str) -> ModelRequest:
    return ModelRequest((user(prompt),), purpose="leaf")


async def text(model: RecordedModel, request: ModelRequest) -> str:
    return (await model.request(request)).message.text


async def test_sessions_of_one_message_are_served_whole_and_in_order() -> None:
    model = RecordedModel(
        Recording(
            [
                RecordedSession("a", "hi", [said("a0"), said("a1")]),
                RecordedSession("b", "hi", [said("b0"), said("b1")]),
            ]
        )
    )
    served = [await text(model, step(s, n)) for n in (0, 1) for s in ("x", "y")]
    assert served == ["a0", "b0", "a1", "b1"]
    assert await text(model, step("x", 0)) == "a0"


async def test_what_the_recording_does_not_have_is_one_of_three_divergences() -> None:
    recording = Recording(
        [RecordedSession("a", "hi", [said("a0")])], {("q", ""): deque([said("1")])}
    )
    model = RecordedModel(recording)
    with pytest.raises(ReplayUnknownSession, match="begins with 'other'"):
        await model.request(step("x", 0, "other"))
    await model.request(step("x", 0))
    with pytest.raises(ReplayUnknownSession):
        await model.request(step("y", 0))
    with pytest.raises(ReplayExhausted, match="none with ordinal 1"):
        await model.request(step("x", 1))
    assert await text(model, leaf("q")) == "1"
    with pytest.raises(ReplayLeafUnknown, match="asks 'q'"):
        await model.request(leaf("q"))


async def test_leaves_are_served_by_content_first_in_first_out_and_errors_raised_again() -> None:
    answers = deque([said("1"), RecordedAnswer(None, "quota_exceeded", "no credit"), said("2")])
    model = RecordedModel(Recording([], {("q", ""): answers}))
    assert await text(model, leaf("q")) == "1"
    with pytest.raises(QuotaExceeded, match="no credit"):
        await model.request(leaf("q"))
    assert await text(model, leaf("q")) == "2"
