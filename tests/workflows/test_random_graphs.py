"""Random graphs with nested loops, fan-outs and items, killed again and again.

Whatever the graph and wherever the kills fall, the run ends, nothing that had finished is begun
again, and the outcome is that of the run without kills.
"""

import random

import pytest
from simulation import Fails, Simulation, World
from test_schedule import facts_of

from holdfast.core.replay import replay
from holdfast.core.state import empty


class Writer:
    """Writes a workflow of nested sequences, loops, fan-outs and eaches."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0
        self.loops = {}
        self.flaky = {}
        self.joins = []

    def name(self, kind):
        self.names += 1
        return f"{kind}{self.names}"

    def node(self, name, text, indent):
        return f"{indent}{name}: {{{text}}}\n"

    def part(self, after, depth, indent, scope):
        """Return the text of a part that leads to `after`, and the node that it begins with."""
        kinds = ["task", "task", "pure"]
        if depth > 0:
            kinds += ["loop", "fork", "each", "sequence", "sequence"]
        return getattr(self, self.random.choice(kinds))(after, depth, indent, scope)

    def next_of(self, after):
        return f", next: {after}" if after else ""

    def task(self, after, depth, indent, scope):
        name = self.name("t")
        if self.random.random() < 0.2:
            self.flaky[name] = self.random.randint(1, 2)
        retry = ", retry: {network: {times: 2, wait: 1s}}"
        return self.node(name, f"tool: x{retry}{self.next_of(after)}", indent), name

    def pure(self, after, depth, indent, scope):
        name = self.name("p")
        return self.node(name, f"compute: {{n: 1 + 1}}{self.next_of(after)}", indent), name

    def sequence(self, after, depth, indent, scope):
        second, entry = self.part(after, depth - 1, indent, scope)
        first, start = self.part(entry, depth - 1, indent, scope)
        return first + second, start

    def loop(self, after, depth, indent, scope):
        gate, loop = self.name("g"), self.name("l")
        self.loops[loop] = self.random.randint(1, 2)
        body, entry = self.part(gate, depth - 1, indent, scope)
        if not after:
            after = self.name("p")
            body += self.node(after, "compute: {n: 1 + 1}", indent)
        edges = f"[{{to: {entry}, loop: {loop}}}, {{to: {after}}}]"
        return body + self.node(gate, f"tool: x, next: {edges}", indent), entry

    def fork(self, after, depth, indent, scope):
        router, join = self.name("r"), self.name("j")
        kind = self.random.choice(["all", "best_effort"])
        text, targets = "", []
        for _ in range(self.random.randint(2, 3)):
            branch, entry = self.part(join, depth - 1, indent, scope)
            text += branch
            targets.append(entry)
        text = self.node(router, f"router: all, next: [{', '.join(targets)}]", indent) + text
        text += self.node(join, f"tool: x, join: {kind}{self.next_of(after)}", indent)
        return text, router

    def each(self, after, depth, indent, scope):
        name = self.name("e")
        kind = self.random.choice(["all", "best_effort"])
        body, entry = self.part(None, depth - 1, indent + "      ", name)
        lines = body.splitlines(keepends=True)
        # A body begins with its first node.
        lines.sort(key=lambda line: not line.strip().startswith(f"{entry}:"))
        body = "".join(lines)
        head = f"{indent}{name}:\n{indent}  each: vars.xs\n{indent}  as: {name}_x\n"
        head += f"{indent}  parallel: 2\n{indent}  join: {kind}\n{indent}  do:\n"
        tail = f"{indent}  next: {after}\n" if after else ""
        return head + body + tail, name

    def workflow(self, depth=3):
        text, entry = self.part("done", depth, "  ", None)
        loops = ", ".join(f"{name}: {most}" for name, most in self.loops.items())
        head = "workflow: w\nvars: {xs: {type: list of integer, default: [1, 2, 3]}}\n"
        head += f"loops: {{{loops}}}\n" if loops else ""
        return f"{head}start: {entry}\nnodes:\n{text}"


def make(seed):
    writer = Writer(seed)
    text = writer.workflow()

    def act(doing):
        if doing.begun <= writer.flaky.get(doing.node, 0):
            raise Fails("network")
        return {"approved": True, "notes": ""}

    return Simulation(text, World({name: act for name in writer.flaky}), seed=seed)


async def run_to_the_end(simulation):
    for _ in range(6):
        status = await simulation.run(resume=True)
        if status == "finished":
            return status
    return status


@pytest.mark.parametrize("chunk", range(8))
async def test_kills_change_nothing_in_random_graphs(chunk):
    for seed in range(chunk * 6, chunk * 6 + 6):
        plain = make(seed)
        assert await run_to_the_end(plain) == "finished", seed
        expected = await facts_of(plain)
        expected.pop("executions")
        chance = random.Random(seed)
        for _ in range(4):
            killed = make(seed)
            count = min(plain.appends, 6)
            killed.kill_at.update(chance.sample(range(1, plain.appends + 1), count))
            killed.kill_before.update(chance.sample(range(1, plain.appends + 1), count // 2))
            assert await run_to_the_end(killed) == "finished", seed
            found = await facts_of(killed)
            assert {name: found[name] for name in expected} == expected, seed
            events = await killed.events()
            assert replay(empty("r-1"), events) == await killed.state()


async def test_most_of_them_have_loops_and_fan_outs():
    kinds = [make(seed).flow for seed in range(48)]
    assert sum(bool(flow.loops) for flow in kinds) > 12
    assert sum(any(node.forks for node in flow.nodes.values()) for flow in kinds) > 20
