"""pydantic-ai's stream events as our deltas, with calls that are written at once told apart."""

from __future__ import annotations

from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from holdfast.models.port import Delta


class Deltas:
    """The deltas of one attempt; it remembers which part is which tool call."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str]] = {}

    def of(self, event: object) -> Delta | None:
        """Return what an event shows, if anything."""
        match event:
            case PartStartEvent(part=TextPart(content=text)) if text:
                return Delta("text", text)
            case PartStartEvent(part=ThinkingPart(content=text)) if text:
                return Delta("reasoning", text)
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                self._calls[index] = (call.tool_call_id, call.tool_name)
                # Arguments that came as an object are whole; as text they are a first piece.
                text = call.args if isinstance(call.args, str) else ""
                return Delta("tool_call", text, call.tool_call_id, call.tool_name)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                return Delta("text", text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
                return Delta("reasoning", text)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(text))) if text:
                return Delta("tool_call", text, *self._calls.get(index, (None, None)))
        return None
