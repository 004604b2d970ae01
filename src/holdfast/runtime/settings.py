"""Settings: what drives a session, and where each value came from.

A value comes from the caller (a flag, an argument), else the environment (`HOLDFAST_…`), else
`.holdfast/config.toml`, else the default. The session stores the resolved settings when it starts
and every revival uses that snapshot, not today's defaults. Keys of providers are never among them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict

from holdfast.core.errors import InvalidSettings
from holdfast.core.values import is_too_deep
from holdfast.models.choose import KEY_VARIABLE
from holdfast.models.prices import declared_prices, prices_text
from holdfast.models.retry import RetryPolicy
from holdfast.stores.choose import STORE_VARIABLE

CONFIG_FILE = "config.toml"
PREFIX = "HOLDFAST_"
COMPACTIONS = ("evict", "summary", "window")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set; 0 means no limit where a limit is meant."""

    model: str = ""
    leaf_model: str = ""  # empty: the same as model
    model_options: str = ""  # a JSON object, such as {"temperature": 0.2}
    prices: str = ""  # a JSON object: model name to dollars per million tokens
    retry: str = "deadline"  # deadline, off, or a number of attempts
    kernel: str = "auto"  # auto, cpython, monty
    harness: str = "code"  # code, tools
    prose: str = "retry"  # what a reply without anything to act on is: retry, answer
    audit: str = "off"  # of model calls: off, records, full
    profile: str = "default"  # locked_down, default, trusted
    work_area: str = ""  # empty: the current folder
    instructions: str = ""
    max_steps: int = 25
    max_turns: int = 0
    call_timeout_seconds: int = 120
    turn_seconds: int = 3600
    context_tokens: int = 200_000
    context_soft_percent: int = 80
    context_hard_percent: int = 95
    compaction: str = "evict,summary,window"  # strategies in order; empty: a full context ends
    max_output_tokens: int = 0
    max_usd: str = ""
    max_tokens: int = 0
    max_calls: int = 0
    max_seconds: int = 0
    max_fanout: int = 100
    max_depth: int = 4
    child_concurrency: int = 16
    leaf_concurrency: int = 8
    process_leaf_concurrency: int = 32
    leaf_timeout_seconds: int = 120

    def __post_init__(self) -> None:
        for name in NUMBERS:
            if getattr(self, name) < 0:
                raise InvalidSettings(f"{name} is {getattr(self, name)}; it cannot be negative")
        for name in AT_LEAST_ONE:
            if getattr(self, name) == 0:
                raise InvalidSettings(f"{name} must be at least 1")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidSettings(
                    f"{name} is {getattr(self, name)!r}; use one of {', '.join(choices)}"
                )
        self._check_strategies()
        self.options()
        declared_prices(self.prices)
        RetryPolicy.from_setting(self.retry)
        try:
            self.instructions.encode()
        except UnicodeEncodeError as error:
            raise InvalidSettings(f"instructions cannot be written as UTF-8: {error}") from None
        if self.max_usd:
            try:
                amount = Decimal(self.max_usd)
            except InvalidOperation:
                raise InvalidSettings(f"max_usd is {self.max_usd!r}, not an amount") from None
            if not amount.is_finite() or amount < 0:
                raise InvalidSettings(f"max_usd is {self.max_usd!r}; use an amount like 2.50")

    def _check_strategies(self) -> None:
        for name in self.strategies:
            if name not in COMPACTIONS:
                raise InvalidSettings(
                    f"compaction is {self.compaction!r}; name strategies in order, separated by "
                    f"commas: {', '.join(COMPACTIONS)}"
                )

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the compaction strategies, in the order in which they are tried."""
        return tuple(name.strip() for name in self.compaction.split(",") if name.strip())

    def options(self) -> dict[str, Any]:
        """Return the options that are passed on to the model."""
        if not self.model_options:
            return {}
        try:
            deep = is_too_deep(self.model_options.encode())
            found = None if deep else json.loads(self.model_options)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InvalidSettings(
                f"model_options is {_shown(self.model_options)}; use a JSON object like "
                '{"temperature": 0.2}'
            )
        return found

    def to_record(self) -> dict[str, Any]:
        """Return the stored form."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Settings:
        """Return stored settings; what an older release did not have takes its default."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in known})


NAMES = tuple(item.name for item in fields(Settings))
NUMBERS = tuple(item.name for item in fields(Settings) if item.type == "int")
AT_LEAST_ONE = (
    *("max_steps", "call_timeout_seconds", "leaf_timeout_seconds"),
    *("leaf_concurrency", "process_leaf_concurrency", "child_concurrency"),
    *("max_fanout", "context_hard_percent"),
)
CHOICES = {
    "harness": ("code", "tools"),
    "prose": ("retry", "answer"),
    "audit": ("off", "records", "full"),
    "kernel": ("auto", "cpython", "monty"),
    "profile": ("locked_down", "default", "trusted"),
}


class SettingsOptions(TypedDict, total=False):
    """The settings as keyword arguments, but for the models; None is the same as not given."""

    model_options: str | None
    prices: str | None
    retry: str | int | None
    harness: str | None
    prose: str | None
    audit: str | None
    kernel: str | None
    profile: str | None
    work_area: str | None
    instructions: str | None
    max_steps: int | None
    max_turns: int | None
    call_timeout_seconds: int | None
    turn_seconds: int | None
    context_tokens: int | None
    context_soft_percent: int | None
    context_hard_percent: int | None
    max_output_tokens: int | None
    max_usd: Decimal | str | float | None
    max_tokens: int | None
    max_fanout: int | None
    compaction: str | None
    max_calls: int | None
    max_seconds: int | None
    max_depth: int | None
    child_concurrency: int | None
    leaf_concurrency: int | None
    process_leaf_concurrency: int | None
    leaf_timeout_seconds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an agent's sessions may use; None leaves it to the runtime's settings, 0 is no limit."""

    max_usd: Decimal | str | float | None = None
    max_tokens: int | None = None
    max_steps: int | None = None
    max_turns: int | None = None
    max_output_tokens: int | None = None
    max_fanout: int | None = None
    turn_seconds: int | None = None
    call_timeout_seconds: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the limits that are set, as settings."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the origin of each."""

    settings: Settings
    origins: dict[str, str]


