"""pydantic-ai: an existing agent made durable, and its toolsets as tool sources."""

from __future__ import annotations

from holdfast.errors import needing

with needing("pydantic-ai", "the pydantic-ai adapter", "pydantic-ai-slim>=2.60,<3"):
    from holdfast.adapters.pydantic_ai.agent import AGENT, HoldfastAgent
    from holdfast.adapters.pydantic_ai.durability import RunSuspended
    from holdfast.adapters.pydantic_ai.source import toolset_from

__all__ = ["AGENT", "HoldfastAgent", "RunSuspended", "toolset_from"]
