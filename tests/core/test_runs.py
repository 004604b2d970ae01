"""Runs in the log: what is accepted, what the state remembers, and that it stays small."""

import msgspec
import pytest
from hypothesis import given, settings
from walks import AT, begin, choices, walk

from holdfast.core import facts
from holdfast.core.errors import IllegalTransition, InvalidInput
from holdfast.core.fold import fold
from holdfast.core.heads import HeadDraft
from holdfast.core.log import extend
from holdfast.core.payloads import slot
from holdfast.core.replay import replay
from holdfast.core.run_facts import (
    ArtifactWritten,
    BranchFinished,
    BranchStarted,
    EdgeSelected,
    JoinReady,
    NodeFinished,
    NodeRetried,
    NodeStarted,
    RunCancelled,
    RunChanged,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    RunResumed,
    RunStarted,
    WorkspaceFinalised,
    WorkspaceOpened,
)
from holdfast.core.run_rules import TRANSITIONS
from holdfast.core.run_state import RUN_STATUSES, SESSION_STATUS
from holdfast.core.state import empty


def after(state, *new, at=AT, **options):
    return extend(state, new, at=at, **options).state


def started(**fields):
    return after(begin(kind="run").state, RunStarted(workflow="w", start="a", **fields))


def node(state, name="a", branch="main", **fields):
    execution = state.next("execution")
    return NodeStarted(execution=execution, node=name, kind="tool", branch=branch, **fields)


def ended(state, branch="main", **fields):
    cursor = state.run.cursors[branch]
    return NodeFinished(execution=cursor.execution, node=cursor.node, branch=branch, **fields)


def ran(state, name="a", branch="main", **fields):
    """Return the state once a node of a branch has run."""
    state = after(state, node(state, name, branch))
    return after(state, ended(state, branch, **fields))


def edge(state, target, branch="main", **fields):
    cursor = state.run.cursors[branch]
    return EdgeSelected(
        source=cursor.node, target=target, branch=branch, output=cursor.outcome, **fields
    )


def call(call_id="a.1.1"):
    return facts.CallRequested(
        call_id=call_id,
        name="ask",
        executor="human",
        effect="once",
        arguments=slot("?", "arguments"),
    )


def forked(state, count=3, join="all", branch="main", of=None):
    """Return the state once a node fanned out."""
    state = after(state, node(state, state.run.cursors[branch].node, branch))
    fork = state.run.cursors[branch].execution
    for index in range(count):
        state = after(
            state,
            BranchStarted(
                branch=f"{branch}/f:{index}",
                node="b",
                fork=fork,
                index=index,
                of=of or count,
                parent=branch,
                join=join,
            ),
        )
    return state


def finished_branch(state, branch, **fields):
    cursor = state.run.cursors[branch]
    return BranchFinished(branch=branch, fork=cursor.fork, index=cursor.index, **fields)


# -- the life of a run


def in_status(status):
    state = started()
    match status:
        case "paused":
            return after(state, RunPaused(reason="people"))
        case "interrupted":
            return after(state, RunInterrupted(reason="SIGTERM"))
        case "failed_resumable":
            return after(state, RunFailed(code="timeout"))
        case "failed":
            return after(state, RunFailed(code="gave_up", resumable=False))
        case "cancelled":
            return after(state, RunCancelled(by="ada"))
        case "finished":
            return after(ran(state), RunFinished(), head=HeadDraft(kind="run_final"))
    return state


ENDS = {
    RunPaused: RunPaused(reason="time", until="2030-01-01T00:00:00.000000Z"),
    RunInterrupted: RunInterrupted(),
    RunResumed: RunResumed(),
    RunFailed: RunFailed(),
    RunCancelled: RunCancelled(),
}


@pytest.mark.parametrize("status", RUN_STATUSES)
def test_a_session_shows_the_status_that_its_run_implies(status):
    state = in_status(status)
    assert (state.run.status, state.status) == (status, SESSION_STATUS[status])


@pytest.mark.parametrize("status", RUN_STATUSES)
@pytest.mark.parametrize("cls", ENDS, ids=lambda cls: cls.TYPE)
def test_a_run_moves_by_the_table_and_in_no_other_way(status, cls):
    state = in_status(status)
    legal, target = TRANSITIONS[cls]
    if status in legal:
        assert after(state, ENDS[cls]).run.status == target
    else:
        with pytest.raises(IllegalTransition):
            after(state, ENDS[cls])


