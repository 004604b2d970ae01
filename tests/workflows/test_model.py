"""The model: the same from YAML, from Python and from what a run stores."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

import jsonschema
import pytest

from holdfast.workflows import InvalidWorkflow, Workflow, check, dot, load, mermaid
from holdfast.workflows.model import KINDS
from holdfast.workflows.reading import TOP, duration_ms, read_document, read_text
from holdfast.workflows.yaml_source import Source

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMA = json.loads((files("holdfast.workflows") / "workflow.schema.json").read_text("utf-8"))


@dataclass
class Draft:
    title: str
    text: str


@dataclass
class Verdict:
    score: int
    notes: str


@dataclass
class Decision:
    answer: Literal["publish", "rework", "drop"]
    remarks: str


def essay():
    flow = Workflow(
        "essay",
        vars={"topic": str, "tone": "plain"},
        loops={"revise": 3, "redo": 2},
        budget={"usd": 2, "executions": 40},
    )
    write = flow.agent(
        "write",
        "writer",
        output=Draft,
        prompt="""\
Write an essay on {{ vars.topic }}, {{ vars.tone }} in tone.
{{ default(input.notes, "This is the first draft.") }}
""",
    )
    judge = flow.judge(
        "judge",
        "critic",
        output=Verdict,
        prompt="Score this from 1 to 10: {{ outputs.write.text }}",
    )
    approve = flow.human(
        "approve",
        'Publish "{{ outputs.write.title }}"? Score {{ outputs.judge.score }}.',
        assignee="editor",
        deadline="3d",
        output=Decision,
    )
    publish = flow.compute(
        "publish",
        {"title": "outputs.write.title", "text": "outputs.write.text"},
        publish="essay",
    )
    write.to(judge)
    judge.to(approve, when="output.score >= 8")
    judge.to(write, loop="revise", inputs={"notes": "{{ output.notes }}"})
    judge.to(approve)
    approve.to(publish, when='output.answer == "publish"')
    approve.to(
        write,
        when='output.answer == "rework"',
        loop="redo",
        inputs={"notes": "{{ output.remarks }}"},
    )
    approve.to("fail")
    publish.to("done")
    return flow


def test_a_file_and_a_program_make_the_same_workflow():
    written, built = load(EXAMPLES / "essay.yaml"), essay().build()
    assert dict(built.nodes) == dict(written.nodes)
    assert (built.vars, built.loops, built.budget) == (written.vars, written.loops, written.budget)
    assert check(built) == check(written) == []


def test_a_problem_in_a_program_is_reported_at_its_line():
    flow = Workflow("w")
    flow.agent("a", "writer").to("b")
    flow.judge("b", "critic").to("done", when="output.approvd")  # the line that is meant
    (problem,) = check(flow.build())
    assert problem.place.file == __file__
    line = Path(__file__).read_text().splitlines()[problem.place.line - 1]
    assert line.endswith("# the line that is meant")
    with pytest.raises(InvalidWorkflow, match="two nodes 'a'"):
        flow.agent("a", "writer")


def test_a_body_is_written_by_a_function():
    flow = Workflow("w", vars={"files": list[str]})
    each = flow.each(
        "all",
        "vars.files",
        as_="file",
        do=lambda body: body.agent("review", "reviewer", prompt="{{ file }}"),
    )
    each.to("done")
    model = flow.build()
    assert (model.nodes["all"].body, model.nodes["review"].scope) == (("review",), "all")
    assert check(model) == []


@pytest.mark.parametrize("name", ["essay", "review"])
def test_what_a_run_stores_makes_an_equal_workflow(name):
    flow = load(EXAMPLES / f"{name}.yaml")
    stored = json.loads(json.dumps(flow.document()))
    again = read_document(stored)
    assert again == flow
    assert again.hash() == flow.hash()
    assert list(again.document()) == list(flow.document())


def test_comments_order_and_descriptions_do_not_count_and_a_prompt_does():
    text = (EXAMPLES / "essay.yaml").read_text()
    flow = load(EXAMPLES / "essay.yaml")
    moved = text.replace("# revise is used up", "# that was it")
    first, rest = moved.split("  publish:\n")
    head, nodes = first.split("nodes:\n")
    shuffled = f"{head}start: write\nnodes:\n  publish:\n    description: The end.\n{rest}\n{nodes}"
    same, problems = read_text(shuffled)
    assert problems == []
    assert same.hash() == flow.hash()
    other, _ = read_text(text.replace("Score this", "Rate this"))
    assert other.hash() != flow.hash()


def test_the_published_schema_knows_every_field():
    assert set(SCHEMA["properties"]) == set(TOP)
    kinds = {one["description"]: one for one in SCHEMA["$defs"]["node"]["oneOf"]}
    assert set(kinds) == set(KINDS)
    for kind, one in kinds.items():
        assert set(one["properties"]) == KINDS[kind] | {kind}


@pytest.mark.parametrize("name", ["essay", "review"])
def test_the_published_schema_takes_the_examples_and_what_runs_store(name):
    validator = jsonschema.Draft202012Validator(SCHEMA)
    text = (EXAMPLES / f"{name}.yaml").read_text()
    validator.validate(Source(text, name).data)
    validator.validate(load(EXAMPLES / f"{name}.yaml").document())


@pytest.mark.parametrize(
    "name", ["unknown_field", "no_kind", "two_kinds", "bad_budget", "no_nodes"]
)
def test_the_published_schema_refuses_what_is_malformed(name):
    text = (Path(__file__).parent / "broken" / f"{name}.yaml").read_text()
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(Source(text, name).data)


def test_a_drawing_shows_every_node_and_edge():
    flow = load(EXAMPLES / "essay.yaml")
    for drawn in (mermaid(flow), dot(flow)):
        for node in flow.nodes.values():
            assert node.id in drawn
        assert "loop revise" in drawn
    assert '"output.score #gt;= 8"' in mermaid(flow)
    assert 'subgraph "cluster_reviews"' in dot(load(EXAMPLES / "review.yaml"))


def test_hostile_texts_stay_texts_in_a_drawing():
    flow = Workflow("w")
    flow.agent("a", 'x"] end; click a "javascript:alert(1)"\n').to("done")
    drawn = mermaid(flow.build())
    assert drawn.count('"') % 2 == 0
    assert "#quot;" in drawn
    assert '\\"] end;' in dot(flow.build())


DURATIONS = {
    "30s": 30_000,
    "1.5m": 90_000,
    "2h": 7_200_000,
    "3d": 259_200_000,
    5: 5_000,
    "250ms": 250,
    "soon": None,
    -1: None,
    True: None,
    "10 minutes": None,
}


@pytest.mark.parametrize(("text", "milliseconds"), DURATIONS.items())
def test_a_duration_is_a_number_with_a_unit(text, milliseconds):
    assert duration_ms(text) == milliseconds


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidWorkflow, match=r"nowhere\.yaml cannot be read"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidWorkflow, match="cannot be read"):
        load(tmp_path / "odd.yaml")


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 3000, "- " * 4000, "a: " + "x" * 1_100_000, "\t- x", "%YAML 9"]
)
def test_a_hostile_file_is_refused_and_costs_little(text):
    flow, problems = read_text(text, "f")
    assert flow is None
    assert problems


def test_words_that_other_readers_take_for_booleans_are_texts():
    source = Source("a: yes\nb: on\nc: 0o17\nd: 1_000\ne: true\nf: ~\ng: 1e3\nh: .5", "f")
    assert source.data == {
        "a": "yes",
        "b": "on",
        "c": "0o17",
        "d": "1_000",
        "e": True,
        "f": None,
        "g": 1000.0,
        "h": 0.5,
    }
