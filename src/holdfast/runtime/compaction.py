"""Compaction: a transcript that grows too long is rewritten, as one event; the log stays whole.

It happens between turns above the soft limit, inside a turn above the hard one, and on demand, only
where no call is open. The strategies of the settings are tried in order until the transcript is
short enough. What a summary may cost is reserved in the log before the model is asked, and
`session.compacted` or `compaction.failed` settles it; where the model fails, the next strategy has
its turn, so no session is lost for it. The event's span says for what it stands, so the same span
is compacted once. Between two compactions the beginning of the transcript does not change.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidInput, ModelError, SessionBusy
from holdfast.core.facts import CompactionFailed, Fact, MessageAppended, SessionCompacted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.messages import user
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.models.asking import ask, attempts_of, ceiling_of
from holdfast.models.port import Attempt, Model, ModelReply, ModelRequest
from holdfast.models.spend import Ceiling, spent
from holdfast.runtime import budget, settle, strategies
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.journal import Journal
from holdfast.runtime.requests import parent_call
from holdfast.runtime.settings import COMPACTIONS
from holdfast.runtime.strategies import EVICT, SUMMARY, WINDOW, Cut, Entry
from holdfast.runtime.transcript import (
    Transcript,
    compacted_content,
    estimate_tokens,
    load_transcript,
)
from holdfast.views.messages import covered, kept_entries, read_message
from holdfast.views.variables import VariableView, read_variables

if TYPE_CHECKING:
    from holdfast.runtime.recordings import SessionRecording

logger = logging.getLogger("holdfast.runtime")

KEEP_PERCENT = 40
"""How much of what is allowed the tail may take that stays as it is."""
LEAST_PERCENT = 10
"""Between turns a head smaller than this part of the window is not worth a compaction."""
SUMMARY_TOKENS = 2_000


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction came to."""

    session: str
    seq: int
    span: tuple[int, int]
    strategy: str
    tokens_before: int
    tokens_after: int
    head: str | None


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The messages that are to stand for a span, and the facts that led to them."""

    strategy: str
    entries: tuple[Entry, ...]
    last: int  # the end of the span
    before: tuple[Fact, ...] = ()
    reply: ModelReply | None = None
    reservation: str | None = None


@dataclass(slots=True)
class Compactor:
    """Shortens the transcript of one session while its lease is held."""

    journal: Journal
    blueprint: Blueprint
    transcript: Transcript
    model: Model
    edges: Sequence[EdgeDraft] = ()
    replay: SessionRecording | None = None

    @property
    def _state(self) -> State:
        return self.journal.state

    def _limit(self, percent: int) -> int:
        """Return how many tokens messages may take, the system text taken off."""
        settings = self.blueprint.settings
        whole = settings.context_tokens * percent // 100
        return max(1, whole - estimate_tokens(self.blueprint.prompt))

    async def between_turns(self, coming: int) -> Compaction | None:
        """Compact above the soft limit, before a turn whose message takes `coming` tokens."""
        if self.replay is not None:
            return await self._repeat(self.replay)
        settings = self.blueprint.settings
        soft = self._limit(settings.context_soft_percent)
        if not settings.context_tokens or self.transcript.tokens + coming <= soft:
            return None
        least = settings.context_tokens * LEAST_PERCENT // 100
        keep = max(0, soft * KEEP_PERCENT // 100 - coming)
        return await self._compact(settings.strategies, keep, soft - coming, least)

    async def inside_turn(self) -> Compaction | None:
        """Compact above the hard limit, at a boundary between two steps."""
        if self.replay is not None:
            return await self._repeat(self.replay)
        settings = self.blueprint.settings
        hard = self._limit(settings.context_hard_percent)
        return await self._compact(settings.strategies, hard * KEEP_PERCENT // 100, hard, 0)

    async def on_demand(self, names: Sequence[str] = ()) -> Compaction | None:
        """Compact now; None where there is nothing that a compaction would shorten."""
        for name in names:
            if name not in COMPACTIONS:
                known = ", ".join(COMPACTIONS)
                raise InvalidInput(f"{name!r} is not a compaction strategy; known are {known}")
        if self.replay is not None:
            return await self._repeat(self.replay)
        turn = self._state.turn
        if self._state.calls or (turn is not None and turn.phase not in ("opened", "observed")):
            raise SessionBusy(
                f"session {self.journal.session!r} has work in flight, and is compacted only "
                "between two steps; resume it first, or answer what it waits for"
            )
        start = self._state.compact_from
        if start is not None and not await self.journal.store.read_events(
            self.journal.session, after=start, limit=1, types=[MessageAppended.TYPE]
        ):
            return None  # nothing was said since
        chosen = tuple(names) or self.blueprint.settings.strategies or COMPACTIONS
        tokens = self.transcript.tokens
        return await self._compact(chosen, tokens // 4, tokens // 2, 0)

    async def _compact(
        self, names: Sequence[str], keep: int, target: int, least: int
    ) -> Compaction | None:
        """Rewrite the transcript to about `target` tokens, if more than `least` can be spared."""
        if self._state.calls or not names:
            return None
        entries = await self._entries()
        open_turn = None if self._state.turn is None else self._state.turn.turn
        parted = strategies.cut(entries, open_turn, keep)
        done = await self._covered()
        last = _last(parted.head, done)
        before = strategies.tokens_of(entries)
        made: _Rewritten | None = None
        if parted.head and last > done and parted.head_tokens > least:
            made = await self._rewritten(names, parted, last, target, open_turn)
        if (
            made is None
            or strategies.tokens_of([*made.entries, *_after(entries, made.last)]) > target
        ):
            made = self._evict_all(names, entries, made, open_turn) or made
        if made is None:
            return None
        after = strategies.tokens_of([*made.entries, *_after(entries, made.last)])
        if made.reply is None and not made.before and after >= before:
            return None  # nothing would be gained
        return await self._store(made, before)

    async def _rewritten(
        self, names: Sequence[str], parted: Cut, last: int, target: int, open_turn: int | None
    ) -> _Rewritten | None:
        """Return what the first strategy makes of a head that shortens it enough."""
        failed: tuple[Fact, ...] = ()
        made: _Rewritten | None = None
        rest = strategies.tokens_of(parted.tail)
        # The message of the open turn stays, whatever becomes of the rest of its head.
        asked = strategies.asked(parted.head, open_turn)
        for name in names:
            if name == EVICT:
                stubs = strategies.evicted(parted.head)
                shorter = strategies.tokens_of(stubs)
                if shorter >= parted.head_tokens:
                    continue
                made = _Rewritten(EVICT, stubs, last, failed)
                # Worth an event of its own only if it is not needed again at once.
                if shorter + rest <= target * 3 // 4:
                    return made
            elif name == SUMMARY:
                answer = await self._summary(parted, last)
                if isinstance(answer, CompactionFailed):
                    failed = (*failed, answer)
                    continue
                key, reply, held = answer
                notes = strategies.clipped(reply.message.text.strip(), self._summary_tokens() * 8)
                frame = await self._frame(SUMMARY, parted, notes, last)
                return _Rewritten(SUMMARY, (frame, *asked), last, (*failed, *held), reply, key)
            elif name == WINDOW:
                notes = strategies.earlier_notes(parted.head)
                frame = await self._frame(WINDOW, parted, notes, last)
                return _Rewritten(WINDOW, (frame, *asked), last, failed)
        if made is not None or not failed:
            return None if made is None else replace(made, before=failed)
        # Every strategy failed: what is left is to leave the head out.
        frame = await self._frame(WINDOW, parted, strategies.earlier_notes(parted.head), last)
        return _Rewritten(WINDOW, (frame, *asked), last, failed)

    def _evict_all(
        self,
        names: Sequence[str],
        entries: Sequence[Entry],
        made: _Rewritten | None,
        open_turn: int | None,
    ) -> _Rewritten | None:
        """Return what is left once output of the tail is evicted too; None if none is long."""
        if EVICT not in names or not entries:
            return None
        whole = entries if made is None else [*made.entries, *_after(entries, made.last)]
        stubs = strategies.evicted(whole)
        if strategies.tokens_of(stubs) >= strategies.tokens_of(whole):
            return None
        last = max((entry.kept.seq for entry in entries if entry.kept.part == "message"), default=0)
        if made is None:
            return _Rewritten(EVICT, stubs, last) if last else None
        both = made.strategy if made.strategy == EVICT else f"{made.strategy}+{EVICT}"
        return replace(made, strategy=both, entries=stubs, last=last or made.last)

    async def _repeat(self, replay: SessionRecording) -> Compaction | None:
        """Compact as the recording did at this point of the transcript, if it did."""
        found = await replay.compaction(self._state.next("message"))
        if found is None:
            return None
        fact, payloads, message = found
        # The span ends with the same message, which may stand elsewhere in this log.
        last = 1
        events = await self.journal.store.read_events(
            self.journal.session, types=[MessageAppended.TYPE, SessionCompacted.TYPE]
        )
        for event in events:
            if event.data["message"] <= message:
                last = event.seq
        repeated = replace(
            fact,
            span=[1, last],
            content=payloads[0],
            reservation=None,
            vars=fact.vars and self._state.vars,
        )
        return await self._write([repeated], payloads[1:], (1, last), fact.strategy, 0)

    async def _entries(self) -> list[Entry]:
        store, session, state = self.journal.store, self.journal.session, self._state
        return [
            Entry(kept, await read_message(store, session, kept.role, kept.content))
            async for kept in kept_entries(store, session, state.compact_from, state.seq)
        ]

    async def _covered(self) -> int:
        """Return the end of the span of the last compaction; 0 if there was none."""
        start = self._state.compact_from
        if start is None:
            return 0
        events = await self.journal.store.read_events(
            self.journal.session, after=start - 1, limit=1
        )
        fact = events[0].fact()
        return covered(fact, start) if isinstance(fact, SessionCompacted) else start

    async def _frame(self, strategy: str, parted: Cut, notes: str, last: int) -> Entry:
        variables: tuple[VariableView, ...] = ()
        if self._state.vars is not None:
            found = await read_variables(self.journal.store, self.journal.session)
            variables = found.variables
        return strategies.frame(strategy, parted.head, notes, variables, last)

    def _summary_tokens(self) -> int:
        window = self.blueprint.settings.context_tokens
        return min(SUMMARY_TOKENS, window // 8) if window else SUMMARY_TOKENS

    async def _summary(
        self, parted: Cut, last: int
    ) -> tuple[str, ModelReply, tuple[Fact, ...]] | CompactionFailed:
        """Ask the model for notes on a head, with what it may cost reserved before."""
        settings = self.blueprint.settings
        key = settle.compaction_reservation(1, last)
        most = self._summary_tokens()
        room = settings.context_tokens or 200_000
        text = strategies.rendered(parted.head, room * 3 // 4 - most)
        prompt = strategies.SUMMARY_PROMPT
        sent = estimate_tokens(text) + estimate_tokens(prompt)
        ceiling = Ceiling(ceiling_of(self.model, sent, most), sent, most)
        tried = CompactionFailed(span=[1, last], model=self.model.name)

        def reserve(state: State) -> list[Fact]:
            lost = settle.compaction_lost(state)
            return [*lost, budget.reserve(settings, state, key, ceiling.usd, sent + most)]

        try:
            await self.journal.append(reserve)
        except budget.Exceeded as error:
            return replace(tried, error=settle.problem("budget_exceeded", str(error)))
        request = ModelRequest(
            messages=(user(text),),
            system=prompt,
            purpose="summary",
            session_id=self.journal.session,
            ordinal=await self._tried(),
            first_user_text=self.transcript.first_user_text,
            parent=parent_call(self._state),
            settings=settings.options(),
            max_output_tokens=most,
            deadline_seconds=settings.call_timeout_seconds,
            retry=settings.retry,
            max_charged_attempts=budget.charged_attempts(settings, self._state, ceiling),
        )
        try:
            reply = await ask(self.model, request)
        except ModelError as error:
            logger.warning("session %s: no summary: %s", self.journal.session, error.code)
            return _failed(tried, key, error.code, str(error), attempts_of(error), ceiling)
        if not reply.message.text.strip():
            text = "the model replied with an empty summary"
            return _failed(tried, key, "malformed_reply", text, reply.attempts, ceiling, reply)
        held = budget.retried(key, spent(reply.attempts, ceiling, reply))
        return key, reply, tuple(held)

    async def _tried(self) -> int:
        types = [SessionCompacted.TYPE, CompactionFailed.TYPE]
        events = await self.journal.store.read_events(self.journal.session, types=types)
        # A summary that was lost is asked for again, as the same one.
        facts = [event.fact() for event in events]
        return sum(not getattr(fact, "unknown", False) for fact in facts)

    async def _store(self, made: _Rewritten, before: int) -> Compaction:
        content, small = compacted_content([entry.kept for entry in made.entries])
        reply = made.reply
        settled = _settled(made)
        lost = [
            fact for fact in settle.compaction_lost(self._state) if fact.reservation not in settled
        ]
        fact = SessionCompacted(
            message=self._state.next("message"),
            content=content,
            span=[1, made.last],
            strategy=made.strategy,
            prompt_version=None if reply is None else strategies.PROMPT_VERSION,
            reservation=made.reservation,
            model=None if reply is None else reply.model,
            usage=None if reply is None else reply.usage.to_record(),
            cost_usd=None if reply is None else reply.cost_usd,
        )
        facts = [*lost, *made.before, fact]
        return await self._write(facts, small, (1, made.last), made.strategy, before)

    async def _write(
        self,
        facts: Sequence[Fact],
        payloads: Sequence[Slot],
        span: tuple[int, int],
        strategy: str,
        before: int,
    ) -> Compaction:
        """Append a compaction with its head, and take up what is kept from here on."""
        head = HeadDraft(
            kind="compaction", vars=self._state.vars, compact_from=self._state.seq + len(facts)
        )
        done = await self.journal.append(
            lambda _: facts,
            head=head,
            edges=self.edges,
            payloads=payloads,
            adopt_from=None if self.replay is None else self.replay.session,
        )
        self.transcript.replace(await load_transcript(self.journal.store, self._state))
        return Compaction(
            session=self.journal.session,
            seq=done.state.compact_from or 0,
            span=span,
            strategy=strategy,
            tokens_before=before,
            tokens_after=self.transcript.tokens,
            head=self._state.head,
        )


def _failed(
    tried: CompactionFailed,
    key: str,
    code: str,
    message: str,
    attempts: Sequence[Attempt],
    ceiling: Ceiling,
    reply: ModelReply | None = None,
) -> CompactionFailed:
    """Return what the log says of a summary that did not come about, and what it cost."""
    counted = spent(attempts, ceiling, reply)
    known = reply is not None and not counted.unknown
    cost_usd, usage, unknown = (counted.usd, counted.usage, False) if known else counted.of_failure
    return replace(
        tried,
        error=settle.problem(code, message),
        reservation=key,
        usage=usage,
        cost_usd=cost_usd,
        unknown=unknown,
    )


def _settled(made: _Rewritten) -> set[str]:
    """Return the reservations that a rewriting settles itself."""
    failed = [fact.reservation for fact in made.before if isinstance(fact, CompactionFailed)]
    return {key for key in (*failed, made.reservation) if key is not None}


def _last(head: Sequence[Entry], covered_before: int) -> int:
    """Return the last position for which a compaction of a head stands."""
    own = [entry.kept.seq for entry in head if entry.kept.part in ("message", "inherited")]
    return max([covered_before, *own])


def _after(entries: Sequence[Entry], last: int) -> list[Entry]:
    """Return the messages that a compaction up to a position leaves as they are."""
    return [entry for entry in entries if entry.kept.part == "message" and entry.kept.seq > last]