def test_a_run_finishes_once_its_main_branch_has_ended_and_publishes_a_head():
    state = ran(started())
    with pytest.raises(InvalidInput, match="head of kind 'run_final'"):
        after(state, RunFinished())
    with pytest.raises(InvalidInput, match="main branch has ended"):
        after(started(), RunFinished(), head=HeadDraft(kind="run_final"))
    with pytest.raises(InvalidInput, match=r"follows run\.finished"):
        after(state, RunPaused(reason="people"), head=HeadDraft(kind="run_final"))
    done = after(state, RunFinished(output=slot("x", "output")), head=HeadDraft(kind="run_final"))
    assert (done.run.status, done.status, done.head is not None) == ("finished", "idle", True)


def test_a_session_has_one_run_and_a_run_has_no_turns():
    with pytest.raises(InvalidInput, match="has a run already"):
        after(in_status("cancelled"), RunStarted(workflow="w"))
    with pytest.raises(InvalidInput, match="is a workflow run"):
        after(in_status("cancelled"), facts.TurnStarted(turn=1))
    with pytest.raises(IllegalTransition):
        after(begin().state, NodeStarted(execution=1, node="a", kind="tool"))
    with pytest.raises(InvalidInput, match="needs a run"):
        after(begin().state, RunResumed())


@pytest.mark.parametrize("end", [RunFailed(code="x"), RunCancelled(by="ada")])
def test_a_run_settles_only_with_no_call_open_and_nothing_running(end):
    state = after(started(), node(started(), call="a.1.1"), call())
    with pytest.raises(InvalidInput, match="has no outcome"):
        after(state, end)
    state = after(state, facts.CallResolved(call_id="a.1.1", outcome="cancelled"))
    with pytest.raises(InvalidInput, match="is running"):
        after(state, end)
    state = after(state, ended(state, status="cancelled"), end)
    assert state.run.status in ("failed_resumable", "cancelled")
    assert state.run.cursors["main"].phase == "ready", "it stands where it stood"


def test_a_pause_leaves_calls_open_and_their_answer_wakes_the_run():
    state = after(started(), node(started(), call="a.1.1"), call())
    state = after(state, facts.CallSuspended(call_id="a.1.1"), RunPaused(reason="people"))
    assert (state.run.status, state.status) == ("paused", "suspended")
    state = after(state, facts.CallResolved(call_id="a.1.1", outcome="ok"))
    assert (state.run.status, state.status) == ("running", "running")
    assert state.run.cursors["main"].resolved == state.seq


def test_stopping_a_run_starts_nothing_new_and_ends_as_cancelled():
    state = after(started(), node(started(), call="a.1.1"), call())
    state = after(state, facts.SessionStopRequested(by="ada"))
    assert state.status == "stop_requested"
    state = after(
        state,
        facts.CallResolved(call_id="a.1.1", outcome="ok"),
        NodeFinished(execution=1, node="a"),
        EdgeSelected(source="a", target="b", output=state.seq + 2),
    )
    assert state.status == "stop_requested"
    with pytest.raises(IllegalTransition):
        after(state, node(state, "b"))
    assert after(state, RunCancelled(by="ada")).status == "idle"


def test_a_limit_that_is_used_up_stops_what_would_start_next():
    state = after(started(), facts.LimitExceeded(limit="executions", used="4", allowed="4"))
    assert state.run.stopping == "budget_exceeded"
    assert after(state, RunFailed(code="budget_exceeded"), RunResumed()).run.stopping is None


def test_driving_time_counts_neither_waiting_nor_what_a_crash_left_open():
    state = after(
        begin(kind="run").state, RunStarted(workflow="w"), at="2030-01-01T00:00:00.000000Z"
    )
    state = after(state, RunPaused(reason="people"), at="2030-01-01T00:00:10.000000Z")
    state = after(state, RunResumed(), at="2030-01-01T05:00:00.000000Z")
    state = after(state, node(state, "start"), at="2030-01-01T05:00:02.000000Z")
    state = after(state, facts.SessionRevived(), at="2030-01-02T00:00:00.000000Z")
    state = after(state, RunInterrupted(), at="2030-01-02T00:00:01.500000Z")
    assert state.run.driven_ms == 13_500


