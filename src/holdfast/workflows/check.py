"""The check of a workflow before anything is paid: all problems at once, each where it stands.

It goes in stages, so that one mistake is told once: what is malformed, then names, then wiring,
then types and open cases. A later stage runs where the earlier ones leave it something to judge.
"""

from __future__ import annotations

from holdfast.workflows.cases import check_cases
from holdfast.workflows.graph import Graph
from holdfast.workflows.known import NOTHING_KNOWN, Known
from holdfast.workflows.model import Workflow
from holdfast.workflows.problems import InvalidWorkflow, Problem, ordered
from holdfast.workflows.reading import read_text
from holdfast.workflows.scopes import Scopes
from holdfast.workflows.typing_check import check_types
from holdfast.workflows.wiring import check_names, check_wiring


def check(workflow: Workflow, known: Known = NOTHING_KNOWN) -> list[Problem]:
    """Return everything that is wrong with a workflow, as it stands in its text."""
    graph = Graph(workflow)
    names = list(check_names(graph, known))
    # A name from outside that is missing says nothing about the graph.
    broken = [one for one in names if one.code in ("unknown_node", "scope", "unknown_loop")]
    if broken:
        return ordered(names)
    wiring = list(check_wiring(graph))
    scopes = Scopes(graph, known)
    types = list(check_types(scopes, known))
    if any(one.code in _SHAPE for one in wiring):
        # What is there when cannot be said of a graph that is not sound.
        return ordered([*names, *wiring, *(one for one in types if one.code != "null")])
    wrong = {one.subject.split()[1] for one in types}
    return ordered([*names, *wiring, *types, *check_cases(scopes, skip=wrong)])


_SHAPE = frozenset({"cycle", "join", "loop_entry", "unreachable", "dead_end"})


def check_text(
    text: str, file: str = "", known: Known = NOTHING_KNOWN
) -> tuple[Workflow | None, list[Problem]]:
    """Return the workflow of a text and everything that is wrong with it."""
    workflow, malformed = read_text(text, file)
    if workflow is None:
        return None, malformed
    # Of what is malformed nothing more can be said.
    about = {one.subject for one in malformed}
    rest = [one for one in check(workflow, known) if one.subject not in about]
    return workflow, ordered([*malformed, *rest])


def require_sound(workflow: Workflow, known: Known = NOTHING_KNOWN) -> Graph:
    """Return the graph of a workflow; raise InvalidWorkflow with everything that is wrong."""
    problems = check(workflow, known)
    if problems:
        raise InvalidWorkflow(f"workflow {workflow.name!r} cannot be run", problems)
    return Graph(workflow)
