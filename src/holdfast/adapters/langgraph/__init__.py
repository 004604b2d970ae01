"""LangGraph: `HoldfastSaver` keeps a graph's threads as sessions, on any of the stores."""

from __future__ import annotations

from holdfast.errors import needing

with needing("langgraph", "the LangGraph adapter", "langgraph-checkpoint>=4.3,<5"):
    from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
