"""A batch that is being put together: facts that follow from each other, folded one by one.

The scheduler decides each step by the state that the steps before it lead to, and appends all of
them at once. What was tried and turned out not to be possible is taken back as a whole.
"""

from __future__ import annotations

from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.fold import apply
from holdfast.core.log import check_fact
from holdfast.core.run_state import RunState
from holdfast.core.state import State


class Batch:
    """The facts of one append, and the state after them."""

    def __init__(self, state: State, at: str) -> None:
        self.state = state
        self.at = at
        self.facts: list[Fact] = []
        self._base = state.seq

    @property
    def run(self) -> RunState:
        """Return the state of the run."""
        assert self.state.run is not None
        return self.state.run

    def add(self, *facts: Fact) -> None:
        """Add facts; raise where the log would not accept one."""
        for fact in facts:
            check_fact(self.state, fact)
            # The digest is made when the batch is written; nothing here depends on it.
            event = Event(
                self.state.session,
                self.state.seq + 1,
                fact.TYPE,
                fact.VERSION,
                self.at,
                {},
                self.state.digest,
            )
            self.state = apply(self.state, event, fact)
            self.facts.append(fact)

    def fact(self, seq: int) -> Fact | None:
        """Return a fact of this batch by the number that its event will have."""
        place = seq - self._base - 1
        return self.facts[place] if 0 <= place < len(self.facts) else None

    def mark(self) -> tuple[State, int]:
        """Return where the batch stands, for `take_back`."""
        return self.state, len(self.facts)

    def take_back(self, mark: tuple[State, int]) -> None:
        """Forget what was added since a mark."""
        self.state = mark[0]
        del self.facts[mark[1] :]
