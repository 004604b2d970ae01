"""A model that answers from a recording: what a provider said once, said again.

Sessions of a replay have ids of their own, so at its first request a session claims a recording and
keeps it: a child the one that the same call of its parent's recording made, any other the next of
its first user message that nobody has claimed. Steps and summaries are served by their ordinal, so
a resumed session is served the same again. Leaf calls are served by their content, first in first
out. Recorded errors are raised again. What the recording does not have is one of three divergences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core.errors import ModelError
from holdfast.models.errors import KINDS, ProviderError
from holdfast.models.port import ModelReply, ModelRequest, OnDelta


class ReplayDivergence(ProviderError):
    """A replay asks for what its recording does not have."""


class ReplayUnknownSession(ReplayDivergence):
    """No recorded session begins with this message, or all that do are taken."""


class ReplayExhausted(ReplayDivergence):
    """The recorded session made fewer model calls."""


class ReplayLeafUnknown(ReplayDivergence):
    """The recording has no leaf call of this content left."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What came of one model call: a reply, or the code and message of its error."""

    reply: ModelReply | None = None
    code: str = ""
    message: str = ""

    def tell(self) -> ModelReply:
        """Return the reply, or raise the error again."""
        if self.reply is not None:
            return self.reply
        kinds = {kind().code: kind for kind in KINDS.values()}
        if self.code == ModelError().code:  # a model that broke its contract
            raise ModelError(self.message)
        raise kinds.get(self.code, ProviderError)(self.message)


@dataclass(slots=True)
class RecordedSession:
    """The model calls of one session, in order."""

    session: str
    first_user_text: str
    steps: list[RecordedAnswer] = field(default_factory=list)
    summaries: list[RecordedAnswer] = field(default_factory=list)
    parent: tuple[str, str] | None = None
    """The session that asked for it, and the id of that call, which is the same in a replay."""


LeafKey = tuple[str, str]
"""Prompt and system text of a leaf call."""


@dataclass(slots=True)
class Recording:
    """The model calls of recorded sessions."""

    sessions: list[RecordedSession] = field(default_factory=list)
    leaves: dict[LeafKey, deque[RecordedAnswer]] = field(default_factory=dict)


class RecordedModel:
    """A `Model` over a recording; `claims` says which session replays which recorded one."""

    def __init__(
        self,
        recording: Recording,
        *,
        name: str = "recorded",
        claims: dict[str, str] | None = None,
    ) -> None:
        self._name = name
        self._sessions = {item.session: item for item in recording.sessions}
        self._leaves = {key: deque(found) for key, found in recording.leaves.items()}
        # Not a copy: the models of one replay share what is claimed.
        self._claims = {} if claims is None else claims

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen."""
        return self._name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return zero: nothing is asked of a provider."""
        return "0"

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the recorded reply, raise the recorded error, or a divergence."""
        if request.purpose == "leaf":
            return self._leaf(request).tell()
        found = self._session(request)
        served = found.steps if request.purpose == "step" else found.summaries
        if request.ordinal >= len(served):
            raise ReplayExhausted(
                f"recorded session {found.session!r} has {len(served)} {request.purpose} call(s), "
                f"and none with ordinal {request.ordinal} (counted from 0)"
            )
        return served[request.ordinal].tell()

    async def close(self) -> None:
        """Do nothing: a recording holds no connection."""

    def _leaf(self, request: ModelRequest) -> RecordedAnswer:
        left = self._leaves.get((request.prompt, request.system))
        if not left:
            raise ReplayLeafUnknown(
                f"no recorded leaf call is left that asks {request.prompt[:80]!r}"
            )
        return left.popleft()

    def _session(self, request: ModelRequest) -> RecordedSession:
        claimed = self._claims.get(request.session_id)
        if claimed is None:
            found = self._of_call(request) or self._of_message(request)
            if found is not None:
                claimed = self._claims[request.session_id] = found.session
        if claimed is None or claimed not in self._sessions:
            raise ReplayUnknownSession(
                f"no recorded session is left that begins with {request.first_user_text[:80]!r}"
            )
        return self._sessions[claimed]

    def _of_call(self, request: ModelRequest) -> RecordedSession | None:
        """Return the recorded child of the same call: those that run at once ask in any order."""
        if request.parent is None:
            return None
        parent, call = request.parent
        wanted = (self._claims.get(parent, parent), call)
        return next((item for item in self._free() if item.parent == wanted), None)

    def _of_message(self, request: ModelRequest) -> RecordedSession | None:
        text = request.first_user_text
        return next((item for item in self._free() if item.first_user_text == text), None)

    def _free(self) -> Iterator[RecordedSession]:
        taken = set(self._claims.values())
        return (item for item in self._sessions.values() if item.session not in taken)
