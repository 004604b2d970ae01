"""The budget: limits that are enforced before each call, from the state of the log alone.

What was used, what is held for calls of unknown cost and what is set aside for calls in flight and
for children are all folded from the log, so every limit survives a kill and is the same for
whoever drives. Where a limit is in dollars and a cost has no ceiling, the limit cannot be proven to
hold, and the turn ends rather than hope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from typing import Any

from holdfast.core import facts
from holdfast.core.state import State, is_model_call, plus
from holdfast.models.asking import ceiling_of
from holdfast.models.port import Model
from holdfast.models.spend import Ceiling, Spent, affordable_attempts
from holdfast.runtime.settings import Settings

WARN_STEPS_LEFT = 2
WARN_PERCENT = 80
OUTPUT_CEILING_TOKENS = 32_768
"""What is set aside for a reply where `max_output_tokens` does not bound it."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is used up."""

    limit: str
    used: str
    allowed: str
    unknown: int = 0

    @property
    def message(self) -> str:
        """Return what to tell people."""
        calls = "call" if self.unknown == 1 else "calls"
        more = f" and {self.unknown} {calls} of unknown cost" if self.unknown else ""
        return f"{self.limit}: {self.used}{more} used of {self.allowed} allowed"

    def fact(self) -> facts.LimitExceeded:
        """Return what the log says of it."""
        return facts.LimitExceeded(
            limit=self.limit, used=self.used, allowed=self.allowed, unknown_calls=self.unknown
        )


class NoRoom(Exception):
    """What is in flight leaves no room for another call; wait for one of those to end."""


class Exceeded(Exception):
    """A limit forbids the call."""

    def __init__(self, excess: Excess) -> None:
        super().__init__(excess.message)
        self.excess = excess


Grant = dict[str, str | int]
"""What a child may spend, by name: usd, tokens, calls, seconds; one that is left out is free."""

LIMITS = {"usd": "max_usd", "tokens": "max_tokens", "calls": "max_calls", "seconds": "max_seconds"}
SMALLEST_USD = Decimal("0.000001")


def used(state: State) -> dict[str, Decimal]:
    """Return the most that was spent, by name: known, and held for calls of unknown cost."""
    spend = state.total
    return {
        "usd": Decimal(used_usd(state)),
        "tokens": Decimal(used_tokens(state)),
        "calls": Decimal(spend.calls),
        "seconds": Decimal(spend.driven_ms) / 1000,
    }


def granted(state: State) -> dict[str, Decimal]:
    """Return what is set aside for children, by name."""
    asides = [aside for aside in state.reserved.values() if aside.child is not None]
    return {
        name: sum((Decimal(getattr(aside, name) or 0) for aside in asides), Decimal(0))
        for name in LIMITS
    }


def set_aside(state: State) -> dict[str, Decimal]:
    """Return what is set aside for calls in flight and for children, by name."""
    in_flight = [aside for key, aside in state.reserved.items() if is_model_call(key)]
    aside = granted(state)
    aside["usd"] += sum((Decimal(one.usd or 0) for one in in_flight), Decimal(0))
    aside["tokens"] += sum(one.tokens or 0 for one in in_flight)
    aside["calls"] += len(in_flight)
    return aside


def allowed(settings: Settings) -> dict[str, Decimal]:
    """Return the limits that are set, by name."""
    limits = {name: getattr(settings, limit) for name, limit in LIMITS.items()}
    return {name: Decimal(limit) for name, limit in limits.items() if limit}


def free(settings: Settings, state: State) -> dict[str, Decimal]:
    """Return what may still be spent or granted, by name; a name without a limit is left out."""
    spent, aside, limits = used(state), set_aside(state), allowed(settings)
    return {name: max(Decimal(0), limits[name] - spent[name] - aside[name]) for name in limits}


def grant(settings: Settings, state: State, width: int, wish: Mapping[str, Any] | None) -> Grant:
    """Return what each of so many children may spend: what is free, divided, or as wished for.

    Raise Exceeded where nothing is left, or less than is wished for.
    """
    balance, limits = free(settings, state), allowed(settings)
    found: Grant = {}
    wanted_amounts = wishes(wish or {})
    for name in LIMITS:
        each = None if name not in balance else share(name, balance[name], width)
        wanted = wanted_amounts.get(name)
        short = each is not None and (each <= 0 or (wanted is not None and wanted > each))
        if short:
            spent = limits[name] - balance[name]
            raise Exceeded(Excess(LIMITS[name], _text(spent), _text(limits[name])))
        amount = each if wanted is None else wanted
        if amount is not None:
            found[name] = written(name, amount)
    return found


def within(settings: Settings, grant: Grant) -> Settings:
    """Return the settings of a child that has a grant: its limits are what it was granted."""
    limits: dict[str, Any] = {limit: grant.get(name, 0) for name, limit in LIMITS.items()}
    limits["max_usd"] = str(grant.get("usd", ""))
    return replace(settings, **limits)