def test_automatic_resumes_are_counted_by_cause():
    state = started()
    for _ in range(2):
        state = after(state, RunFailed(code="network"), RunResumed(code="network"))
    assert after(state, RunFailed(), RunResumed(by="ada")).run.resumes == {"network": 2}


def test_a_changed_workflow_is_in_force_from_where_it_was_recorded():
    state = in_status("paused")
    assert state.run.model == state.run.started
    changed = RunChanged(workflow_hash="sha256:0", model=slot({"workflow": "w"}, "settings"))
    state = after(state, changed, RunResumed())
    assert state.run.model == state.seq - 1
    with pytest.raises(IllegalTransition):
        after(state, changed)


# -- nodes and edges


def test_executions_are_numbered_and_each_ends_once():
    state = after(started(), node(started()))
    with pytest.raises(InvalidInput, match="next execution"):
        after(state, NodeStarted(execution=7, node="a", kind="tool"))
    with pytest.raises(InvalidInput, match="is running at 'a'"):
        after(state, node(state))
    state = after(state, ended(state, output=slot("x", "output")))
    assert state.run.cursors["main"].outputs == {"a": state.seq}
    with pytest.raises(InvalidInput, match="an execution ends once"):
        after(state, ended(state))
    with pytest.raises(InvalidInput, match="is about execution 9"):
        after(state, NodeFinished(execution=9, node="a"))


def test_a_node_does_not_end_before_its_call():
    state = after(started(), node(started(), call="a.1.1"), call())
    with pytest.raises(InvalidInput, match="has no outcome"):
        after(state, ended(state))
    with pytest.raises(InvalidInput, match="has not ended"):
        after(state, NodeRetried(execution=1, node="a", attempt=2, code="x", call="a.1.2"))


def test_failed_attempts_are_counted_by_cause_until_the_node_succeeds():
    state = after(started(), node(started(), call="a.1.1"))
    for attempt, code in [(2, "network"), (3, "network"), (4, "timeout")]:
        again = NodeRetried(
            execution=1, node="a", attempt=attempt, code=code, call=f"a.1.{attempt}", until=AT
        )
        state = after(state, again)
    cursor = state.run.cursors["main"]
    assert (cursor.attempts, cursor.call, cursor.until) == (
        {"network": 2, "timeout": 1},
        "a.1.4",
        AT,
    )
    with pytest.raises(InvalidInput, match="the next one of execution 1 is 5"):
        after(state, NodeRetried(execution=1, node="a", attempt=9, code="x", call="a.1.9"))
    failed = after(state, ended(state, status="failed", code="timeout"), RunFailed(code="timeout"))
    resumed = after(failed, RunResumed())
    assert resumed.run.cursors["main"].attempts == {"network": 2, "timeout": 1}
    assert resumed.run.cursors["main"].phase == "ready"
    assert ran(resumed).run.cursors["main"].attempts == {}


def test_a_person_who_is_asked_uses_up_no_attempt():
    state = after(started(), node(started(), call="a.1.1"))
    ask = NodeRetried(execution=1, node="a", attempt=1, code="network", call="a.1.ask", then="ask")
    cursor = after(state, ask).run.cursors["main"]
    assert (cursor.asking, cursor.attempts, cursor.attempt) == ("network", {}, 1)


def test_only_an_edge_moves_a_cursor_and_it_names_what_came_before():
    state = ran(started())
    with pytest.raises(InvalidInput, match="leads from 'z'"):
        after(state, EdgeSelected(source="z", target="b"))
    with pytest.raises(InvalidInput, match="names event 1"):
        after(state, EdgeSelected(source="a", target="b", output=1))
    state = after(state, edge(state, "b", inputs={"notes": slot("x", "input")}))
    cursor = state.run.cursors["main"]
    assert (cursor.node, cursor.phase, cursor.fired) == ("b", "ready", (state.seq,))
    with pytest.raises(InvalidInput, match="is about 'a'"):
        after(state, node(state, "a"))


def test_a_loop_counts_its_passes_and_keeps_the_last_two_outcomes():
    state, outcomes = started(), []
    for passed in (1, 2, 3):
        state = ran(state)
        outcomes.append(state.seq)
        with pytest.raises(InvalidInput, match=f"due is {passed}"):
            after(state, edge(state, "a", loop="again", iteration=passed + 1))
        state = after(state, edge(state, "a", loop="again", iteration=passed))
    loop = state.run.cursors["main"].loops["again"]
    assert (loop.passed, loop.last, loop.before) == (3, outcomes[2], outcomes[1])
    state = ran(state)
    state = after(state, edge(state, "a", loop="outer", iteration=1, resets=["again"]))
    assert set(state.run.cursors["main"].loops) == {"outer"}


