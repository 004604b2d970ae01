"""MCP: servers as tool sources of agents, and sessions served to MCP clients."""

from __future__ import annotations

from holdfast.errors import needing

with needing("mcp", "the MCP adapter", "mcp>=2.3,<3"):
    from holdfast.adapters.mcp.connection import McpServerFailed
    from holdfast.adapters.mcp.questions import QuestionNotKept, QuestionUnsupported
    from holdfast.adapters.mcp.source import McpServer, McpToolFailed

__all__ = [
    "McpServer",
    "McpServerFailed",
    "McpToolFailed",
    "QuestionNotKept",
    "QuestionUnsupported",
]