def told(settings: Settings, state: State) -> dict[str, Any]:
    """Return what code may know of the budget, by name.

    `used` is known, `unknown` the most that calls can have used of which nobody knows what they
    did, `reserved` what is set aside for calls in flight and for children; without a limit `limit`
    and `left` are None. All of it counts the session and every child below it.
    """
    spend, limits, balance = state.total, allowed(settings), free(settings, state)
    known = {
        "usd": Decimal(spend.usd),
        "tokens": Decimal(spend.tokens),
        "calls": Decimal(spend.calls),
        "seconds": Decimal(spend.driven_ms) / 1000,
    }
    held = {"usd": Decimal(spend.held_usd), "tokens": Decimal(spend.held_tokens)}
    aside = set_aside(state)
    found: dict[str, Any] = {}
    for name in LIMITS:
        sums = {
            "limit": limits.get(name),
            "used": known[name],
            "unknown": held.get(name, Decimal(0)),
            "reserved": aside[name],
            "left": balance.get(name),
        }
        found[name] = {key: _amount(name, sum_) for key, sum_ in sums.items()}
    found["depth"] = {"limit": settings.max_depth, "used": state.depth}
    found["fanout"] = {"limit": settings.max_fanout}
    return found


def _amount(name: str, amount: Decimal | None) -> str | int | float | None:
    if amount is None:
        return None
    if name == "usd":
        return _text(amount)
    return float(amount) if name == "seconds" else int(amount)


def written(name: str, amount: Decimal) -> str | int:
    """Return an amount as facts and settings have it."""
    return _text(amount) if name == "usd" else int(amount)


def summed(name: str, one: str | int, other: str | int) -> str | int:
    """Return the sum of two amounts as facts and settings have them."""
    return written(name, Decimal(one or 0) + Decimal(other or 0))


def share(name: str, balance: Decimal, width: int) -> Decimal:
    """Return what each of so many gets of a balance, in whole units."""
    unit = SMALLEST_USD if name == "usd" else Decimal(1)
    return (balance / max(1, width)).quantize(unit, ROUND_DOWN)


def wishes(wish: Mapping[str, Any]) -> dict[str, Decimal]:
    """Return the amounts that a call wishes for; raise ValueError for what is not one."""
    found = {}
    for name, amount in wish.items():
        if name not in LIMITS:
            raise ValueError(f"budget has {name!r}; it takes {', '.join(LIMITS)}")
        try:
            found[name] = Decimal(str(amount))
        except InvalidOperation:
            raise ValueError(f"budget has {amount!r} as {name}, which is not an amount") from None
        if not found[name].is_finite() or found[name] <= 0:
            raise ValueError(f"budget has {amount!r} as {name}; use an amount above 0")
    return found


def _text(amount: Decimal) -> str:
    return format(amount.normalize(), "f")


def used_usd(state: State) -> str:
    """Return the most that has been spent: known, and held for calls of unknown cost."""
    spend = state.total
    return plus(spend.usd, spend.held_usd)


def used_tokens(state: State) -> int:
    """Return the most tokens that have been used."""
    spend = state.total
    return spend.tokens + spend.held_tokens


def before_turn(settings: Settings, state: State) -> Excess | None:
    """Return the limit that forbids another turn."""
    turns = state.counters.get("turn", 0)
    if settings.max_turns and turns >= settings.max_turns:
        return Excess("max_turns", str(turns), str(settings.max_turns))
    return before_call(settings, state)


def before_call(settings: Settings, state: State, *, with_grants: bool = True) -> Excess | None:
    """Return the spend limit that forbids another model call; children's grants count as spent."""
    spend, spent = state.total, used(state)
    aside = granted(state) if with_grants else dict.fromkeys(LIMITS, Decimal(0))
    unbounded = {"usd": spend.unbounded_usd, "tokens": spend.unbounded_tokens}
    for name, limit in allowed(settings).items():
        unknown = unbounded.get(name, 0)
        if unknown or spent[name] + aside[name] >= limit:
            committed = plus(used_usd(state), _text(aside[name])) if name == "usd" else ""
            told = committed or _text(spent[name] + aside[name])
            return Excess(LIMITS[name], told, str(getattr(settings, LIMITS[name])), unknown)
    return None


def before_step(settings: Settings, state: State, context_tokens: int) -> Excess | None:
    """Return the limit that forbids another step."""
    steps = state.turn.steps if state.turn else 0
    if steps >= settings.max_steps:
        return Excess("max_steps", str(steps), str(settings.max_steps))
    if settings.context_tokens:
        hard = settings.context_tokens * settings.context_hard_percent // 100
        if context_tokens > hard:
            return Excess("context_tokens", str(context_tokens), str(hard))
    return before_call(settings, state)


