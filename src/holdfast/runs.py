"""Workflow runs as an API: `Runs` starts, drives and reads them on any store."""

from holdfast.workflows.artifacts import Artifact, ArtifactNotFound
from holdfast.workflows.changes import WorkflowChanged
from holdfast.workflows.interactions import Interaction
from holdfast.workflows.records import Checkpoint, Position, RunRecord
from holdfast.workflows.registry import Registry, registry
from holdfast.workflows.results import RunInfo, RunNotFound, RunResult
from holdfast.workflows.run_store import RunStore
from holdfast.workflows.runs import Runs

__all__ = [
    "Artifact",
    "ArtifactNotFound",
    "Checkpoint",
    "Interaction",
    "Position",
    "Registry",
    "RunInfo",
    "RunNotFound",
    "RunRecord",
    "RunResult",
    "RunStore",
    "Runs",
    "WorkflowChanged",
    "registry",
]
