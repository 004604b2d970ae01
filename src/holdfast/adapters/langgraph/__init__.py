"""LangGraph: `HoldfastSaver` keeps a graph's threads as sessions, on any of the stores."""

from __future__ import annotations

from holdfast.errors import ExtraMissing

try:
    from holdfast.adapters.langgraph.saver import HoldfastSaver
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("langgraph", "langchain_core"):
        raise
    raise ExtraMissing(
        "the LangGraph adapter needs the package langgraph-checkpoint; install holdfast[langgraph]"
    ) from error

__all__ = ["HoldfastSaver"]
