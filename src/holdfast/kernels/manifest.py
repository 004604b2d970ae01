"""Checkpoints of the cpython engine as records: from what a worker says, and back to it.

A worker may name chunks that it sends along, whose digests are computed here, and chunks that the
session's own checkpoints already have. It cannot name anything else, so it can neither poison the
store nor read another session's payloads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core import payloads
from holdfast.core.errors import KernelProtocolError, NotRestorable
from holdfast.core.payloads import Slot
from holdfast.kernels import frames
from holdfast.kernels.port import Checkpoint, Unrestorable, Variable

ENGINE = "cpython"
FORMAT = 1
_KIND = "chunk"
_PYTHON = ".".join(map(str, sys.version_info[:2]))
_EMPTY = payloads.to_record(payloads.slot_of_bytes("bytes", b"", _KIND))
# The record of a variable, and the chunks that it names.
_Recorded = tuple[dict[str, Any], dict[str, int]]


class Chunks:
    """The chunks that one session may name: id to size."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = {}
        self._named: dict[str, int] = {}
        # What was made of what the worker said of a variable at the last checkpoint.
        self._variables: dict[bytes, _Recorded] = {}
        self._sent: dict[str, bytes] = {}
        self._pieces = 0

    def receive(self, frame: frames.ChunkFrame) -> None:
        """Take a chunk that the worker sent, whose digest was proven when it was read."""
        self._sent[frame.id] = frame.data

    def checkpoint(self, part: frames.CheckpointPart) -> Checkpoint:
        """Return the checkpoint that a worker described."""
        used: dict[str, bytes] = {}
        self._named = {}
        self._pieces = 0
        variables = {raw: self._variable(raw, used) for raw in map(bytes, part.variables)}
        if len({recorded["name"] for recorded, _ in variables.values()}) != len(part.variables):
            raise KernelProtocolError("the worker described a variable twice")
        record = {
            "engine": ENGINE,
            "format": FORMAT,
            "python": _PYTHON,
            "slots": [
                {"index": index, "text": is_text, "chunk": self._piece(piece, used)}
                for index, is_text, piece in part.slots
            ],
            "variables": [record for record, _ in variables.values()],
            "cells": part.cells,
            "drawn": part.drawn,
            "random": self._bytes(part.random, used) if part.random else _EMPTY,
        }
        if part.recursion_limit:
            record["recursion_limit"] = part.recursion_limit
        if part.decimal:
            record["decimal"] = part.decimal
        if part.surroundings:
            record["surroundings"] = part.surroundings
        self._sent.clear()
        self.stored = self._named
        self._variables = variables
        return Checkpoint(record, used)

    def forget(self) -> None:
        """Drop chunks of a checkpoint that never came."""
        self._sent.clear()

    def reset(self, manifest: Mapping[str, Any] | None) -> None:
        """Go on from another checkpoint."""
        self._sent.clear()
        self.stored = {}
        self._variables = {}
        if manifest is not None:
            self.stored = {slot.id: slot.size for slot in payloads.refs_in(dict(manifest))}

    def _variable(self, raw: bytes, used: dict[str, bytes]) -> _Recorded:
        recorded = self._variables.get(raw)
        if recorded is None:
            part = frames.variable(raw)
            _check_variable(part)
            self._count(len(part.pieces))
            chunks = [self._piece(piece, used) for piece in part.pieces]
            record = {
                "name": part.name,
                "type": part.type,
                "size": part.size,
                "preview": part.preview,
                "chunks": chunks,
                "marked": [list(mark) for mark in part.marked],
                "whole": part.whole,
            }
            return record, {chunk["$ref"]: chunk["size"] for chunk in chunks if "$ref" in chunk}
        self._count(len(recorded[0]["chunks"]))
        self._named.update(recorded[1])
        return recorded

    def _count(self, pieces: int) -> None:
        self._pieces += pieces
        if self._pieces > frames.MAX_PIECES:
            raise KernelProtocolError(
                f"the worker described a namespace of more than {frames.MAX_PIECES} pieces"
            )

    def _piece(self, piece: frames.Piece, used: dict[str, bytes]) -> dict[str, Any]:
        identifier, size, inline = piece
        if not identifier:
            return self._bytes(inline, used)
        data = self._sent.get(identifier)
        if data is not None:
            return self._slot(Slot(identifier, "bytes", _KIND, len(data), data), used)
        if self.stored.get(identifier) != size:
            raise KernelProtocolError(
                f"the worker named the chunk {identifier!r}, which this session does not have"
            )
        self._named[identifier] = size
        return Slot(identifier, "bytes", _KIND, size).ref()

    def _bytes(self, data: bytes, used: dict[str, bytes]) -> dict[str, Any]:
        return self._slot(payloads.slot_of_bytes("bytes", data, _KIND), used)

    def _slot(self, slot: Slot, used: dict[str, bytes]) -> dict[str, Any]:
        if not slot.inline:
            assert slot.data is not None
            self._named[slot.id] = slot.size
            if slot.id not in self.stored:
                used[slot.id] = slot.data
        return payloads.to_record(slot)