def reserve(
    settings: Settings, state: State, key: str, usd: str | None, tokens: int
) -> facts.BudgetReserved:
    """Return what sets a call's ceiling aside; raise Exceeded, or NoRoom where it has to wait.

    A call that would go beyond a limit waits while others are in flight; alone it is let through,
    because a limit is checked against what was used, not against what may be.
    """
    excess = before_call(settings, state, with_grants=False)
    if excess is not None:
        raise Exceeded(excess)
    if before_call(settings, state) is not None:
        raise NoRoom  # children give back what they do not spend
    in_flight = [aside for name, aside in state.reserved.items() if is_model_call(name)]
    if in_flight:
        if settings.max_usd:
            known = [Decimal(aside.usd) for aside in state.reserved.values() if aside.usd]
            unbounded = any(aside.usd is None for aside in in_flight)
            most = sum(known, Decimal(used_usd(state)))
            if unbounded or most >= Decimal(settings.max_usd):
                raise NoRoom
        if settings.max_tokens:
            aside_tokens = sum(aside.tokens or 0 for aside in state.reserved.values())
            if used_tokens(state) + aside_tokens >= settings.max_tokens:
                raise NoRoom
    return facts.BudgetReserved(reservation=key, usd=usd, tokens=tokens)


def seconds_left(settings: Settings, state: State) -> float | None:
    """Return how long the turn may still be driven; None is for ever."""
    left: list[float] = []
    if settings.turn_seconds and state.turn is not None:
        left.append(settings.turn_seconds - state.turn.driven_ms / 1000)
    if settings.max_seconds:
        left.append(settings.max_seconds - state.total.driven_ms / 1000)
    return max(0.0, min(left)) if left else None


def warned(settings: Settings, state: State, context_tokens: int) -> list[facts.Fact]:
    """Return what the log says of limits of which little is left, each once."""
    soft = settings.context_tokens * settings.context_soft_percent // 100
    near: list[tuple[str, str, str]] = []
    if settings.max_usd:
        used = used_usd(state)
        if Decimal(used) * 100 >= Decimal(settings.max_usd) * WARN_PERCENT:
            near.append(("max_usd", used, settings.max_usd))
    if settings.max_tokens and used_tokens(state) * 100 >= settings.max_tokens * WARN_PERCENT:
        near.append(("max_tokens", str(used_tokens(state)), str(settings.max_tokens)))
    if settings.context_tokens and context_tokens > soft:
        near.append(("context_tokens", str(context_tokens), str(settings.context_tokens)))
    return [
        facts.BudgetWarned(limit=limit, used=used, allowed=allowed)
        for limit, used, allowed in near
        if limit not in state.warned
    ]


def warning(settings: Settings, state: State, context_tokens: int) -> str:
    """Return what the model should know about limits that are near; empty if none is.

    The step that is being asked for is counted already.
    """
    notes = []
    left = settings.max_steps - (state.turn.steps if state.turn else 0)
    if left < WARN_STEPS_LEFT:
        notes.append(
            "this is the last step: call FINAL" if left == 0 else "one more step after this"
        )
    if "max_usd" in state.warned:
        notes.append(f"{used_usd(state)} of {settings.max_usd} dollars are spent: finish soon")
    if "max_tokens" in state.warned:
        notes.append(f"{used_tokens(state)} of {settings.max_tokens} tokens are used: finish soon")
    soft = settings.context_tokens * settings.context_soft_percent // 100
    if settings.context_tokens and context_tokens > soft:
        used = f"about {context_tokens} of {settings.context_tokens} context tokens are used"
        notes.append(f"{used}: print less")
    return "\n".join(f"[limit] {note}." for note in notes)


def ceiling(model: Model, settings: Settings, sent: int) -> Ceiling:
    """Return the most that one attempt at a model can cost which sends so many tokens."""
    most = output_ceiling(settings)
    return Ceiling(ceiling_of(model, sent, most), sent, most)


def charged_attempts(settings: Settings, state: State, each: Ceiling) -> int | None:
    """Return how many attempts that may be charged fit into the limits; None is any number."""
    fitting: list[int] = []
    if settings.max_usd:
        left = Decimal(settings.max_usd) - Decimal(used_usd(state))
        attempts = affordable_attempts(str(left), each)
        fitting += [] if attempts is None else [attempts]
    if settings.max_tokens:
        size = each.input_tokens + each.output_tokens
        fitting.append(max(1, (settings.max_tokens - used_tokens(state)) // max(1, size)))
    return min(fitting, default=None)


def retried(key: str, spent: Spent) -> list[facts.Fact]:
    """Return what holds the attempts before a reply that may have been charged.

    The fact of the call says what its reply cost; these stand for what nobody knows.
    """
    if not spent.unknown:
        return []
    tokens = sum(count or 0 for count in (spent.held_usage or {}).values())
    name = f"retries:{key}"
    return [
        facts.BudgetReserved(reservation=name, usd=spent.held_usd, tokens=tokens),
        facts.BudgetSettled(reservation=name, usd=spent.held_usd, tokens=tokens, unknown=True),
    ]


def output_ceiling(settings: Settings) -> int:
    """Return the most tokens that one reply can have, as far as a limit or custom bounds it."""
    return settings.max_output_tokens or OUTPUT_CEILING_TOKENS