def test_a_router_that_takes_turns_counts_per_run_and_clears_what_it_left_out():
    state = ran(started(), output=slot("x", "output"))
    state = after(state, edge(state, "b", robin=1))
    with pytest.raises(InvalidInput, match="the next choice of 'b' is 1"):
        after(ran(state, "b"), edge(ran(state, "b"), "a", robin=2))
    state = ran(state, "b")
    state = after(state, edge(state, "a", robin=1, clears=["a"]))
    assert state.run.robin == {"a": 1, "b": 1}
    assert list(state.run.cursors["main"].outputs) == ["b"]


# -- branches


def test_branches_are_opened_in_order_and_each_once():
    state = forked(started(), 1, of=3)
    assert state.run.cursors["main"].phase == "forked"
    good = {"node": "b", "fork": 1, "index": 1, "of": 3}
    for wrong, why in [
        ({"index": 2}, "the next branch of execution 1 is 1"),
        ({"index": 0}, "the next branch of execution 1 is 1"),
        ({"fork": 9}, "is not open"),
        ({"of": 4}, "one of 4"),
        ({"join": "first"}, "joined by 'first'"),
        ({"branch": "main/f:0"}, "name one that is not open"),
        ({"branch": "other"}, "beginning with"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            after(state, BranchStarted(**{"branch": "main/f:1", **good, **wrong}))


def test_a_join_takes_what_the_branches_bring_in_order_of_declaration():
    state = ran(started(), output=slot("old", "output"))
    state = after(state, edge(state, "f"))
    state = forked(state, 2)
    seqs = {}
    for branch in ("main/f:1", "main/f:0"):  # the second one is quicker
        state = ran(state, "b", branch, output=slot(branch, "output"))
        state = after(state, edge(state, "j", branch))
        seqs[branch] = state.seq
        state = after(state, finished_branch(state, branch))
    assert list(state.run.cursors) == ["main"]
    ready = JoinReady(fork=2, node="f", ok=2, clears=["a"])
    with pytest.raises(InvalidInput, match="counts 1 ok"):
        after(state, JoinReady(fork=2, node="f", ok=1))
    state = after(state, ready, NodeFinished(execution=2, node="f"))
    assert state.run.forks == {}
    assert set(state.run.cursors["main"].outputs) == {"b", "f"}, "what it cleared is gone"
    state = after(state, edge(state, "j"))
    assert state.run.cursors["main"].fired == (seqs["main/f:0"], seqs["main/f:1"], state.seq)


def test_a_failed_branch_of_all_stands_still_until_the_run_is_resumed():
    state = forked(started(), 3)
    state = ran(state, "b", "main/f:1", status="failed", code="timeout")
    state = after(state, finished_branch(state, "main/f:1", status="failed", code="timeout"))
    assert state.run.forks[1].closing == "failed"
    state = after(
        state,
        finished_branch(state, "main/f:0", status="cancelled"),
        finished_branch(state, "main/f:2", status="cancelled"),
        RunFailed(code="join_failed", node="f"),
    )
    halted = {name: cursor.halted for name, cursor in state.run.cursors.items()}
    assert halted == {
        "main": None,
        "main/f:0": "stopped",
        "main/f:1": "failed",
        "main/f:2": "stopped",
    }
    state = after(state, RunResumed())
    assert [cursor.phase for cursor in state.run.cursors.values()] == ["forked"] + ["ready"] * 3
    assert (state.run.forks[1].closing, state.run.forks[1].failed) == (None, 0)


@pytest.mark.parametrize(("join", "closing"), [("best_effort", None), ("first", None)])
def test_a_failed_branch_that_the_join_can_do_without_is_dropped(join, closing):
    state = forked(started(), 3, join)
    state = ran(state, "b", "main/f:1", status="failed", code="timeout")
    state = after(state, finished_branch(state, "main/f:1", status="failed"))
    assert sorted(state.run.cursors) == ["main", "main/f:0", "main/f:2"]
    assert (state.run.forks[1].failed, state.run.forks[1].closing) == (1, closing)


def test_the_first_branch_that_ends_well_closes_its_fan_out():
    state = forked(started(), 3, "first")
    state = ran(state, "b", "main/f:2")
    state = after(state, finished_branch(state, "main/f:2", output=slot("x", "output")))
    assert state.run.forks[1].closing == "won"
    state = forked_again = after(state, finished_branch(state, "main/f:0", status="cancelled"))
    assert sorted(forked_again.run.cursors) == ["main", "main/f:1"]


def test_what_fanned_out_below_a_branch_goes_with_it():
    state = forked(started(), 2, "best_effort")
    state = forked(state, 2, "all", "main/f:0")
    assert len(state.run.cursors) == 5
    state = after(state, finished_branch(state, "main/f:0", status="failed"))
    assert sorted(state.run.cursors) == ["main", "main/f:1"]
    assert list(state.run.forks) == [1]


def test_a_fan_out_over_nothing_joins_at_once():
    state = after(started(), node(started()))
    state = after(state, JoinReady(fork=1, node="a"), ended(state))
    assert state.run.cursors["main"].phase == "ended"


# -- artifacts and workspace


def test_versions_are_counted_per_node_from_zero_without_gaps():
    state = started()
    for name, version in [("a", 0), ("b", 0), ("a", 1)]:
        state = after(
            state, ArtifactWritten(node=name, version=version, data=slot("x", "artifact"))
        )
    assert {name: one.version for name, one in state.artifacts.items()} == {"a": 1, "b": 0}
    assert state.artifacts["a"].seq == state.seq
    with pytest.raises(InvalidInput, match="the next one of 'a' is 2"):
        after(state, ArtifactWritten(node="a", version=3, data=slot("x", "artifact")))


def test_a_workspace_is_opened_once_and_finalised_once():
    opened = WorkspaceOpened(kind="worktree", path="/w", base_commit="0" * 40)
    state = after(started(), opened)
    with pytest.raises(InvalidInput, match="has its workspace already"):
        after(state, opened)
    state = after(state, node(state))
    state = after(state, ended(state, commit="1" * 40))
    assert state.run.workspace.commit == "1" * 40
    final = WorkspaceFinalised(commit="1" * 40, branch="holdfast/run/x", reason="dirty")
    state = after(state, final)
    with pytest.raises(InvalidInput, match="is finalised already"):
        after(state, final)


# -- the whole


@given(choices)
@settings(max_examples=60)
def test_folding_a_run_in_parts_gives_what_folding_all_of_it_gives(picks):
    events, states = walk(picks, kind="run")
    assert fold(empty("s-1"), events) == states[-1]
    assert replay(empty("s-1"), events) == states[-1]
    for state in states:
        again = msgspec.json.decode(msgspec.json.encode(state), type=type(state))
        assert again == state


@pytest.mark.parametrize("items", [300, 10_000])
def test_the_state_does_not_grow_with_the_number_of_items(items):
    """200 branches at a time, each with its open call; what has ended leaves the state."""
    state = after(started(), node(started()))
    open_branches, largest = [], 0
    for index in range(items if items <= 300 else 1200):
        branch = f"main/reviews:{index}"
        execution = state.next("execution")
        call_id = f"review.{execution}.1"
        state = after(
            state,
            BranchStarted(
                branch=branch, node="review", fork=1, index=index, of=items, join="best_effort"
            ),
            NodeStarted(
                execution=execution, node="review", kind="agent", branch=branch, call=call_id
            ),
            facts.CallRequested(
                call_id=call_id,
                name="reviewer",
                executor="server",
                effect="idempotent",
                kind="node",
                child=f"c-{'0' * 32}",
                arguments=slot("x", "arguments"),
            ),
            facts.BudgetReserved(reservation=f"call:{call_id}", usd="0.25", tokens=100_000),
        )
        open_branches.append(branch)
        if len(open_branches) == 200:
            largest = max(largest, len(msgspec.json.encode(state)))
            first = open_branches.pop(0)
            cursor = state.run.cursors[first]
            state = after(
                state,
                facts.CallResolved(call_id=cursor.call, outcome="ok"),
                facts.BudgetSettled(reservation=f"call:{cursor.call}", usd="0.1", tokens=1_000),
                NodeFinished(
                    execution=cursor.execution,
                    node="review",
                    branch=first,
                    output=slot("x", "output"),
                ),
                finished_branch(state, first),
            )
    assert largest < 64_000, largest