def _check_variable(part: frames.VariablePart) -> None:
    """Raise KernelProtocolError if a variable could never be loaded again, whatever its bytes."""
    if not part.pieces or not all(inline or size for _, size, inline in part.pieces):
        raise KernelProtocolError(f"the worker described {part.name!r} without its bytes")


def check(manifest: Mapping[str, Any]) -> None:
    """Raise NotRestorable unless this engine wrote the manifest in a form that it knows."""
    if manifest.get("engine") != ENGINE or manifest.get("format") != FORMAT:
        raise NotRestorable(
            f"the checkpoint was written by {manifest.get('engine')!r} in format "
            f"{manifest.get('format')!r}; this is {ENGINE!r} with format {FORMAT}: open the "
            "session with the engine that wrote it, or restore its plain data"
        )


def slots(manifest: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the chunks in the order in which a worker takes them."""
    for item in manifest["slots"]:
        yield payloads.from_record(item["chunk"])
    for variable in manifest["variables"]:
        for chunk in variable["chunks"]:
            yield payloads.from_record(chunk)


def for_worker(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest in the form that a worker loads."""
    return {
        "slots": [
            [item["index"], item["text"], _named(item["chunk"])] for item in manifest["slots"]
        ],
        "variables": [
            {
                "name": variable["name"],
                "type": variable["type"],
                "size": variable["size"],
                "preview": variable["preview"],
                "pieces": [_named(chunk) for chunk in variable["chunks"]],
                "marked": [list(mark) for mark in variable["marked"]],
                "whole": variable["whole"],
            }
            for variable in manifest["variables"]
        ],
    }


def _named(record: Any) -> list[Any]:
    slot = payloads.from_record(record)
    return ["", slot.size, slot.data] if slot.data is not None else [slot.id, slot.size, b""]


def variables(manifest: Mapping[str, Any]) -> list[Variable]:
    """List the variables of a manifest, by name, without reading any chunk."""
    found = [
        Variable(
            variable["name"],
            variable["type"],
            variable["size"],
            variable["preview"],
            restorable=not variable["whole"],
        )
        for variable in manifest["variables"]
    ]
    return sorted(found, key=lambda variable: variable.name)


def unrestorable(
    manifest: Mapping[str, Any], before: Mapping[str, Any] | None
) -> tuple[Unrestorable, ...]:
    """Return what this checkpoint does not keep and the one before did not have."""
    lost = _losses(manifest)
    if lost and before is not None:
        lost -= _losses(before)
    return tuple(sorted(lost, key=lambda loss: loss.name))


def _losses(manifest: Mapping[str, Any]) -> set[Unrestorable]:
    return {
        Unrestorable(
            variable["name"],
            f"{kind}: {reason}" if variable["whole"] else f"holds a {kind}: {reason}",
            not variable["whole"],
        )
        for variable in manifest["variables"]
        for kind, reason in variable["marked"]
    }
