"""Workflow runs as an API: `Runs` starts, drives and reads them on any store."""

from holdfast.workflows.artifacts import Artifact, ArtifactNotFound
from holdfast.workflows.changes import WorkflowChanged
from holdfast.workflows.interactions import Interaction
from holdfast.workflows.registry import Registry, registry
from holdfast.workflows.results import RunInfo, RunNotFound, RunResult
from holdfast.workflows.runs import Runs

__all__ = [
    "Artifact",
    "ArtifactNotFound",
    "Interaction",
    "Registry",
    "RunInfo",
    "RunNotFound",
    "RunResult",
    "Runs",
    "WorkflowChanged",
    "registry",
]
