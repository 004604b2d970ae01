"""Where sessions come from and what came of them: heads, and the tree of parents and forks."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.naming import all_sessions, find_session
from holdfast.cli.options import Call, command, session_argument
from holdfast.cli.reading import with_reads, with_store
from holdfast.cli.terminal import table
from holdfast.core.facts import HeadPublished
from holdfast.runtime.reads import Entry, Reads
from holdfast.stores.port import SessionInfo, SessionStore

PAGE_HEADS = 500


@command("heads")
@session_argument
def heads_command(call: Call, session: str) -> None:
    """List the heads of SESSION: the places to fork from, each a proof of all before it."""

    async def read(
        store: SessionStore, reads: Reads
    ) -> tuple[SessionInfo, list[Entry[HeadPublished]]]:
        info = await find_session(store, session)
        found: list[Entry[HeadPublished]] = []
        while page := await reads.heads(
            info.id, after=found[-1].seq if found else 0, limit=PAGE_HEADS
        ):
            found += page
        return info, found

    info, found = with_reads(call, read)
    heads = [
        {
            "id": entry.fact.id,
            "seq": entry.seq,
            "at": entry.at,
            "kind": entry.fact.kind,
            "turn": entry.fact.turn,
            "basis": entry.fact.basis,
            "range": entry.fact.range,
            "digest": entry.fact.digest,
            "current": entry.fact.id == info.head,
        }
        for entry in found
    ]
    rows = [
        (
            str(head["id"]),
            str(head["kind"]),
            str(head["turn"] or ""),
            str(head["seq"]),
            "current" if head["current"] else "",
        )
        for head in heads
    ]
    text = table(("HEAD", "KIND", "TURN", "EVENT", ""), rows, widest=80)
    call.answer({"session": info.id, "heads": heads}, text if rows else "no heads yet")


@command("tree")
@click.argument("session", required=False)
def tree_command(call: Call, session: str | None) -> None:
    """Show the whole family of SESSION, or of every session: parents, children and forks."""

    async def read(store: SessionStore) -> tuple[str | None, list[SessionInfo]]:
        wanted = None if session is None else (await find_session(store, session)).id
        return wanted, [info async for info in all_sessions(store)]

    wanted, found = with_store(call, read)
    known = {info.id: info for info in found}
    above = {info.id: _source(info, known) for info in reversed(found)}
    cut = _cut_cycles(above)
    roots = [info.id for info in reversed(found) if above[info.id] is None]
    if wanted is not None:
        root = wanted
        while (source := above[root]) is not None:
            root = source
        roots = [root]
    below: dict[str, list[SessionInfo]] = {}
    for info in found:
        below.setdefault(above[info.id] or "", []).append(info)
    nodes, lines = _walk([known[root] for root in roots], below, cut, wanted)
    call.answer({"session": wanted, "nodes": nodes}, "\n".join(lines) or "no sessions")


def _source(info: SessionInfo, known: dict[str, SessionInfo]) -> str | None:
    """Return the session that this one hangs under, if the store has it."""
    source = info.parent or info.origin
    return source if source in known else None


def _cut_cycles(above: dict[str, str | None]) -> dict[str, str]:
    """Put one session of each cycle on top; return those and what they hung under.

    Sessions of different stores can have the same ids, so that imports may name each other as
    their source.
    """
    cut: dict[str, str] = {}
    settled: set[str] = set()
    for start in above:
        path: set[str] = set()
        place = start
        while place not in settled and (source := above[place]) is not None:
            if place in path:
                cut[place], above[place] = source, None
                break
            path.add(place)
            place = source
        settled |= path
    return cut


def _walk(
    roots: list[SessionInfo],
    below: dict[str, list[SessionInfo]],
    cut: dict[str, str],
    wanted: str | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the nodes of trees from the top down, as documents and as lines to print."""
    nodes: list[dict[str, Any]] = []
    lines: list[str] = []
    queue = [(info, 0, "", "") for info in reversed(roots)]
    while queue:
        info, depth, lead, rest = queue.pop()
        nodes.append(_node(info, depth))
        turns = f"{info.turns} turn{'' if info.turns == 1 else 's'}"
        mark = f"  (from {cut[info.id]}: a cycle, cut here)" if info.id in cut else ""
        mark += "  <-" if info.id == wanted else ""
        lines.append(f"{lead}{info.id}  {info.name}  {info.kind}, {info.status}, {turns}{mark}")
        for place, child in enumerate(below.get(info.id, [])):
            # The newest is first in the list, last on the page.
            branch, deeper = ("└─ ", "   ") if place == 0 else ("├─ ", "│  ")
            queue.append((child, depth + 1, rest + branch, rest + deeper))
    return nodes, lines


def _node(info: SessionInfo, depth: int) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "kind": info.kind,
        "status": info.status,
        "turns": info.turns,
        "head": info.head,
        "parent": info.parent,
        "origin": info.origin,
        "depth": depth,
    }
