"""`doctor` and `gc --older-than` over PostgreSQL: what an operator asks of a database."""

import asyncio
import json

from click.testing import CliRunner

from holdfast.cli.main import holdfast as program
from holdfast.core.facts import SessionStarted
from holdfast.stores.choose import open_store
from holdfast.stores.postgres.location import read_location
from holdfast.testing.postgres_server import shared_server, url_of


def run(url, *words):
    done = CliRunner().invoke(program, ["--store", url, *words, "--json"])
    return json.loads(done.stdout)


def make(url, *names):
    async def work():
        store = await open_store(url)
        for name in names:
            await store.create_session(name, SessionStarted())
        await store.close()

    asyncio.run(work())


def test_doctor_reports_the_database(tmp_path):
    url = url_of(tmp_path)
    make(url, "s-1")
    document = run(url, "doctor")
    database = document["store"]["database"]
    assert int(database["server"].split(".")[0]) >= 14
    assert database["jobs"] == {"waiting": 0, "scheduled": 0, "running": 0, "stuck": 0}
    assert database["expired_leases"] == []
    assert database["pool"]["limit"] == 8
    assert {"events", "sessions"} <= {row["table"] for row in database["tables"]}
    assert document["store"]["sessions"] == 1


def test_doctor_names_stuck_jobs_and_leases_of_the_dead(tmp_path):
    url = url_of(tmp_path)
    make(url, "s-1")
    schema = read_location(url).schema
    shared_server().execute(
        f"INSERT INTO {schema}.procrastinate_jobs (queue_name, task_name, status) "
        "VALUES ('q', 'wake', 'doing')"
    )
    shared_server().execute(f"UPDATE {schema}.sessions SET owner = 'gone'")
    document = run(url, "doctor")
    assert document["store"]["database"]["jobs"]["stuck"] == 1
    assert document["store"]["database"]["expired_leases"] == ["gone: 1"]
    assert len(document["problems"]) >= 2


def test_doctor_shows_no_password_and_says_that_there_is_no_store(tmp_path):
    url = url_of(tmp_path, password="secret")
    document = run(url, "doctor")
    assert document["problems"]
    assert "secret" not in json.dumps(document)
    assert not document["store"]["exists"]


def test_old_sessions_at_rest_are_deleted_and_young_ones_kept(tmp_path):
    url = url_of(tmp_path)
    make(url, "old", "young")
    schema = read_location(url).schema
    shared_server().execute(
        f"UPDATE {schema}.sessions SET updated_at = '2020-01-01T00:00:00.000000Z' WHERE id = 'old'"
    )
    assert run(url, "gc", "--older-than", "30", "--dry-run")["sessions"] == ["old"]
    assert run(url, "gc", "--older-than", "30")["sessions"] == ["old"]
    assert run(url, "gc", "--older-than", "30")["sessions"] == []
