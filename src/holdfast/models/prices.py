"""Prices that the embedder declares, for models that the price table does not know.

A limit in dollars needs a price: a call without one cannot be proven to stay below it. A local
server, a private deployment or a negotiated rate has none in any table, so it can be declared per
million tokens, in settings or where a model is made. A declared price goes before the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from holdfast.core.errors import InvalidSettings
from holdfast.core.values import is_too_deep
from holdfast.models.port import Model, ModelReply, ModelRequest, OnDelta, Usage

MILLION = 1_000_000
_MONEY = Context(prec=60)
_NAMES = ("input", "output", "cached_input", "cache_write")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens. What is cached costs as much as `input` unless it is said."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None

    @classmethod
    def of(cls, given: Any, what: str = "a price") -> Price:
        """Return a price from a mapping of names to amounts, or from (input, output)."""
        if isinstance(given, Price):
            return given
        if isinstance(given, list | tuple) and len(given) == 2:
            given = dict(zip(_NAMES, given, strict=False))
        if not isinstance(given, Mapping) or not {"input", "output"} <= given.keys() <= set(_NAMES):
            raise InvalidSettings(
                f"{what} has dollars per million tokens as {{'input': '0.10', 'output': '0.40'}}, "
                "and may have cached_input and cache_write"
            )
        return cls(**{name: _amount(amount, f"{what}: {name}") for name, amount in given.items()})

    def to_record(self) -> dict[str, str]:
        """Return the amounts as text."""
        found = ((name, getattr(self, name)) for name in _NAMES)
        return {name: format(amount, "f") for name, amount in found if amount is not None}

    def cost(self, usage: Usage) -> str | None:
        """Return what tokens cost; None where it is not known how many there were."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        fresh = max(0, usage.input_tokens - cached - written)
        parts = (
            (self.input, fresh),
            (self.input if self.cached_input is None else self.cached_input, cached),
            (self.input if self.cache_write is None else self.cache_write, written),
            (self.output, usage.output_tokens),
        )
        total = Decimal(0)
        for price, tokens in parts:
            total = _MONEY.add(total, _MONEY.multiply(price, Decimal(tokens)))
        return format(_MONEY.divide(total, Decimal(MILLION)).normalize(_MONEY), "f")


def declared_prices(given: str | Mapping[str, Any]) -> dict[str, Price]:
    """Return declared prices by model name, from a mapping or from JSON text."""
    found: Any = given
    if isinstance(given, str):
        try:
            found = None if is_too_deep(given.encode()) else json.loads(given or "{}")
        except ValueError:
            found = None
    if not isinstance(found, Mapping):
        raise InvalidSettings(
            "prices are a JSON object of model names with their prices, such as "
            '{"ollama:llama3": {"input": "0", "output": "0"}}'
        )
    return {str(name): Price.of(price, f"the price of {name!r}") for name, price in found.items()}


def prices_text(prices: Mapping[str, Price]) -> str:
    """Return declared prices as settings store them; the same prices give the same text."""
    if not prices:
        return ""
    records = {name: price.to_record() for name, price in prices.items()}
    return json.dumps(records, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _amount(given: Any, what: str) -> Decimal:
    try:
        amount = Decimal(str(given)) if isinstance(given, str | int | float | Decimal) else None
    except InvalidOperation:
        amount = None
    if amount is None or isinstance(given, bool) or not amount.is_finite() or amount < 0:
        raise InvalidSettings(f"{what} is {given!r:.80}; use an amount of dollars such as '0.40'")
    _, digits, exponent = amount.as_tuple()
    if len(digits) > 20 or not -12 <= int(exponent) <= 6:
        raise InvalidSettings(f"{what} is {given!r:.80}, which has too many digits")
    return amount


def priced(model: Model, prices: Mapping[str, Price]) -> Model:
    """Return the model, with its declared price where it has one."""
    price = prices.get(model.name)
    return model if price is None else PricedModel(model, price)


class PricedModel:
    """A model whose calls cost what was declared."""

    def __init__(self, model: Model, price: Price) -> None:
        self._model = model
        self._price = price

    @property
    def name(self) -> str:
        """Return the name of the model itself."""
        return self._model.name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the price of a call of this size, at the dearest kind of input."""
        dearest = max(
            self._price.input, self._price.cached_input or 0, self._price.cache_write or 0
        )
        price = replace(self._price, input=Decimal(dearest))
        return price.cost(Usage(input_tokens=input_tokens, output_tokens=output_tokens))

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the model's reply with its cost."""
        reply = await self._model.request(request, on_delta=on_delta)
        if not isinstance(reply, ModelReply):
            return reply  # whoever asked says what is wrong with it
        table = "declared " + json.dumps(self._price.to_record(), separators=(",", ":"))
        cost = self._price.cost(reply.usage)
        return replace(reply, cost_usd=cost, price_table=None if cost is None else table)

    async def close(self) -> None:
        """Close the model itself."""
        await self._model.close()
