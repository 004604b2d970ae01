"""Workflows: graphs of agents, judges, people, tools and expressions that run as sessions.

Written in Python (`Workflow`) or in YAML (`load`), checked before anything is paid (`check`).
"""

from holdfast.workflows.builder import Workflow
from holdfast.workflows.check import check, check_text, require_sound
from holdfast.workflows.drawing import dot, mermaid
from holdfast.workflows.known import Known, Signature
from holdfast.workflows.problems import InvalidWorkflow, Place, Problem
from holdfast.workflows.reading import load

__all__ = [
    "InvalidWorkflow",
    "Known",
    "Place",
    "Problem",
    "Signature",
    "Workflow",
    "check",
    "check_text",
    "dot",
    "load",
    "mermaid",
    "require_sound",
]
