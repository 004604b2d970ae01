"""Scheduling: what a run does, killed after and before every append of its log.

Each scenario runs once undisturbed, then once for every append with a kill right after it, and
once with a kill right before it (so that what was in flight is lost). Whatever had finished is
never begun again (the world refuses), and the run ends as it does undisturbed.
"""

import pytest
from simulation import Fails, Simulation, World, ask_to_stop

NODES = {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


def verdicts(*scores):
    """Return a judge that gives these scores, one for each round."""
    return lambda doing: {"score": scores[min(sum(doing.iteration.values()), len(scores) - 1)]}


async def undisturbed(make, **options):
    simulation = make()
    status = await simulation.run(**options)
    return simulation, status


async def facts_of(simulation):
    """Return what a run came to, without what a kill may change: numbers of events and calls."""
    state = await simulation.state()
    main = state.run.cursors["main"]
    return {
        "status": state.run.status,
        "output": await simulation.output(),
        "robin": state.run.robin,
        "artifacts": {name: one.version for name, one in state.artifacts.items()},
        "loops": {name: loop.passed for name, loop in main.loops.items()},
        "outputs": sorted(main.outputs),
        "executions": state.run.executions,
        "open": sorted(state.run.cursors),
    }


async def killed_everywhere(make, *, per_kill=1, same_work=True, **options):
    """Run a scenario with a kill at every append; return it undisturbed."""
    plain, status = await undisturbed(make, **options)
    expected = await facts_of(plain)
    if not same_work:  # what was begun before a failure came in is chance
        expected.pop("executions")
    for number in range(1, plain.appends + 1):
        for when in ("kill_at", "kill_before"):
            simulation = make()
            getattr(simulation, when).add(number)
            assert await simulation.run(**options) == status, (when, number)
            found = await facts_of(simulation)
            assert {name: found[name] for name in expected} == expected, (when, number)
            for node, count in simulation.world.begun.items():
                most = plain.world.begun[node] + per_kill
                assert count <= most, (when, number, node)
            assert sum(simulation.world.begun.values()) <= sum(plain.world.begun.values()) + max(
                1, plain.world.most_at_once
            )
    return plain


LINE = """
workflow: w
nodes:
  a: {tool: x, output: {n: integer}, next: b}
  b: {tool: x, inputs: {n: "{{ outputs.a.n + 1 }}"}, next: c}
  c: {tool: x, next: end}
  end: {done: {n: "{{ outputs.b }}"}}
"""


async def test_a_line_runs_each_node_once():
    def make():
        return Simulation(LINE, World(NODES | {"b": lambda doing: doing.input["n"]}))

    plain = await killed_everywhere(make)
    assert dict(plain.world.begun) == {"a": 1, "b": 1, "c": 1}
    assert await plain.output() == {"n": 2}
    starts = ("node.started", "call.requested", "call.dispatched")
    ends = ("call.resolved", "node.finished", "edge.selected")
    assert [tuple(batch) for batch in plain.batches[1:]] == [
        starts,
        (*ends, *starts),
        (*ends, *starts),
        (*ends, "node.started", "node.finished", "run.finished"),
    ], "what belongs together is one batch"


async def test_a_tool_that_must_run_once_is_never_begun_twice_and_a_person_decides():
    text = LINE.replace("next: c}", "next: c, effect: once}")
    for number in range(1, 6):
        for when in ("kill_at", "kill_before"):
            world = World(NODES, {"b": "once"})
            simulation = Simulation(text, world)
            getattr(simulation, when).add(number)
            status = await simulation.run(answers=[("b", {"action": "replace", "value": {"n": 9}})])
            assert status == "finished"
            assert world.begun["b"] <= 1


LOOP = """
workflow: w
vars: {rounds: {type: integer, default: 3}}
loops: {again: MAX}
nodes:
  write: {tool: x, next: judge}
  judge:
    tool: x
    output: {score: integer}
    next:
      - {to: done, when: output.score >= 8}
      - {to: write, loop: again, inputs: {last: "{{ output.score }}"}}
      - {to: fallback}
  fallback: {tool: x, next: done}
"""


@pytest.mark.parametrize("bound", ["3", "vars.rounds"])
async def test_a_loop_of_three_runs_its_body_four_times(bound):
    def make():
        return Simulation(LOOP.replace("MAX", bound), World({"judge": verdicts(1, 2, 3, 4)}))

    plain = await killed_everywhere(make)
    assert dict(plain.world.begun) == {"write": 4, "judge": 4, "fallback": 1}
    assert {key[2] for key in plain.world.positions if key[1] == "write"} == {
        (),
        (("again", 1),),
        (("again", 2),),
        (("again", 3),),
    }


async def test_a_loop_ends_when_its_condition_says_so():
    def make():
        return Simulation(LOOP.replace("MAX", "3"), World({"judge": verdicts(1, 9)}))

    assert dict((await killed_everywhere(make)).world.begun) == {"write": 2, "judge": 2}


async def test_an_edge_sees_the_output_that_caused_the_round_before():
    text = """
workflow: w
loops: {again: 5}
nodes:
  write: {tool: x, next: judge}
  judge:
    tool: x
    output: {score: integer}
    next:
      - to: write
        loop: again
        when: loop.again.previous_output == null or output.score > loop.again.previous_output.score
      - {to: end}
  end: {done: {rounds: "{{ loop.again.iteration }}", last: "{{ loop.again.previous_output }}"}}
"""

    def make():
        return Simulation(text, World({"judge": verdicts(1, 4, 6, 5)}))

    plain = await killed_everywhere(make)
    assert await plain.output() == {"rounds": 3, "last": {"score": 6}}


NESTED = """
workflow: w
loops: {inner: 2, outer: 1}
nodes:
  write: {tool: x, next: judge}
  judge:
    tool: x
    next:
      - {to: write, loop: inner}
      - {to: gate}
  gate:
    tool: x
    next:
      - {to: write, loop: outer}
      - {to: done}
"""


async def test_an_inner_loop_that_shares_the_entry_begins_anew_in_every_outer_round():
    plain = await killed_everywhere(lambda: Simulation(NESTED))
    assert dict(plain.world.begun) == {"write": 6, "judge": 6, "gate": 2}
    rounds = {key[2] for key in plain.world.positions if key[1] == "write"}
    assert len(rounds) == 6


async def test_an_inner_loop_with_an_entry_of_its_own_begins_anew_too():
    text = NESTED.replace(
        "write: {tool: x, next: judge}",
        "top: {tool: x, next: write}\n  write: {tool: x, next: judge}",
    ).replace("{to: write, loop: outer}", "{to: top, loop: outer}")
    plain = await killed_everywhere(lambda: Simulation(text))
    assert dict(plain.world.begun) == {"top": 2, "write": 6, "judge": 6, "gate": 2}


async def test_sibling_loops_with_one_entry_end():
    text = """
workflow: w
loops: {left: 2, right: 2}
nodes:
  a:
    tool: x
    output: {side: left | right}
    next:
      - {to: a, loop: left, when: output.side == "left"}
      - {to: a, loop: right, when: output.side == "right"}
      - {to: done}
"""

    def make():
        count = lambda doing: {"side": "left" if sum(doing.iteration.values()) % 2 else "right"}  # noqa: E731
        return Simulation(text, World({"a": count}))

    assert (await killed_everywhere(make)).world.begun["a"] <= 5


async def test_a_loop_inside_each_inside_a_loop():
    text = """
workflow: w
vars: {xs: {type: list of integer, default: [1, 2, 3]}}
loops: {inner: 1, outer: 1}
nodes:
  begin: {tool: x, next: all}
  all:
    each: vars.xs
    as: x
    do:
      work:
        tool: y
        next:
          - {to: work, loop: inner}
          - {to: last}
      last: {compute: {x: x, round: loop.outer.iteration}}
    next: gate
  gate:
    tool: z
    next:
      - {to: begin, loop: outer}
      - {to: end}
  end: {done: "{{ outputs.all.items }}"}
"""
    plain = await killed_everywhere(lambda: Simulation(text), per_kill=3)
    assert plain.world.begun["work"] == 12
    assert (await plain.output())["value"] == [{"x": n, "round": 1} for n in (1, 2, 3)]


FAN_OUT = """
workflow: w
nodes:
  split: {router: all, next: [a, b, c]}
  a: {tool: x, output: {n: integer}, next: {to: meet, inputs: {from_a: "{{ output.n }}"}}}
  b: {tool: x, next: b2}
  b2: {tool: x, next: {to: meet, inputs: {from_b: 2, both: b}}}
  c: {tool: x, next: {to: meet, inputs: {from_c: 3, both: c}}}
  meet: {tool: x, join: all, inputs: {own: true}, next: end}
  end: {done: "{{ outputs.meet }}"}
"""


@pytest.mark.parametrize("seed", range(4))
async def test_branches_meet_once_and_bring_their_values_in_order(seed):
    def make():
        world = World(NODES | {"meet": lambda doing: doing.input})
        return Simulation(FAN_OUT, world, seed=seed)

    plain = await killed_everywhere(make, per_kill=1)
    assert all(count == 1 for count in plain.world.begun.values())
    expected = {"own": True, "from_a": 1, "from_b": 2, "both": "c", "from_c": 3}
    assert (await plain.output())["value"] == expected, "the last one declared wins"


async def test_a_failed_branch_of_all_runs_again_on_resume_and_no_other():
    def make(times=1):
        def flaky(doing):
            if doing.begun <= times:
                raise Fails("tool_error")
            return {}

        return Simulation(FAN_OUT, World(NODES | {"b": flaky}))

    plain, status = await undisturbed(make)
    assert status == "failed_resumable"
    assert await plain.run(resume=True) == "finished"
    assert dict(plain.world.begun) == {"a": 1, "b": 2, "b2": 1, "c": 1, "meet": 1}
    for number in range(1, plain.appends + 1):
        simulation = make(2)
        simulation.kill_at.add(number)
        for _ in range(4):
            if await simulation.run(resume=True) == "finished":
                break
        assert (await simulation.state()).run.status == "finished"
        assert simulation.world.begun["meet"] <= 2
        assert simulation.world.begun["b2"] <= 2


async def test_a_question_beside_a_failure_is_withdrawn_and_asked_anew():
    text = FAN_OUT.replace(
        "a: {tool: x, output: {n: integer},", "a: {human: 'Go on?', output: {n: integer},"
    )

    def flaky(doing):
        if doing.begun == 1:
            raise Fails("tool_error")
        return {}

    simulation = Simulation(text, World({"c": flaky}))
    assert await simulation.run() == "failed_resumable"
    assert (await simulation.state()).calls == {}
    first = simulation.world.asked[0]
    assert await simulation.run(resume=True) == "paused"
    assert len(simulation.world.asked) == 2
    assert simulation.world.asked[1] != first
    assert await simulation.run(answers=[("a", {"n": 4})]) == "finished"


async def test_best_effort_goes_on_without_what_failed():
    text = FAN_OUT.replace("join: all", "join: best_effort")

    def make():
        def fails(doing):
            raise Fails("tool_error")

        return Simulation(text, World(NODES | {"c": fails, "meet": lambda doing: doing.input}))

    plain = await killed_everywhere(make)
    assert plain.world.begun["meet"] == 1
    assert (await plain.output())["value"] == {"own": True, "from_a": 1, "from_b": 2, "both": "b"}
    assert "c" not in (await plain.state()).run.cursors["main"].outputs


@pytest.mark.parametrize("seed", range(3))
async def test_the_first_branch_wins_and_the_others_are_cancelled(seed):
    text = FAN_OUT.replace("join: all", "join: first")
    simulation = Simulation(text, World(NODES | {"meet": lambda doing: doing.input}), seed=seed)
    assert await simulation.run() == "finished"
    assert simulation.world.begun["meet"] == 1
    assert simulation.world.cancelled
    assert (await simulation.state()).calls == {}
    for number in range(1, simulation.appends + 1):
        other = Simulation(text, World(NODES), seed=seed)
        other.kill_at.add(number)
        assert await other.run() == "finished"
        assert other.world.begun["meet"] <= 2


async def test_first_fails_when_all_do_and_an_edge_can_catch_it():
    text = FAN_OUT.replace("join: all", "join: first").replace(
        "split: {router: all, next: [a, b, c]}",
        "split:\n    router: all\n"
        "    next: [{to: a}, {to: b}, {to: c}, {to: rescue, on: failure}]\n"
        "  rescue: {tool: x, inputs: {}, next: done}",
    )

    def fails(doing):
        raise Fails("tool_error")

    def make():
        return Simulation(text, World(dict.fromkeys("abc", fails)))

    plain = await killed_everywhere(make)
    assert plain.world.begun["rescue"] == 1
    assert "meet" not in plain.world.begun


async def test_a_failure_edge_catches_a_failed_fan_out():
    text = FAN_OUT.replace(
        "split: {router: all, next: [a, b, c]}",
        "split:\n    router: all\n    next:\n      - a\n      - b\n      - c\n"
        '      - {to: rescue, on: failure, inputs: {why: "{{ error.code }}"}}\n'
        "  rescue: {tool: x, next: end2}\n  end2: {done: '{{ outputs.rescue }}'}",
    )

    def fails(doing):
        raise Fails("tool_error")

    def make():
        return Simulation(
            text,
            World({"c": fails, "rescue": lambda doing: doing.input["why"]} | NODES | {"c": fails}),
        )

    plain = await killed_everywhere(make, same_work=False)
    assert await plain.output() == {"value": "join_failed"}


async def test_nested_fan_outs_keep_what_finished_when_an_inner_one_fails():
    text = """
workflow: w
nodes:
  outer: {router: all, next: [p, inner]}
  p: {tool: x, next: meet}
  inner: {router: all, next: [q, r]}
  q: {tool: x, next: join}
  r: {tool: x, next: join}
  join: {tool: x, join: all, next: meet}
  meet: {tool: x, join: all, next: done}
"""

    def flaky(doing):
        if doing.begun == 1:
            raise Fails("tool_error")
        return {}

    for seed in range(4):
        simulation = Simulation(text, World({"r": flaky}), seed=seed)
        assert await simulation.run() == "failed_resumable"
        assert await simulation.run(resume=True) == "finished"
        assert dict(simulation.world.begun) == {"p": 1, "q": 1, "r": 2, "join": 1, "meet": 1}


CHOSEN = """
workflow: w
nodes:
  split: {router: model, many: true, prompt: 'Which?', next: [a, b, c]}
  a: {tool: x, next: meet}
  b: {tool: x, next: meet}
  c: {tool: x, next: meet}
  meet: {tool: x, join: all, next: done}
"""


async def test_a_join_waits_for_those_that_a_model_chose():
    def make():
        return Simulation(CHOSEN, World({"split": {"chosen": ["c", "a"]}}))

    plain = await killed_everywhere(make)
    assert dict(plain.world.begun) == {"split": 1, "a": 1, "c": 1, "meet": 1}


async def test_a_model_that_chooses_nonsense_is_asked_once_more_and_then_fails():
    for nonsense in ({"chosen": ["z"]}, {"chosen": []}, "what?", None):
        simulation = Simulation(CHOSEN, World({"split": nonsense}))
        assert await simulation.run() == "failed_resumable"
        assert simulation.world.begun["split"] == 2
        assert (await simulation.state()).run.cursors["main"].code == "schema_invalid"


async def test_a_model_that_chooses_one():
    text = CHOSEN.replace(", many: true", "").replace(", join: all", "")
    simulation = Simulation(text, World({"split": {"chosen": "b"}}))
    assert await simulation.run() == "finished"
    assert dict(simulation.world.begun) == {"split": 1, "b": 1, "meet": 1}


EACH = """
workflow: w
vars: {count: integer}
nodes:
  list: {tool: x, output: {xs: list of integer}, next: all}
  all:
    each: outputs.list.xs
    as: x
    key: x
    parallel: 4
    join: JOIN
    do:
      work: {tool: y, inputs: {x: "{{ x }}"}, next: twice}
      twice: {compute: {x: outputs.work * 2}}
    next: report
  report: {tool: z, next: end}
  end: {done: {items: "{{ outputs.all.items }}", failed: "{{ outputs.all.failed }}"}}
"""


def each(count, join="all", **acts):
    world = World(
        {"list": {"xs": list(range(count))}, "work": lambda doing: doing.input["x"], **acts}
    )
    return Simulation(EACH.replace("JOIN", join), world, variables={"count": count}, seed=count)


async def test_each_item_is_worked_once_and_order_is_kept():
    plain = await killed_everywhere(lambda: each(20), per_kill=4)
    assert plain.world.begun["work"] == 20
    assert plain.world.most_at_once == 4
    assert (await plain.output())["items"] == [{"x": 2 * n} for n in range(20)]


async def test_each_over_nothing_joins_at_once():
    plain = await killed_everywhere(lambda: each(0))
    assert dict(plain.world.begun) == {"list": 1, "report": 1}
    assert await plain.output() == {"items": [], "failed": []}


async def test_best_effort_names_the_items_that_failed():
    def work(doing):
        if doing.item in (1, 3):
            raise Fails("tool_error")
        return doing.input["x"]

    plain = await killed_everywhere(lambda: each(5, "best_effort", work=work), per_kill=4)
    output = await plain.output()
    assert output["items"] == [{"x": 0}, {"x": 4}, {"x": 8}]
    assert [(one["index"], one["key"], one["code"]) for one in output["failed"]] == [
        (1, "1", "tool_error"),
        (3, "3", "tool_error"),
    ]


async def test_best_effort_goes_on_when_all_fail():
    def work(doing):
        raise Fails("tool_error")

    simulation = each(3, "best_effort", work=work)
    assert await simulation.run() == "finished"
    assert (await simulation.output())["items"] == []


async def test_a_failed_item_of_all_is_worked_again_on_resume_and_no_other():
    def work(doing):
        if doing.item == 2 and doing.begun == 1:
            raise Fails("tool_error")
        return doing.input["x"]

    simulation = each(9, work=work)
    assert await simulation.run() == "failed_resumable"
    before = simulation.world.begun["work"]
    assert await simulation.run(resume=True) == "finished"
    assert simulation.world.begun["work"] == 10
    assert before < 10, "the rest was not begun once it had failed"
    assert (await simulation.output())["items"] == [{"x": 2 * n} for n in range(9)]


async def test_people_leave_their_place_to_others():
    text = (
        EACH.replace("work: {tool: y,", "work: {human: 'How many?',")
        .replace("outputs.work * 2", "len(outputs.work.answer)")
        .replace("parallel: 4", "parallel: 2")
    )
    text = text.replace("JOIN", "all")
    simulation = Simulation(text, World({"list": {"xs": [1, 2, 3, 4, 5]}}), variables={"count": 5})
    assert await simulation.run() == "paused"
    assert len(simulation.world.asked) == 5
    answers = [("work", {"answer": "x" * n}) for n in range(5)]
    assert await simulation.run(answers=answers) == "finished"


async def test_no_more_branches_are_open_than_the_budget_allows():
    text = (
        EACH.replace("work: {tool: y,", "work: {human: 'How many?',")
        .replace("outputs.work * 2", "len(outputs.work.answer)")
        .replace("JOIN", "all")
        .replace("nodes:", "budget: {branches: 3}\nnodes:", 1)
    )
    simulation = Simulation(text, World({"list": {"xs": [1, 2, 3, 4, 5]}}), variables={"count": 5})
    assert await simulation.run() == "paused"
    assert len(simulation.world.asked) == 3
    answers = [("work", {"answer": "x" * n}) for n in range(5)]
    assert await simulation.run(answers=answers) == "finished"


ROBIN = """
workflow: w
loops: {again: 4}
nodes:
  pick: {router: round_robin, next: [TARGETS]}
  a: {tool: x, next: gate}
  b: {tool: x, next: gate}
  c: {tool: x, next: gate}
  gate:
    compute: {a: outputs.a, b: outputs.b}
    next:
      - {to: pick, loop: again}
      - {to: done}
"""


@pytest.mark.parametrize(
    ("targets", "counts"), [("a, b", {"a": 3, "b": 2}), ("a, b, c", {"a": 2, "b": 2, "c": 1})]
)
async def test_a_router_takes_turns_and_only_the_last_one_counts(targets, counts):
    text = ROBIN.replace("TARGETS", targets)
    if targets == "a, b":
        text = text.replace("  c: {tool: x, next: gate}\n", "")

    def make():
        return Simulation(text, World({"a": "A", "b": "B", "c": "C"}))

    plain = await killed_everywhere(make)
    assert dict(plain.world.begun) == counts
    last = {"a, b": {"a": "A", "b": None}, "a, b, c": {"a": None, "b": "B"}}[targets]
    assert await plain.output() == last


GATE = """
workflow: w
nodes:
  write: {tool: x, next: approve}
  approve:
    human: Publish?
    output: {answer: yes_do | never}
    next:
      - {to: publish, when: output.answer == "yes_do"}
      - {to: fail}
  publish: {tool: x, publish: essay, next: done}
"""


async def test_a_person_is_asked_once_and_what_came_before_is_not_done_again():
    def make():
        return Simulation(GATE)

    plain = await killed_everywhere(make, answers=[("approve", {"answer": "yes_do"})])
    assert dict(plain.world.begun) == {"write": 1, "publish": 1}
    simulation = make()
    assert await simulation.run() == "paused"
    assert len((await simulation.state()).calls) == 1
    assert simulation.batches[-1][-1] == "run.paused", "the pause is one batch with its cause"
    assert await simulation.run(answers=[("approve", {"answer": "never"})]) == "failed"


async def test_an_answer_that_breaks_the_form_is_not_taken():
    simulation = Simulation(GATE)
    await simulation.run()
    status = await simulation.run(answers=[("approve", {"answer": "maybe"})])
    assert status == "paused", "it is asked once more"
    assert len(simulation.world.asked) == 2


async def test_two_people_answer_in_any_order():
    text = """
workflow: w
nodes:
  split: {router: all, next: [h1, h2]}
  h1: {human: 'One?', next: meet}
  h2: {human: 'Two?', next: meet}
  meet: {compute: {one: outputs.h1.answer, two: outputs.h2.answer}, join: all, next: done}
"""
    for first, second in (("h1", "h2"), ("h2", "h1")):
        simulation = Simulation(text)
        assert await simulation.run() == "paused"
        assert len(simulation.world.asked) == 2
        assert await simulation.run(answers=[(first, {"answer": first})]) == "paused"
        assert await simulation.run(answers=[(second, {"answer": second})]) == "finished"
        assert await simulation.output() == {"one": "h1", "two": "h2"}


async def test_a_deadline_fails_the_question_and_an_edge_can_catch_it():
    text = GATE.replace("human: Publish?", "human: Publish?\n    deadline: 1d").replace(
        "      - {to: fail}\n", "      - {to: fail}\n      - {to: publish, on: failure}\n"
    )

    def make():
        return Simulation(text)

    plain = await killed_everywhere(make, answers=[("approve", "expired")])
    assert plain.world.begun["publish"] == 1


async def test_a_wait_goes_on_when_its_time_has_come():
    text = "workflow: w\nnodes:\n  a: {wait: 2h, next: b}\n  b: {tool: x, next: done}"
    simulation = Simulation(text)
    assert await simulation.run() == "paused"
    (call,) = (await simulation.state()).calls.values()
    assert call.deadline == "2030-01-01T02:00:00.000000Z"
    assert await simulation.run(answers=[("a", "expired")]) == "finished"


RETRY = """
workflow: w
nodes:
  a:
    tool: x
    retry: {network: {times: 2, wait: 10s, at_most: 1m, then: THEN}}
    next:
      - {to: done}
      - {to: fallback, on: failure, inputs: {code: "{{ error.code }}"}}
  fallback: {tool: x, next: done}
"""


def failing(times, code="network", **more):
    count = {"left": times}

    def act(doing):
        if count["left"]:
            count["left"] -= 1
            raise Fails(code, **more)
        return doing.input

    return act


async def test_an_attempt_is_made_again_and_the_count_survives_a_kill():
    def make():
        return Simulation(RETRY.replace("THEN", "fail"), World({"a": failing(2)}))

    plain = await killed_everywhere(make, per_kill=1)
    assert plain.world.begun["a"] == 3
    assert plain.now == "2030-01-01T00:00:30.000000Z", "10 s, then twice that"


async def test_when_attempts_are_used_up_a_failure_edge_takes_over():
    plain, status = await undisturbed(
        lambda: Simulation(
            RETRY.replace("THEN", "fail"),
            World({"a": failing(9), "fallback": lambda doing: doing.input["code"]}),
        )
    )
    assert status == "finished"
    assert dict(plain.world.begun) == {"a": 3, "fallback": 1}
    assert await plain.output() == "network"
    for number in range(1, plain.appends + 1):
        simulation = Simulation(RETRY.replace("THEN", "fail"), World({"a": failing(9)}))
        simulation.kill_at.add(number)
        assert await simulation.run() == "finished"
        assert simulation.world.begun["fallback"] <= 2
        assert simulation.world.begun["a"] <= 4


@pytest.mark.parametrize(
    ("answer", "status", "begun"),
    [
        ({"action": "retry"}, "finished", 4),
        ({"action": "replace", "value": {"n": 7}}, "finished", 3),
        ({"action": "fail"}, "finished", 3),
    ],
)
async def test_a_person_decides_what_becomes_of_a_node_that_keeps_failing(answer, status, begun):
    simulation = Simulation(RETRY.replace("THEN", "ask"), World({"a": failing(3)}))
    assert await simulation.run() == "paused"
    assert simulation.world.begun["a"] == 3
    assert await simulation.run(answers=[("a", answer)]) == status
    assert simulation.world.begun["a"] == begun
    assert simulation.world.begun["fallback"] == (1 if answer["action"] == "fail" else 0)


async def test_a_rate_limit_that_says_when_it_resets_frees_the_driver_until_then():
    until = "2030-01-01T01:00:00.000000Z"
    text = RETRY.replace("THEN", "fail")
    simulation = Simulation(text, World({"a": failing(1, until=until)}))
    assert await simulation.run() == "finished"
    assert simulation.now == until
    paused = [batch for batch in simulation.batches if "run.paused" in batch]
    assert len(paused) == 1


async def test_a_resume_does_not_give_new_attempts():
    text = (
        RETRY.replace("THEN", "fail")
        .replace('      - {to: fallback, on: failure, inputs: {code: "{{ error.code }}"}}\n', "")
        .replace("  fallback: {tool: x, next: done}\n", "")
    )
    simulation = Simulation(text, World({"a": failing(4)}))
    assert await simulation.run() == "failed_resumable"
    assert simulation.world.begun["a"] == 3
    assert await simulation.run(resume=True) == "failed_resumable"
    assert simulation.world.begun["a"] == 4, "one more, and no retries after it"
    assert await simulation.run(resume=True) == "finished"


async def test_a_budget_of_executions_stops_what_would_start_next():
    text = """
workflow: w
budget: {executions: 4}
nodes:
  split: {router: all, next: [a, b]}
  a: {tool: x, next: a2}
  a2: {tool: x, next: a3}
  a3: {tool: x, next: meet}
  b: {tool: x, next: b2}
  b2: {tool: x, next: b3}
  b3: {tool: x, next: meet}
  meet: {compute: {x: 1}, join: all, next: done}
"""

    def make():
        return Simulation(text)

    plain = await killed_everywhere(make)
    state = await plain.state()
    assert (state.run.status, state.run.executions) == ("failed_resumable", 4)
    assert sum(plain.world.begun.values()) == 4
    assert ["budget.warned" in batch for batch in plain.batches].count(True) == 1
    raised = text.replace("executions: 4", "executions: 9")
    plain.flow, plain.graph = (other := Simulation(raised)).flow, other.graph
    assert await plain.run(resume=True) == "finished"
    assert all(count == 1 for count in plain.world.begun.values())


async def test_a_limit_of_the_ledger_stops_the_run_and_nothing_in_flight_is_lost():
    simulation = Simulation(FAN_OUT, World(NODES), budget=2)
    assert await simulation.run() == "failed_resumable"
    simulation.ledger.budget = None
    assert await simulation.run(resume=True) == "finished"
    assert all(count == 1 for count in simulation.world.begun.values())


async def test_versions_of_an_artifact_follow_without_a_gap():
    text = LOOP.replace("MAX", "3").replace("write: {tool: x,", "write: {tool: x, publish: draft,")

    def make():
        return Simulation(text, World({"judge": verdicts(1, 2, 3, 4)}))

    plain = await killed_everywhere(make)
    versions = [
        event.data["version"] for event in await plain.events() if event.type == "artifact.written"
    ]
    assert versions == [0, 1, 2, 3]


async def test_an_artifact_can_be_referred_to_by_its_name():
    text = """
workflow: w
nodes:
  a: {tool: x, publish: draft, output: {n: integer}, next: b}
  b: {compute: {n: artifacts.draft.n + 1}, next: done}
"""
    simulation = Simulation(text, World({"a": {"n": 4}}))
    assert await simulation.run() == "finished"
    assert await simulation.output() == {"n": 5}


async def test_a_cancelled_run_goes_on_where_it_stood():
    simulation = Simulation(GATE)
    assert await simulation.run() == "paused"
    assert await ask_to_stop(simulation) == "cancelled"
    assert (await simulation.state()).calls == {}
    assert await simulation.run(resume=True) == "paused"
    assert await simulation.run(answers=[("approve", {"answer": "yes_do"})]) == "finished"
    assert dict(simulation.world.begun) == {"write": 1, "publish": 1}


async def test_a_fail_node_ends_the_run_for_good_with_its_reason():
    text = """
workflow: w
nodes:
  a: {tool: x, next: stop}
  stop: {fail: "It was {{ outputs.a }}.", code: gave_up}
"""
    simulation = Simulation(text, World({"a": "bad"}))
    assert await simulation.run() == "failed"
    (failed,) = [event for event in await simulation.events() if event.type == "run.failed"]
    assert failed.data["code"] == "gave_up"
    assert "It was bad." in str(failed.data["error"])


async def test_an_expression_that_has_no_value_fails_its_node_and_can_be_caught():
    text = """
workflow: w
nodes:
  a: {tool: x, next: b}
  b:
    compute: {n: outputs.a.missing + 1}
    next: [{to: done}, {to: c, on: failure}]
  c: {tool: x, next: done}
"""

    def make():
        return Simulation(text, World({"a": {"n": 1}, "c": "caught"}))

    assert await (await killed_everywhere(make)).output() == "caught"


async def test_an_output_that_breaks_its_schema_is_asked_for_once_more():
    def work(doing):
        return {"n": "one"} if doing.begun == 1 else {"n": 1}

    simulation = Simulation(LINE, World(NODES | {"a": work, "b": lambda doing: doing.input["n"]}))
    assert await simulation.run() == "finished"
    assert simulation.world.begun["a"] == 2
    assert await simulation.output() == {"n": 2}


async def test_the_output_of_a_run_is_held_against_its_schema():
    text = "workflow: w\noutput: {n: integer}\nnodes:\n  a: {tool: x, next: done}"
    simulation = Simulation(text, World({"a": {"n": "one"}}))
    assert await simulation.run() == "failed_resumable"
    good = Simulation(text, World({"a": {"n": 1}}))
    assert await good.run() == "finished"


async def test_an_output_of_ten_megabytes_costs_the_state_nothing():
    big = "x" * 10_000_000
    simulation = Simulation(LINE, World(NODES | {"b": big}))
    assert await simulation.run() == "finished"
    assert (await simulation.output())["n"] == big
    assert simulation.largest < 10_000


async def test_a_run_without_kills_never_begins_anything_twice_however_it_is_interleaved():
    for seed in range(12):
        simulation = Simulation(FAN_OUT, World(NODES), seed=seed)
        assert await simulation.run() == "finished"
        assert set(simulation.world.begun.values()) == {1}


MANY = """
workflow: w
vars: {count: integer}
nodes:
  list: {tool: x, output: {xs: list of integer}, next: all}
  all:
    each: outputs.list.xs
    as: x
    parallel: 200
    join: best_effort
    do:
      work: {tool: y, inputs: {x: "{{ x }}"}}
    next: end
  end: {done: {count: "{{ len(outputs.all.items) }}", last: "{{ outputs.all.items[-1] }}"}}
"""


@pytest.mark.parametrize("items", [1_500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_thousands_of_items_leave_the_state_small_and_a_kill_costs_what_was_in_flight(items):
    world = World({"list": {"xs": list(range(items))}, "work": lambda doing: doing.input["x"]})
    simulation = Simulation(MANY, world, variables={"count": items})
    simulation.kill_before.add(items // 4)
    assert await simulation.run() == "finished"
    assert await simulation.output() == {"count": items, "last": items - 1}
    assert items < world.begun["work"] <= items + 200
    assert simulation.largest < 64_000


async def test_many_branches_of_a_router_share_the_slots_of_the_workflow():
    names = [f"b{number}" for number in range(40)]
    nodes = "".join(f"  {name}: {{tool: x, next: meet}}\n" for name in names)
    text = (
        f"workflow: w\nparallel: 5\nnodes:\n  split: {{router: all, next: [{', '.join(names)}]}}\n"
    )
    text += nodes + "  meet: {tool: x, join: all, next: done}\n"
    simulation = Simulation(text)
    assert await simulation.run() == "finished"
    assert simulation.world.most_at_once == 5
    assert len(simulation.world.begun) == 41
