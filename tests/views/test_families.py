"""The tree of sessions, its costs and relations, and the pictures of it."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal

import pytest
from families import ask, call, child_of, fork_of, invocation

from holdfast.core import facts
from holdfast.core.errors import SessionNotFound
from holdfast.core.forms import FACTS
from holdfast.testing.driver import drive
from holdfast.views.documents import edge_document, head_document, tree_document
from holdfast.views.families import read_family, read_tree
from holdfast.views.graph import dot, mermaid
from holdfast.views.reads import Reads


async def three_levels(store):
    """A root with two children, one of which has a child of its own; and a fork of the root."""
    root = await drive(store, "root")
    await ask(root, "plan", usd="1")
    for place in ("1", "2"):
        await call(root, f"child-{place}", f"call-{place}")
    first = await child_of(root, "child-1", "call-1")
    await ask(first, "part one", usd="0.25")
    await first.append(edges=[invocation(root, first, "call-1")])
    second = await child_of(root, "child-2", "call-2")
    await ask(second, "part two", usd=None)
    await call(second, "grandchild", "call-1")
    grandchild = await child_of(second, "grandchild", "call-1")
    await ask(grandchild, "detail", usd="0.05")
    fork = await fork_of(root, "what-if")
    await ask(fork, "what if", usd="2")
    return root


async def test_costs_are_summed_by_subtree_with_the_unknown_kept_apart(store):
    await three_levels(store)
    family = await read_tree(store, "grandchild")
    shown = [(n.info.id, n.depth, n.cost.known_usd, n.subtree.known_usd) for n in family.nodes]
    assert shown == [
        ("root", 0, Decimal("1"), Decimal("3.30")),
        ("child-1", 1, Decimal("0.25"), Decimal("0.25")),
        ("child-2", 1, Decimal("0"), Decimal("0.05")),
        ("grandchild", 2, Decimal("0.05"), Decimal("0.05")),
        ("what-if", 1, Decimal("2"), Decimal("2")),
    ]
    unknown = {node.info.id: (node.cost.unknown, node.subtree.unknown) for node in family.nodes}
    assert unknown["root"] == (0, 1)
    assert unknown["child-2"] == (1, 1)
    assert unknown["grandchild"] == (0, 0)
    assert family.nodes[0].subtree.tokens == 5 * 15


async def test_what_may_have_been_used_is_a_sum_of_its_own(store):
    root = await drive(store, "root")
    child = await child_of(root, "child", "call-1")
    lost = facts.BudgetSettled(reservation="leaf:1", usd="0.5", tokens=70, unknown=True)
    await child.append(facts.BudgetReserved(reservation="leaf:1", usd="0.5", tokens=70), lost)
    await child.append(facts.BudgetReserved(reservation="leaf:2", usd="0.25", tokens=30))
    await root.append(facts.BudgetReserved(reservation="call:call-1", usd="9", tokens=900))
    (top, below) = (await read_tree(store, "root")).nodes
    assert (below.cost.reserved_usd, below.cost.reserved_tokens) == (Decimal("0.75"), 100)
    assert (below.cost.known_usd, below.cost.unknown) == (0, 2)
    # What the parent set aside for the child is not counted beside what the child says.
    assert (top.cost.reserved_usd, top.cost.unknown) == (0, 0)
    assert (top.subtree.reserved_usd, top.subtree.unknown) == (Decimal("0.75"), 2)


async def test_a_tree_may_be_any_depth(store):
    above = await drive(store, "level-000")
    for level in range(1, 300):
        above = await child_of(above, f"level-{level:03}", "call-1")
        await above.append(facts.BudgetReserved(reservation="leaf:1", usd="1"))
    nodes = (await read_tree(store, "level-150")).nodes
    assert [node.depth for node in nodes] == list(range(300))
    assert nodes[0].subtree.reserved_usd == 299


async def test_a_document_has_all_that_the_log_has_of_heads_and_edges(store):
    await three_levels(store)
    (head,) = await Reads(store).heads("child-1")
    (edge,) = await Reads(store).edges("child-1")
    for document, kind in (
        (head_document(head, current=True), "head.published"),
        (edge_document(edge), "lineage.added"),
    ):
        assert {item.name for item in fields(FACTS[kind])} <= set(document), kind
    stored = (await store.read_events("child-1", types=["head.published"]))[0].data
    shown = head_document(head, current=True)
    assert {name: shown[name] for name in stored} == stored


async def test_relations_are_read_from_every_place_of_the_logs_and_told_once(store):
    root = await three_levels(store)
    document = tree_document(await read_family(store, "root"))
    told = {(r["type"], r["from_session"], r["to_session"]): r for r in document["relations"]}
    assert set(told) == {
        ("invocation", "root", "child-1"),
        ("invocation", "root", "child-2"),
        ("invocation", "child-2", "grandchild"),
        ("derivation", "root", "what-if"),
    }
    assert len(document["relations"]) == len(told)
    first = told["invocation", "root", "child-1"]
    child_head = (await store.load_state("child-1")).head
    assert (first["call_id"], first["to_head"]) == ("call-1", child_head)
    assert told["derivation", "root", "what-if"]["from_head"] == root.state.head
    (edge,) = document["edges"]
    assert (edge["from_session"], edge["to_session"]) == ("root", "child-1")


async def test_the_same_edge_added_twice_counts_once(store):
    root = await drive(store, "root")
    await ask(root, "hi")
    child = await child_of(root, "child", "call-1")
    await ask(child, "hi")
    for _ in range(2):
        await child.append(edges=[invocation(root, child, "call-1")])
    family = await read_family(store, "root")
    assert (len(family.edges), len(family.relations)) == (1, 1)


@pytest.mark.parametrize("draw", [dot, mermaid])
async def test_a_picture_has_every_session_and_every_relation(store, draw):
    root = await three_levels(store)
    await call(root, "not-yet", "call-3")
    text = draw(await read_family(store, "root"))
    for name in ("root", "child-1", "child-2", "grandchild", "what-if", "not-yet"):
        assert text.count(f'"{name}') == 1
    arrows = [line for line in text.splitlines() if "->" in line]
    assert len(arrows) == 5
    assert sum("call call-1" in line for line in arrows) == 2
    assert text.count("not here") == 1


async def test_text_that_means_something_to_a_picture_is_escaped(store):
    root = await drive(store, "root")
    await call(root, "child", 'call"-#<b>\\')
    family = await read_family(store, "root")
    assert '[label="call call\\"-#<b>\\\\", style=solid]' in dot(family)
    assert '|"call call#quot;-#35;#lt;b#gt;\\"|' in mermaid(family)


async def test_the_tree_of_a_session_that_is_not_there_is_a_typed_error(store):
    await drive(store, "root")
    with pytest.raises(SessionNotFound):
        await read_tree(store, "nobody")
