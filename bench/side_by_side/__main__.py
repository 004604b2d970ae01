"""Run the side-by-side work: `python -m bench.side_by_side [--quick] [--rounds N] [CASE …]`.

Every case runs in a process, a folder and, where it needs one, a database of its own. A first round
is thrown away; of the others the median counts. Results are checked before a time counts. Prints a
table, and writes JSON and a chart to bench/results/.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.side_by_side import chart, faults
from bench.side_by_side.work import DATABASE, FULL, QUICK, Case
from bench.table import RESULTS, number, place
from holdfast.testing.postgres_server import PostgresServer

TITLES = {
    "B1": "1,000 turns of 1.2 kB",
    "B2": "cold start on 10,000 records",
    "B3": "the last 100 states",
    "B4": "children of one parent",
    "B5": "100 forks at the middle",
    "B6": "50 conversations at once",
    "B7": "1,000 waits answered after a restart",
    "B8": "a stream of 100,000, with reconnects",
    "B9": "a 5 MB result in 50 turns",
    "B10": "1,000 runs cut off by SIGKILL",
}
UNFIT = {("B2", "langgraph add_messages"), ("B2", "langgraph add_messages, postgres")}
"""Work that would take hours and many gigabytes: every step stores all before it."""


def systems(url: str) -> dict[str, Callable[[], dict[str, Case]]]:
    """Return the systems by name; each is imported in the process that needs it."""

    def load(module: str, *arguments: str) -> dict[str, Case]:
        import importlib

        found = importlib.import_module(f"bench.side_by_side.{module}_system")
        cases: dict[str, Case] = found.cases(*arguments)
        return cases

    return {
        "holdfast": functools.partial(load, "holdfast"),
        "langgraph add_messages": functools.partial(load, "langgraph", "add_messages"),
        "langgraph delta": functools.partial(load, "langgraph", "delta"),
        "langgraph delta 50": functools.partial(load, "langgraph", "delta 50"),
        "dbos": functools.partial(load, "dbos"),
        "openai session": functools.partial(load, "openai"),
        "holdfast, postgres": functools.partial(load, "holdfast", url),
        "langgraph add_messages, postgres": functools.partial(
            load, "langgraph", "add_messages", url
        ),
        "langgraph delta, postgres": functools.partial(load, "langgraph", "delta", url),
        "dbos, postgres": functools.partial(load, "dbos", url),
    }


def _one(system: str, case: str, folder: str, url: str, quick: bool) -> int:
    """Do one case in this process and print its figures as JSON; exit 3 where there is none."""
    cases = systems(url)[system]()
    if case not in cases or (case, system) in UNFIT:
        return 3
    print(json.dumps(cases[case](Path(folder), QUICK if quick else FULL)))
    return 0


def _measure(system: str, case: str, server: PostgresServer, quick: bool) -> dict[str, float] | str:
    """Return the figures of one round, "" where a system has no such case, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as folder:
        url = ""
        if system.endswith("postgres"):
            name = f"case_{Path(folder).name[-8:].lower().replace('-', '_')}"
            server.execute(f'create database "{name}"')
            url = server.url().replace("/postgres?", f"/{name}?").replace("&schema=holdfast", "")
            ((empty,),) = server.execute(f"select pg_database_size('{name}')")
            (Path(folder) / DATABASE).write_text(f"{url} {empty}", encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "bench.side_by_side"]
        command += ["--one", system, case, folder, url, *(["--quick"] if quick else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if url:
            server.execute(f'drop database "{name}" with (force)')
    if done.returncode == 3:
        return ""
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["ended without a word"])[-1]
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def compare(wanted: list[str], rounds: int, quick: bool) -> dict[str, Any]:
    """Return all figures, by case and system."""
    server = PostgresServer(settings=())  # as it is shipped: synced commits
    results: dict[str, Any] = {}
    try:
        for case in wanted:
            print(f"\n{case} {TITLES[case]}", flush=True)
            results[case] = {}
            for system in systems(""):
                first = _measure(system, case, server, quick)
                if first == "":
                    continue
                if isinstance(first, str):
                    results[case][system] = {"error": first}
                    print(f"  {system:34} {first}", flush=True)
                    continue
                again = [_measure(system, case, server, quick) for _ in range(rounds)]
                kept = [each for each in again if isinstance(each, dict)] or [first]
                results[case][system] = _medians(kept)
                shown = ", ".join(f"{k} {number(v)}" for k, v in results[case][system].items())
                print(f"  {system:34} {shown}", flush=True)
    finally:
        server.stop()
    return results


def _faults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, work in faults.FAULTS.items():
        print(f"\n{name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as folder:
            found[name] = work(Path(folder))
        for row in found[name]:
            print(f"  {row['system']:34} {row['outcome']}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    """Run what is asked for; return 1 where a system failed at a case."""
    if arguments[:1] == ["--one"]:
        return _one(*arguments[1:5], quick="--quick" in arguments)  # type: ignore[misc]
    parser = argparse.ArgumentParser(prog="bench.side_by_side", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="B1 to B10, or faults")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    given = parser.parse_args(arguments)
    wanted = [case for case in given.cases if case != "faults"] or (
        list(TITLES) if not given.cases else []
    )
    print(place())
    results = {
        "on": place(),
        "quick": given.quick,
        "rounds": given.rounds,
        "titles": TITLES,
        "work": compare(wanted, given.rounds, given.quick) if wanted else {},
        "faults": _faults() if not given.cases or "faults" in given.cases else {},
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(results, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / "side_by_side.json").write_text(text, encoding="utf-8")
    (RESULTS / "side_by_side.svg").write_text(chart.draw(results), encoding="utf-8")
    failed = [s for by in results["work"].values() for s in by.values() if "error" in s]  # type: ignore[attr-defined]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
