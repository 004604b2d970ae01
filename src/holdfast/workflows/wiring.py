"""Wiring: whether names lead somewhere, every node is reached, every cycle ends, branches meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from holdfast.workflows.graph import Graph, Region
from holdfast.workflows.known import Known
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.problems import Place, Problem, suggestion
from holdfast.workflows.yaml_source import KEY


def edge_subject(node: Node, edge: Edge) -> str:
    """Return how messages name an edge."""
    return f"edge {node.id} → {edge.to}"


def edge_path(node: Node, number: int) -> tuple[str | int, ...]:
    """Return where an edge of a node stands in it."""
    return ("next", number) if ("next", number) in node.places else ("next",)


def _problem(place: Place, subject: str, message: str, remedy: str, code: str) -> Problem:
    return Problem(place, subject, message, remedy, code)


def check_names(graph: Graph, known: Known) -> Iterator[Problem]:
    """Yield names of nodes, loops, agents, tools and models that are not there."""
    flow = graph.workflow
    if flow.start not in graph.nodes:
        close = suggestion(flow.start, graph.nodes)
        remedy = f"did you mean {close!r}?" if close else "name a node"
        message = f"there is no node {flow.start!r} to start with"
        yield _problem(flow.at("start"), "workflow", message, remedy, "unknown_node")
    elif graph.nodes[flow.start].scope is not None:
        message = f"{flow.start!r} is inside of {graph.nodes[flow.start].scope!r}"
        yield _problem(flow.at("start"), "workflow", message, "start outside of it", "scope")
    for node in graph.nodes.values():
        for number, edge in enumerate(node.next):
            yield from _check_edge_names(graph, node, number, edge)
        yield from _check_outside_names(node, known)
    for name, bound in flow.loops.items():
        yield from _check_bound(graph, name, bound)
    yield from _check_artifacts(graph)
    yield from _check_item_names(graph)


def _check_edge_names(graph: Graph, node: Node, number: int, edge: Edge) -> Iterator[Problem]:
    path, subject = edge_path(node, number), edge_subject(node, edge)
    target = graph.nodes.get(edge.to)
    place = node.at(*path, "to") if (*path, "to") in node.places else node.at(*path)
    if target is None:
        if edge.to:  # one without a target was named when it was read
            close = suggestion(edge.to, graph.nodes)
            remedy = f"did you mean {close!r}?" if close else "declare it under 'nodes'"
            yield _problem(place, subject, f"there is no node {edge.to!r}", remedy, "unknown_node")
    elif target.scope != node.scope and not (target.kind == "fail" and not target.places):
        yield _problem(place, subject, *_across(node, target), "scope")
    if edge.loop is not None and edge.loop not in graph.workflow.loops:
        close = suggestion(edge.loop, graph.workflow.loops)
        remedy = f"did you mean {close!r}?" if close else f"add '{edge.loop}: 3' under loops"
        yield _problem(
            node.at(*path, "loop"),
            subject,
            f"there is no loop {edge.loop!r}",
            remedy,
            "unknown_loop",
        )


def _across(node: Node, target: Node) -> tuple[str, str]:
    if node.scope is not None and target.kind == "done":
        return (
            f"a run cannot end inside of {node.scope!r}",
            "leave 'next' out: the body ends at nodes without one",
        )
    if node.scope is None:
        return f"{target.id!r} is inside of {target.scope!r}", f"lead to {target.scope!r} instead"
    return (
        f"{target.id!r} is outside of {node.scope!r}",
        f"leave 'next' out, and lead on from {node.scope!r}",
    )


_OUTSIDE: dict[str, str] = {
    "agent": "agents",
    "judge": "agents",
    "tool": "tools",
    "workflow": "workflows",
}


def _check_outside_names(node: Node, known: Known) -> Iterator[Problem]:
    kind = _OUTSIDE.get(node.kind)
    if kind is not None and isinstance(node.subject, str):
        names: Collection[str] | None = getattr(known, kind)
        yield from _check_registered(node, (node.kind,), node.subject, kind[:-1], names)
    if node.kind == "compute" and isinstance(node.subject, str):
        yield from _check_registered(node, ("compute",), node.subject, "function", known.functions)
    if node.model is not None:
        yield from _check_registered(node, ("model",), node.model, "model", known.models)
    for path, name in _secrets(node):
        yield from _check_registered(node, path, name, "secret", known.secrets)


def _check_registered(
    node: Node, path: tuple[str | int, ...], name: str, what: str, names: Collection[str] | None
) -> Iterator[Problem]:
    if names is None or name in names:
        return
    close = suggestion(name, names)
    remedy = f"did you mean {close!r}?" if close else f"register the {what} before the run"
    yield Problem(
        node.at(*path),
        f"node {node.id}",
        f"there is no {what} {name!r}",
        remedy,
        f"unknown_{what}",
        len(name),
    )


_SECRET = re.compile(r"^\s*\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}\s*$")


def _secrets(node: Node) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for name, value in node.inputs.items():
        if isinstance(value, str) and (found := _SECRET.match(value)):
            yield ("inputs", name), found[1]


def _check_bound(graph: Graph, name: str, bound: int | str) -> Iterator[Problem]:
    flow = graph.workflow
    edges = [edge for node in graph.nodes.values() for edge in node.next]
    used = any(edge.loop == name for edge in edges)
    misspelt = any(edge.loop is not None and edge.loop not in flow.loops for edge in edges)
    if not used and not misspelt:
        place = flow.places.get(("loops", name, KEY)) or flow.at("loops", name)
        yield _problem(
            place,
            f"loop {name}",
            "no edge closes this loop",
            f"add 'loop: {name}' to the edge that leads back, or remove it",
            "unused_loop",
        )
    if isinstance(bound, str):
        variable = flow.vars.get(bound.removeprefix("vars."))
        if variable is None:
            close = suggestion(bound.removeprefix("vars."), flow.vars)
            remedy = f"did you mean 'vars.{close}'?" if close else "declare it under 'vars'"
            message = f"there is no variable {bound!r}"
            yield _problem(flow.at("loops", name), f"loop {name}", message, remedy, "unknown_ref")
        elif str(variable.schema) != "integer":
            yield _problem(
                flow.at("loops", name),
                f"loop {name}",
                f"{bound} is {variable.schema}, not a whole number",
                "declare the variable as integer",
                "type",
            )


def _check_artifacts(graph: Graph) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for node in graph.nodes.values():
        if node.publish is None:
            continue
        if node.publish in owners:
            yield _problem(
                node.at("publish"),
                f"node {node.id}",
                f"{owners[node.publish]!r} publishes {node.publish!r} already",
                "give the artifact another name",
                "artifact",
            )
        owners.setdefault(node.publish, node.id)


def _check_item_names(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.kind != "each" or node.as_name is None:
            continue
        outer, scope = [], node.scope
        while scope is not None:
            outer.append(graph.nodes[scope].as_name)
            scope = graph.nodes[scope].scope
        if node.as_name in outer:
            yield _problem(
                node.at("as"),
                f"node {node.id}",
                f"{node.as_name!r} is the name of an item around it",
                "give it another name with 'as'",
                "name",
            )


def check_wiring(graph: Graph) -> Iterator[Problem]:
    """Yield what is wrong with how nodes are connected, once all names lead somewhere."""
    yield from _check_ends(graph)
    cycles = list(_check_cycles(graph))
    yield from cycles
    yield from _check_reached(graph)
    yield from _check_edges(graph)
    if cycles:
        return  # what follows would only repeat it
    yield from _check_loops(graph)
    yield from _check_regions(graph)
    yield from _check_joins(graph)
    yield from _check_writers(graph)


def _check_ends(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.kind in ("done", "fail"):
            continue
        if not any(edge.on == "ok" for edge in node.next) and node.scope is None:
            yield _problem(
                _name_place(graph, node),
                f"node {node.id}",
                "it leads nowhere",
                "add 'next: done', or where else it goes on",
                "dead_end",
            )
        if node.kind == "router" and not node.next:
            yield _problem(
                _name_place(graph, node),
                f"node {node.id}",
                "a router needs somewhere to lead",
                "add 'next:' with its targets",
                "dead_end",
            )


def _name_place(graph: Graph, node: Node) -> Place:
    return node.places.get((KEY,)) or node.at()


def _check_cycles(graph: Graph) -> Iterator[Problem]:
    for name, edge, cycle in graph.cycles():
        node = graph.nodes[name]
        yield _problem(
            node.at(*edge_path(node, node.next.index(edge))),
            edge_subject(node, edge),
            f"closes the cycle {' → '.join(cycle)}, which nothing ends",
            "add 'loop: again' to this edge and 'again: 3' under loops",
            "cycle",
        )


def _check_reached(graph: Graph) -> Iterator[Problem]:
    reached = set(graph.order)
    for node in graph.nodes.values():
        if node.id not in reached and (node.scope is None or node.scope in reached):
            yield _problem(
                _name_place(graph, node),
                f"node {node.id}",
                "nothing leads here",
                f"add an edge to {node.id!r}, or remove it",
                "unreachable",
            )


def _check_edges(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.forks and node.kind == "router":
            yield from _check_fan_out(node)
            continue
        for on in ("ok", "failure"):
            plain = None
            for number, edge in enumerate(node.next):
                if edge.on != on:
                    continue
                if plain is not None:
                    yield _problem(
                        node.at(*edge_path(node, number)),
                        edge_subject(node, edge),
                        f"never fires: the edge to {plain.to!r} before it always does",
                        "put it before that one, or give that one a 'when'",
                        "shadowed_edge",
                    )
                elif edge.when is None and edge.loop is None and node.kind != "router":
                    plain = edge
        yield from _check_router(node)


def _check_fan_out(node: Node) -> Iterator[Problem]:
    for number, edge in enumerate(node.next):
        if edge.on == "ok" and (edge.when is not None or edge.loop is not None):
            what = "'when'" if edge.when is not None else "'loop'"
            yield _problem(
                node.at(*edge_path(node, number)),
                edge_subject(node, edge),
                f"an edge of a router that takes several has no {what}",
                "decide inside of the branch",
                "router",
            )
    ok = [edge.to for edge in node.next if edge.on == "ok"]
    if len(ok) < 2 or len(set(ok)) < len(ok):
        yield _problem(
            node.at("next"),
            f"node {node.id}",
            "a router that takes several needs different targets",
            "name at least two, each once",
            "router",
        )


def _check_router(node: Node) -> Iterator[Problem]:
    if node.kind != "router" or node.subject not in ("round_robin", "model"):
        return
    for number, edge in enumerate(node.next):
        if edge.on == "ok" and edge.when is not None:
            yield _problem(
                node.at(*edge_path(node, number), "when"),
                edge_subject(node, edge),
                f"a {node.subject} router chooses by itself",
                "leave 'when' out, or make it a condition router",
                "router",
            )
    if node.subject == "model" and not node.prompt:
        yield _problem(
            node.at(),
            f"node {node.id}",
            "a router that asks a model needs a prompt",
            "add 'prompt:'",
            "router",
        )


def _check_loops(graph: Graph) -> Iterator[Problem]:
    entries: dict[str, str] = {}
    for node in graph.nodes.values():
        for number, edge in enumerate(node.next):
            if edge.loop is None or edge.to not in graph.nodes:
                continue
            place = node.at(*edge_path(node, number))
            subject = edge_subject(node, edge)
            entry = entries.setdefault(edge.loop, edge.to)
            if entry != edge.to:
                yield _problem(
                    place,
                    subject,
                    f"loop {edge.loop!r} leads back to {entry!r} already",
                    "lead back to the same node, or declare another loop",
                    "loop_entry",
                )
            elif node.id in graph.order and not graph.dominates(edge.to, node.id):
                yield _problem(
                    place,
                    subject,
                    f"{edge.to!r} is not on every way to {node.id!r}, so this is not a loop",
                    "lead back to a node that always comes before",
                    "loop_entry",
                )


def _check_regions(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.kind != "router" or not node.forks:
            continue
        region = graph.regions.get(node.id)
        if region is None:
            yield _problem(
                node.at("next"),
                f"node {node.id}",
                "its branches never meet",
                "lead all of them to one node with 'join: all'",
                "join",
            )
            continue
        yield from _check_region(graph, node, region)


def _check_region(graph: Graph, node: Node, region: Region) -> Iterator[Problem]:
    join = graph.nodes[region.join]
    if join.join is None:
        place = join.at() if join.places else node.at("next")
        yield _problem(
            place,
            f"node {join.id}",
            f"the branches of {node.id!r} meet here, and nothing says how",
            "add 'join: all', 'join: best_effort' or 'join: first'",
            "join",
        )
    owner: dict[str, str] = {}
    for target, inside in region.branches.items():
        for name in sorted(inside):
            if name in owner and owner[name] != target:
                yield _problem(
                    _name_place(graph, graph.nodes[name]),
                    f"node {name}",
                    f"the branches {owner[name]!r} and {target!r} of {node.id!r} share it",
                    f"let them meet at {join.id!r} alone, or add 'join' here",
                    "join",
                )
                return
            owner[name] = target
    for name in region.nodes:
        inside_node = graph.nodes[name]
        for number, edge in enumerate(inside_node.next):
            if edge.loop is not None and edge.to not in region.branches[owner[name]]:
                yield _problem(
                    inside_node.at(*edge_path(inside_node, number)),
                    edge_subject(inside_node, edge),
                    f"leads back out of a branch of {node.id!r}",
                    "let the loop end in the branch that it began in",
                    "loop_entry",
                )


def _check_joins(graph: Graph) -> Iterator[Problem]:
    joins = {region.join for region in graph.regions.values()}
    for node in graph.nodes.values():
        if node.join is not None and node.kind != "each" and node.id not in joins:
            yield _problem(
                node.at("join"),
                f"node {node.id}",
                "no branches meet here",
                "remove 'join', or lead the branches of a router here",
                "join",
            )


def _check_writers(graph: Graph) -> Iterator[Problem]:
    if graph.workflow.workspace.kind == "none":
        for node in graph.nodes.values():
            if node.writes:
                yield _problem(
                    node.at("writes"),
                    f"node {node.id}",
                    "there is no workspace to write to",
                    "add 'workspace: worktree' or 'workspace: directory' to the workflow",
                    "workspace",
                )
        return
    yield from _check_each_writers(graph)
    for region in graph.regions.values():
        writing = {
            target: next((name for name in sorted(inside) if _writes(graph, name)), None)
            for target, inside in region.branches.items()
        }
        found = [name for name in writing.values() if name is not None]
        if len(found) > 1:
            last = graph.nodes[found[1]]
            yield _problem(
                last.at("writes"),
                f"node {last.id}",
                f"it would write to one workspace beside {found[0]!r}, in another branch of "
                f"{region.router!r}",
                "write in one branch only, or after they meet",
                "workspace",
            )


def _check_each_writers(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes.values():
        if node.kind != "each":
            continue
        at_once = node.parallel or graph.workflow.parallel
        writer = next((name for name in graph.members(node.id) if _writes(graph, name)), None)
        if writer is not None and at_once > 1:
            one = graph.nodes[writer]
            yield _problem(
                one.at("writes"),
                f"node {one.id}",
                f"up to {at_once} branches of {node.id!r} would write to one workspace at a time",
                f"set 'parallel: 1' on {node.id!r}, or write after it",
                "workspace",
            )


def _writes(graph: Graph, name: str) -> bool:
    node = graph.nodes[name]
    inside: Callable[[str], bool] = lambda one: _writes(graph, one)  # noqa: E731
    return node.writes or (node.kind == "each" and any(map(inside, graph.members(name))))
