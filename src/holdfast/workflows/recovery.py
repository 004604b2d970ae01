"""Recovery: what is done about a failed attempt, by its cause.

A cause is a code. A node's own rule wins over the workflow's, and that over these. How often a
cause may be tried again is counted per branch and node, and survives a resume.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.workflows.model import Retry

_SECOND = 1_000
_MINUTE = 60 * _SECOND

DEFAULTS: Mapping[str, Retry] = {
    "rate_limited": Retry(5, 4 * _SECOND, 2 * _MINUTE, "ask"),
    "overloaded": Retry(5, 4 * _SECOND, 2 * _MINUTE, "ask"),
    "network": Retry(6, 5 * _SECOND, _MINUTE, "ask"),
    "timeout": Retry(2, _SECOND, _MINUTE, "fail"),
    "tool_transient": Retry(2, _SECOND, _MINUTE, "fail"),
    "schema_invalid": Retry(1, 0, None, "fail"),
    "context_length": Retry(2, 0, None, "fail"),
    "unknown_outcome": Retry(0, 0, None, "ask"),
    "budget_exceeded": Retry(0, 0, None, "fail"),
    "denied": Retry(0, 0, None, "fail"),
    "expired": Retry(0, 0, None, "fail"),
    "cancelled": Retry(0, 0, None, "fail"),
    "tool_error": Retry(0, 0, None, "fail"),
    "agent_failed": Retry(0, 0, None, "fail"),
    "join_failed": Retry(0, 0, None, "fail"),
    "no_edge": Retry(0, 0, None, "fail"),
    "expression": Retry(0, 0, None, "fail"),
}
"""The causes that the engine itself tells apart; tools may have others, which fail at once."""

MODEL_CAUSES: Mapping[str, str] = {
    "rate_limited": "rate_limited",
    "overloaded": "overloaded",
    "server_error": "overloaded",
    "unreachable": "network",
    "connection_dropped": "network",
    "model_timeout": "timeout",
    "context_too_long": "context_length",
    "invalid_output": "schema_invalid",
    "output_invalid": "schema_invalid",
}
"""What the failure of a session means for the node that it works for, by the error's code."""

TRANSIENT = frozenset({"rate_limited", "overloaded", "network"})
"""Causes after which a run may be resumed without anyone asking, a few times."""

NEVER = Retry()


def rule_for(code: str, node: Mapping[str, Retry], workflow: Mapping[str, Retry]) -> Retry:
    """Return the rule for a cause."""
    return node.get(code) or workflow.get(code) or DEFAULTS.get(code) or NEVER


def backoff_ms(rule: Retry, failures: int) -> int:
    """Return how long to wait after so many failures: twice as long each time, up to a bound."""
    wait = rule.wait_ms * (1 << max(0, failures - 1))
    return wait if rule.at_most_ms is None else min(wait, rule.at_most_ms)
