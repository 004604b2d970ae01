"""Making a worker ready for its session: confined, with its functions, namespace and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from holdfast.core.errors import ConfinementMissing, KernelError, KernelProtocolError
from holdfast.core.records import digest_id
from holdfast.kernels import frames
from holdfast.kernels import manifest as manifests
from holdfast.kernels.manifest import Chunks
from holdfast.kernels.packages import Packages
from holdfast.kernels.port import Encoded, KernelSettings
from holdfast.kernels.workers import Worker

Expected = TypeVar("Expected", bound=frames.Message)


async def open_worker(
    worker: Worker,
    settings: KernelSettings,
    served: tuple[str, ...] = (),
    packages: Packages | None = None,
    *,
    confined: bool,
) -> None:
    """Have a worker confine itself and offer the session's functions.

    It may also read what is `served` to a re-run and the session's packages, without that being
    noted as a read.
    """
    limits = settings.limits
    policy = {
        "read_paths": (*settings.read_roots, *served, *(packages.roots if packages else ())),
        "hidden_paths": settings.hidden,
        "memory_bytes": limits.memory_bytes,
        "threads": limits.processes,
        "open_files": limits.open_files,
        "parent_pid": worker.parent,
    }
    worker.ask(
        {
            "id": 0,
            "do": "open",
            "policy": policy if confined else None,
            "roots": settings.read_roots,
            "seed": digest_id(b"%d" % settings.seed)[7:39].encode(),
            "final": settings.final,
            "packages": packages.path if packages else "",
            "functions": [(f.module, f.name, f.signature, f.doc) for f in settings.functions],
        }
    )
    opened = await reply(worker, frames.OpenedFrame)
    if confined and opened.level != "os":
        raise ConfinementMissing(f"the worker says that its confinement is {opened.level!r}")


def load_command(
    manifest: Mapping[str, Any], random: bytes, *, careful: bool = False
) -> dict[str, Any]:
    """Return the command that fills a namespace; the chunks follow it.

    A careful worker runs no code of the model's classes meanwhile.
    """
    return {
        "id": 0,
        "do": "load",
        "stored": manifests.for_worker(manifest),
        "cells": manifest["cells"],
        "drawn": manifest["drawn"],
        "random": random,
        "careful": careful,
        "recursion_limit": manifest.get("recursion_limit", 0),
        "decimal": manifest.get("decimal", ""),
        "surroundings": manifest.get("surroundings", ""),
    }


async def bind(worker: Worker, name: str, value: Encoded) -> None:
    """Bind an input in a worker."""
    parts = {"name": name, "encoding": value.encoding, "data": value.data}
    worker.ask({"id": 0, "do": "bind", **parts})
    await reply(worker, frames.BoundFrame)


async def reply(worker: Worker, expected: type[Expected], chunks: Chunks | None = None) -> Expected:
    """Return the frame that a command is answered with, and keep the chunks that come before it."""
    while True:
        frame = await worker.next_frame()
        if isinstance(frame, expected):
            worker.end_command()
            return frame
        if isinstance(frame, frames.ChunkFrame) and chunks is not None:
            chunks.receive(frame)
        elif isinstance(frame, frames.FailedFrame):
            raise KernelError(f"the worker could not go on: {frame.message}")
        else:
            name = type(frame).__name__
            raise KernelProtocolError(f"the worker sent a {name}, which was not asked for")
