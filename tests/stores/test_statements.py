"""Every statement that the shared plans name is in the query file of every SQL database."""

import re
from pathlib import Path

import pytest

from holdfast.stores import relational
from holdfast.stores.postgres.database import migrations, statements
from holdfast.stores.sqlite.database import SQL

NAMED = re.compile(r'(?:Query|Change|ChangeMany|first)\(\s*"(\w+)"')


def named():
    folder = Path(relational.__file__).parent
    return {name for file in folder.glob("*.py") for name in NAMED.findall(file.read_text())}


@pytest.mark.parametrize("known", [SQL, statements("holdfast")], ids=["sqlite", "postgres"])
def test_every_statement_of_the_plans_is_there(known):
    assert named() - known.keys() == set()


def test_migrations_are_numbered_without_gap():
    assert [migration.version for migration in migrations()] == [*range(1, len(migrations()) + 1)]
