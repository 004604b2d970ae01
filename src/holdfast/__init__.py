"""Holdfast: a durable runtime for LLM agents.

`await holdfast.open(...)` gives a Runtime; `holdfast.open_sync(...)` gives one that blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.results import (
        BudgetExceeded,
        Failed,
        Final,
        Queued,
        Stopped,
        Suspended,
        TimedOut,
        TurnResult,
    )
    from holdfast.runtime.runtime import Runtime, Session
    from holdfast.runtime.runtime import open_runtime as open
    from holdfast.runtime.sync import SyncRuntime
    from holdfast.runtime.sync import SyncRuntime as open_sync
    from holdfast.runtime.tools import CallContext, Tool, Toolset, tool

__all__ = [
    "Agent",
    "BudgetExceeded",
    "CallContext",
    "Failed",
    "Final",
    "HoldfastError",
    "Queued",
    "Runtime",
    "Session",
    "Stopped",
    "Suspended",
    "SyncRuntime",
    "TimedOut",
    "Tool",
    "Toolset",
    "TurnResult",
    "__version__",
    "open",
    "open_sync",
    "tool",
]

__version__ = "0.1.0"

_PLACES = {
    "Agent": "agent",
    "Runtime": "runtime",
    "Session": "runtime",
    "open": "runtime:open_runtime",
    "open_sync": "sync:SyncRuntime",
    "SyncRuntime": "sync",
    "CallContext": "tools",
    "Tool": "tools",
    "Toolset": "tools",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: `holdfast --help` and confined workers need none of it.
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    import importlib

    module, _, other = _PLACES.get(name, "results").partition(":")
    return getattr(importlib.import_module(f"holdfast.runtime.{module}"), other or name)
