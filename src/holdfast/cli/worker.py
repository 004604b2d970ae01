"""The worker: drives whatever has work in a store until it is asked to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.options import Call, command, note
from holdfast.cli.program import load_program, program_option, runtime_options
from holdfast.cli.runs import offered_registry
from holdfast.core.errors import HoldfastError
from holdfast.runtime.runtime import Runtime, open_runtime
from holdfast.runtime.shielding import ended
from holdfast.runtime.worker import SWEEP_SECONDS, Worker
from holdfast.workflows.runs import Runs

STATUS_SECONDS = 2.0
LEAST_TICK_SECONDS = 1.0


@command("worker")
@program_option
@click.option("--model", help="Model: PROVIDER:MODEL, or script:FILE offline.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Sessions that are driven at once.",
)
@click.option(
    "--model-concurrency",
    type=click.IntRange(min=1),
    help="Sessions of one model that are driven at once.",
)
@click.option(
    "--sweep-seconds",
    type=float,
    default=SWEEP_SECONDS,
    show_default=True,
    help="How often the store is searched for work, hints aside.",
)
@click.option(
    "--drain-seconds",
    type=float,
    default=30.0,
    show_default=True,
    help="How long turns may go on after SIGTERM before they are interrupted.",
)
@click.option("--once", is_flag=True, help="Leave when nothing is due any more.")
@click.option("--status-file", type=click.Path(path_type=Path), help="Where to write its health.")
@click.option("--log-json", is_flag=True, help="Log one JSON document per line.")
def worker_command(
    call: Call,
    program: str | None,
    model: str | None,
    concurrency: int,
    model_concurrency: int | None,
    sweep_seconds: float,
    drain_seconds: float,
    once: bool,
    status_file: Path | None,
    log_json: bool,
) -> None:
    """Drive whatever has work in the store: messages, answers, deadlines, turns of dead drivers.

    Any number of workers serve one store, on one machine with SQLite, on many with PostgreSQL.
    SIGTERM lets it finish the turns under way, then leaves; another worker takes up the rest.
    """
    _log(as_json=log_json)
    offered = load_program(program)
    options = runtime_options(offered)
    if model is not None:
        options["model"] = model

    async def work() -> dict[str, Any]:
        async with await open_runtime(call.store, **options) as runtime:
            runs = Runs(runtime, offered_registry(offered))
            worker = Worker(
                runtime,
                concurrency=concurrency,
                model_concurrency=model_concurrency,
                sweep_seconds=sweep_seconds,
            )
            if once:
                await runs.tick()
                await worker.drain()
            else:
                due = asyncio.ensure_future(_tick(runs, max(sweep_seconds, LEAST_TICK_SECONDS)))
                try:
                    await _serve(runtime, worker, drain_seconds, status_file)
                finally:
                    await ended(due)
            return {"driven": worker.status.driven, "sweeps": worker.status.sweeps}

    done = asyncio.run(work())
    call.answer(done, f"{done['driven']} drives, {done['sweeps']} sweeps")


async def _serve(
    runtime: Runtime, worker: Worker, drain_seconds: float, status_file: Path | None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)  # a second one ends the process at once

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask_to_stop, number)
    note(f"worker on {runtime.store.flags.url}: agents {', '.join(runtime.agents)}")
    reporting = asyncio.ensure_future(_report(worker, status_file))
    try:
        await worker.run(stop, drain_seconds=drain_seconds)
    finally:
        reporting.cancel()


async def _tick(runs: Runs, seconds: float) -> None:
    """Take up workflow runs whose time has come, which no answer and no message tells of."""
    loop, took = asyncio.get_running_loop(), 0.0
    while True:
        # A store that takes long to look through is looked through less often.
        await asyncio.sleep(max(seconds, 20 * took))
        began = loop.time()
        try:
            await runs.tick()
        except HoldfastError as error:
            logging.getLogger("holdfast.workflows").warning("runs were not taken up: %s", error)
        took = loop.time() - began


async def _report(worker: Worker, file: Path | None) -> None:
    """Write a worker's health where a probe can read it, for as long as it lives."""
    while file is not None:
        status = worker.status
        document = {
            "healthy": status.healthy,
            "ready": status.healthy and status.sweeps > 0,
            "driving": status.driving,
            "driven": status.driven,
            "sweeps": status.sweeps,
        }
        fresh = file.with_name(file.name + ".new")
        await asyncio.to_thread(fresh.write_text, json.dumps(document))
        await asyncio.to_thread(fresh.replace, file)
        await asyncio.sleep(STATUS_SECONDS)


class _JsonFormatter(logging.Formatter):
    """Log records as documents, for machines that collect them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        document = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document)


def _log(*, as_json: bool) -> None:
    logger = logging.getLogger("holdfast")
    logger.setLevel(logging.INFO)
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonFormatter())
        logger.handlers = [handler]
