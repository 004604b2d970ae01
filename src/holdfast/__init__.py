"""Holdfast: a durable runtime for LLM agents.

`async with holdfast.open(...) as runtime` gives a Runtime; `holdfast.open_sync(...)` gives one
whose methods block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast import errors, results
    from holdfast.core.capability import Capability
    from holdfast.core.messages import Image, Message
    from holdfast.models.scripted import ScriptedModel
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.answers import Approve, Deny, Fail
    from holdfast.runtime.embedding import Record
    from holdfast.runtime.hooks import Halt, Hook, HookContext, ToolUse
    from holdfast.runtime.results import (
        BudgetExceeded,
        Failed,
        Final,
        Pending,
        Queued,
        Stopped,
        Suspended,
        TimedOut,
        TurnNotFinal,
        TurnResult,
    )
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.runtime import open_runtime as open
    from holdfast.runtime.scope import Scope, Secret
    from holdfast.runtime.session import Session
    from holdfast.runtime.settings import Limits
    from holdfast.runtime.signals import NeedsAnswer, OutcomeLost
    from holdfast.runtime.sync import SyncRuntime, open_sync
    from holdfast.runtime.sync_session import SyncSession
    from holdfast.runtime.tools import CallContext, GivenAnswer, Tool, Toolset, tool
    from holdfast.stores.port import SessionFilter
    from holdfast.stores.verify import verify
    from holdfast.views.records import RecordView

__all__ = [
    "Agent",
    "Approve",
    "BudgetExceeded",
    "CallContext",
    "Capability",
    "Deny",
    "Fail",
    "Failed",
    "Final",
    "GivenAnswer",
    "Halt",
    "HoldfastError",
    "Hook",
    "HookContext",
    "Image",
    "Limits",
    "Message",
    "NeedsAnswer",
    "OutcomeLost",
    "Pending",
    "Queued",
    "Record",
    "RecordView",
    "Runtime",
    "Scope",
    "ScriptedModel",
    "Secret",
    "Session",
    "SessionFilter",
    "Stopped",
    "Suspended",
    "SyncRuntime",
    "SyncSession",
    "TimedOut",
    "Tool",
    "ToolUse",
    "Toolset",
    "TurnNotFinal",
    "TurnResult",
    "__version__",
    "errors",
    "open",
    "open_sync",
    "results",
    "tool",
    "verify",
]

__version__ = "0.1.0"

_PLACES = {
    "RecordView": "views.records",
    "Agent": "runtime.agent",
    "Approve": "runtime.answers",
    "CallContext": "runtime.tools",
    "Capability": "core.capability",
    "Deny": "runtime.answers",
    "Fail": "runtime.answers",
    "GivenAnswer": "runtime.tools",
    "Halt": "runtime.hooks",
    "Hook": "runtime.hooks",
    "HookContext": "runtime.hooks",
    "Limits": "runtime.settings",
    "Image": "core.messages",
    "Message": "core.messages",
    "NeedsAnswer": "runtime.signals",
    "OutcomeLost": "runtime.signals",
    "Record": "runtime.embedding",
    "Runtime": "runtime.runtime",
    "Scope": "runtime.scope",
    "ScriptedModel": "models.scripted",
    "Secret": "runtime.scope",
    "Session": "runtime.session",
    "SessionFilter": "stores.port",
    "SyncRuntime": "runtime.sync",
    "SyncSession": "runtime.sync_session",
    "Tool": "runtime.tools",
    "ToolUse": "runtime.hooks",
    "Toolset": "runtime.tools",
    "errors": "errors:",
    "open": "runtime.runtime:open_runtime",
    "open_sync": "runtime.sync",
    "results": "results:",
    "tool": "runtime.tools",
    "verify": "stores.verify",
}
"""Where a name lives; `:` alone means the module itself. All others are results."""


def __getattr__(name: str) -> Any:
    # Loaded when first used: `holdfast --help` and confined workers need none of it.
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    import importlib

    place, colon, other = _PLACES.get(name, "runtime.results").partition(":")
    module = importlib.import_module(f"holdfast.{place}")
    return module if colon and not other else getattr(module, other or name)


def __dir__() -> list[str]:
    return sorted(__all__)