def resolve(
    given: Mapping[str, Any] | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Return the settings in force; `folder` is the `.holdfast` folder that may hold a config."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origins = dict.fromkeys(NAMES, "default")
    for origin, layer in (
        ("config.toml", _config(folder)),
        ("environment", _environment(environment)),
        ("given", {k: v for k, v in (given or {}).items() if v is not None}),
    ):
        for name, value in layer.items():
            values[name] = _typed(name, value, origin)
            origins[name] = origin
    return Resolved(Settings(**values), origins)


def check_model(settings: Settings) -> None:
    """Refuse settings that name no model."""
    if not settings.model:
        raise InvalidSettings(
            "no model is set: pass model=…, --model, or set HOLDFAST_MODEL; 'script:FILE' works "
            "offline"
        )


def _config(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    path = folder / CONFIG_FILE
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except RecursionError:
        raise InvalidSettings(f"{str(path)!r} is nested too deeply; settings are flat") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{str(path)!r} is not readable as TOML: {error}") from error
    except OSError as error:
        raise InvalidSettings(
            f"{str(path)!r} cannot be read: {error.strerror}; let it be a file that this user may "
            "read, or take it away"
        ) from error


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    settings = {PREFIX + name.upper(): name for name in NAMES}
    known = (*settings, STORE_VARIABLE, KEY_VARIABLE)
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in known:
            short = variable.removeprefix(PREFIX)
            near = get_close_matches(short, [name.removeprefix(PREFIX) for name in known])
            meant = " or ".join(PREFIX + name for name in near)
            hint = f"do you mean {meant}?" if near else "`holdfast config` lists them"
            raise InvalidSettings(f"{variable!r} (environment) is not a setting; {hint}")
    return {name: environment[key] for key, name in settings.items() if key in environment}


def _shown(value: Any) -> str:
    """Return a wrong value for a message: whole where it is short, else what it is."""
    plain = isinstance(value, str | int | float | Decimal)
    return f"{value!r:.200}" if plain else f"a {type(value).__name__}"


def _typed(name: str, value: Any, origin: str) -> Any:
    if name not in NAMES:
        raise InvalidSettings(f"{name!r} ({origin}) is not a setting; known are {', '.join(NAMES)}")
    if name in NUMBERS:
        # A float is not cut, and true is not 1: that would be a silent default.
        if isinstance(value, str):
            with suppress(ValueError):
                value = int(value)
        if type(value) is not int or abs(value) >= 2**53:
            raise InvalidSettings(f"{name} ({origin}) is {_shown(value)}, not a whole number")
        return value
    if name == "max_usd" and type(value) in (int, float, Decimal):
        return str(value)
    if name == "prices":
        return prices_text(declared_prices(value))
    if name == "retry" and type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise InvalidSettings(f"{name} ({origin}) is {_shown(value)}, not text")
    return value
