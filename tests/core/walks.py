"""Random walks through legal histories, as events and as the states between them."""

from hypothesis import strategies as st

from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.core.log import Batch, extend
from holdfast.core.state import State, empty
from holdfast.testing.histories import moves

AT = "2030-01-02T03:04:05.678901Z"

texts = st.sampled_from(
    ["", "hi", "é" * 100, "x" * 512, "y" * 513, '{"$ref":"sha256:00"}', "z" * 2000]
)
choices = st.lists(st.tuples(st.integers(0, 30), texts), max_size=25)


def begin(session: str = "s-1", **settings: object) -> Batch:
    """Return the batch that creates a session."""
    return extend(empty(session), [facts.SessionStarted(**settings)], at=AT)  # type: ignore[arg-type]


def walk(
    picks: list[tuple[int, str]], session: str = "s-1", **settings: object
) -> tuple[list[Event], list[State]]:
    """Return the events of a history and the state after each of its batches."""
    batch = begin(session, **settings)
    events, states = list(batch.events), [batch.state]
    for pick, text in picks:
        options = moves(states[-1], text)
        if not options:
            break
        move = options[pick % len(options)]
        batch = extend(
            states[-1],
            move.facts,
            at=AT,
            head=move.head,
            edges=move.edges,
            payloads=move.payloads,
        )
        events.extend(batch.events)
        states.append(batch.state)
    return events, states
