"""`holdfast doctor` and `config`: the machine, the store, and the settings with their origins."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.cli.options import Call, command
from holdfast.cli.tables import Column, screen_width, table
from holdfast.core.errors import HoldfastError, StoreNotFound
from holdfast.stores.choose import DATABASES, find_folder, open_store, store_url
from holdfast.stores.port import Inspectable, SessionFilter
from holdfast.views.sessions import all_sessions

EXTRAS = {
    "models": "pydantic_ai",
    "prices": "genai_prices",
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google.genai",
    "bedrock": "boto3",
    "monty": "pydantic_monty",
    "postgres": "psycopg",
    "objects": "obstore",
}


@command("doctor")
def doctor_command(call: Call) -> int:
    """Check this machine and this store: engines, confinement, leases, interrupted sessions."""
    document = asyncio.run(_examine(call))
    lines = list(_lines("", document))
    call.answer(document, "\n".join(lines))
    return 1 if document["problems"] else 0


async def _examine(call: Call) -> dict[str, Any]:
    problems: list[str] = []
    kernel = await auto_kernel(problems)
    store = await _store(call, problems)
    return {
        "holdfast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "sqlite": _sqlite_version(),
        "confinement": _confinement(),
        "kernel": kernel,
        "extras": {name: _installed(module) for name, module in EXTRAS.items()},
        "store": store,
        "problems": problems,
    }


def _sqlite_version() -> str:
    import apsw

    return apsw.sqlite_lib_version()


def _confinement() -> dict[str, Any]:
    from holdfast.kernels.confinement import available

    return available().to_record()


async def auto_kernel(problems: list[str]) -> dict[str, Any]:
    """Return which engine `auto` takes here."""
    from holdfast.kernels.choose import Kernels

    kernels = Kernels()
    try:
        choice = await kernels.choose("auto")
        return {"auto": choice.name, "confinement": choice.confinement}
    except HoldfastError as error:
        problems.append(str(error))
        return {"auto": None, "confinement": None}
    finally:
        await kernels.close()


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


async def _store(call: Call, problems: list[str]) -> dict[str, Any]:
    url, origin = store_url(call.store)
    kind, _, place = url.partition(":")
    is_database = kind in DATABASES
    report: dict[str, Any] = {
        "kind": kind,
        "place": _without_password(url) if is_database else place,
        "origin": origin,
        # Whether a database has a store is found out by opening it.
        "exists": is_database or kind == "memory" or await asyncio.to_thread(Path(place).exists),
        "sessions": 0,
        "leases": [],
        "interrupted": [],
    }
    if not report["exists"]:
        return report
    try:
        store = await open_store(call.store, create=False)
    except HoldfastError as error:
        problems.append(str(error))
        report["exists"] = report["exists"] and not isinstance(error, StoreNotFound)
        return report
    try:
        if isinstance(store, Inspectable):
            report["database"], found = await store.inspect()
            problems += found
        async for info in all_sessions(store):
            report["sessions"] += 1
            try:
                await store.load_state(info.id)
            except HoldfastError as error:
                problems.append(str(error))
            if info.status == "interrupted":
                report["interrupted"].append(info.id)
        async for info in all_sessions(store, SessionFilter(status="running")):
            lease = await store.lease_of(info.id)
            if lease is not None:
                report["leases"].append(
                    {"session": info.id, "holder": lease.holder, "live": lease.live}
                )
    finally:
        await store.close()
    return report


def _without_password(url: str) -> str:
    from holdfast.stores.postgres.location import read_location

    return read_location(url).shown


def _lines(lead: str, document: dict[str, Any]) -> Any:
    for key, value in document.items():
        if isinstance(value, dict):
            yield f"{lead}{key}:"
            yield from _lines(lead + "  ", value)
        elif isinstance(value, list):
            yield f"{lead}{key}: {'none' if not value else ''}".rstrip()
            for item in value:
                shown = item if not isinstance(item, dict) else " ".join(map(str, item.values()))
                yield f"{lead}  - {shown}"
        else:
            yield f"{lead}{key}: {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


@command("config")
def config_command(call: Call) -> None:
    """Show every setting of a new session and where its value comes from."""
    from holdfast.runtime.settings import CONFIG_FILE, PREFIX, resolve

    folder = find_folder(Path.cwd())
    resolved = resolve(folder=folder)
    url, origin = store_url(call.store)
    settings = {
        name: {"value": value, "origin": resolved.origins[name]}
        for name, value in resolved.settings.to_record().items()
    }
    file = None if folder is None else folder / CONFIG_FILE
    document = {
        "config_file": str(file) if file is not None and file.exists() else None,
        "store": {"value": url, "origin": origin},
        "settings": settings,
    }
    rows = [("store", url, origin)]
    rows += [(name, str(item["value"]) or "-", item["origin"]) for name, item in settings.items()]
    columns = (Column("SETTING"), Column("VALUE", least=10), Column("FROM", least=8))
    text = table(columns, rows, screen_width())
    call.answer(document, f"{text}\n\nSet by flag, {PREFIX}NAME, or {CONFIG_FILE} in .holdfast.")
