"""Where sessions come from and what came of them: heads, and the tree of parents and forks."""

from __future__ import annotations

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, session_argument
from holdfast.cli.reading import with_reads, with_store
from holdfast.cli.terminal import table
from holdfast.cli.wording import count
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.documents import head_document, node_document
from holdfast.views.lineage import HeadView, TreeNode, tree
from holdfast.views.reads import Reads
from holdfast.views.sessions import all_sessions

PAGE_HEADS = 500


@command("heads")
@session_argument
def heads_command(call: Call, session: str) -> None:
    """List the heads of SESSION: the places to fork from, each a proof of all before it."""

    async def read(store: SessionStore, reads: Reads) -> tuple[SessionInfo, list[HeadView]]:
        info = await find_session(store, session)
        found: list[HeadView] = []
        while page := await reads.heads(
            info.id, after=found[-1].seq if found else 0, limit=PAGE_HEADS
        ):
            found += page
        return info, found

    info, found = with_reads(call, read)
    heads = [head_document(head, current=head.id == info.head) for head in found]
    rows = [
        (
            head.id,
            head.kind,
            str(head.turn or ""),
            str(head.seq),
            "current" if head.id == info.head else "",
        )
        for head in found
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
    nodes = tree(found, wanted)
    document = {"session": wanted, "nodes": [node_document(node) for node in nodes]}
    call.answer(document, "\n".join(_lines(nodes, wanted)) or "no sessions")


def _lines(nodes: list[TreeNode], wanted: str | None) -> list[str]:
    """Return the lines of trees, drawn with the branches that lead to each node."""
    lines: list[str] = []
    passed: list[bool] = []  # whether the node above, at each depth, was the last of its level
    for node in nodes:
        del passed[node.depth :]
        lead = "".join("   " if last else "│  " for last in passed[1:])
        if node.depth:
            lead += "└─ " if node.last else "├─ "
        passed.append(node.last)
        info = node.info
        mark = f"  (from {node.cut}: a cycle, cut here)" if node.cut else ""
        mark += "  <-" if info.id == wanted else ""
        about = f"{info.kind}, {info.status}, {count(info.turns, 'turn')}"
        lines.append(f"{lead}{info.id}  {info.name}  {about}{mark}")
    return lines
