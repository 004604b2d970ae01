"""What an operator wants to know of a PostgreSQL store: version, jobs, leases, sizes."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import Corruption
from holdfast.stores.owner import read_heartbeat
from holdfast.stores.postgres.database import migrations
from holdfast.stores.relational.plan import Plan, Query, first


def inspect(schema: str) -> Plan[tuple[dict[str, Any], list[str]]]:
    """Return a report, and what of it is a problem."""
    problems: list[str] = []
    (number,) = yield from first("server_version")
    applied = yield Query("list_migrations")
    report: dict[str, Any] = {
        "server": f"{number // 10000}.{number % 10000}",
        "migrations": f"{len(applied)} of {len(migrations())}",
    }
    jobs = yield from first("count_jobs")
    report["jobs"] = dict(zip(("waiting", "scheduled", "running", "stuck"), jobs, strict=True))
    if report["jobs"]["stuck"]:
        problems.append(
            f"{report['jobs']['stuck']} jobs belong to workers that are gone; a running worker "
            "hands them out again within a minute"
        )
    report["workers"] = (yield from first("count_workers"))[0]
    expired = []
    for owner, sessions, *_ in (yield Query("leases_by_owner")):
        found = yield from first("get_owner", owner)
        try:
            alive = found is not None and read_heartbeat(found).is_alive()
        except Corruption:
            alive = False
        if not alive:
            expired.append(f"{owner}: {sessions}")
    report["expired_leases"] = expired
    if expired and not report["workers"]:
        problems.append(
            "sessions have open work whose driver is gone, and no worker runs; start one, or "
            "resume them"
        )
    report["tables"] = [
        {"table": name, "rows": rows, "bytes": size, "index_bytes": index}
        for name, rows, size, index in (yield Query("table_sizes", (schema,)))
    ]
    connections = yield from first("count_connections")
    report["connections"] = dict(zip(("ours", "all", "limit"), connections, strict=True))
    if report["connections"]["all"] > 0.9 * report["connections"]["limit"]:
        problems.append(
            "the server is nearly out of connections; lower pool=… in the URLs, or put a pooler "
            "before it"
        )
    return report, problems
