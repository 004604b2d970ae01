"""Which store is used: the one named, then the environment's, then the nearest, then a new one."""

import threading

import pytest

from holdfast.core.errors import InvalidInput, StoreFailed, StoreNotFound, StoreUnsafe
from holdfast.core.facts import SessionStarted
from holdfast.stores.choose import open_store, store_url


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)


def test_a_named_store_wins_over_the_environment_and_over_what_is_near(tmp_path, monkeypatch):
    (tmp_path / ".holdfast").mkdir()
    assert store_url(start=tmp_path) == (f"sqlite:{tmp_path}/.holdfast", "found")
    monkeypatch.setenv("HOLDFAST_STORE", f"files:{tmp_path}/env")
    assert store_url(start=tmp_path) == (f"files:{tmp_path}/env", "$HOLDFAST_STORE")
    assert store_url(tmp_path / "named", tmp_path) == (f"sqlite:{tmp_path}/named", "given")


def test_the_nearest_ancestors_store_is_found_from_any_folder_below(tmp_path):
    (tmp_path / ".holdfast").mkdir()
    near, below = tmp_path / "a", tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    assert store_url(start=below)[0] == f"sqlite:{tmp_path}/.holdfast"
    (near / ".holdfast").mkdir()
    assert store_url(start=below)[0] == f"sqlite:{near}/.holdfast"


def test_a_file_of_that_name_is_no_store(tmp_path):
    (tmp_path / ".holdfast").write_text("")
    (tmp_path / "a").mkdir()
    url, origin = store_url(start=tmp_path / "a")
    assert (url, origin) == (f"sqlite:{tmp_path}/a/.holdfast", "default")


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_store_is_opened_by_its_own_url_and_by_its_plain_path(tmp_path, kind):
    store = await open_store(f"{kind}:{tmp_path}/here")
    await store.create_session("s-1", SessionStarted())
    url = store.flags.url
    await store.close()
    for name in (url, tmp_path / "here"):
        again = await open_store(name)
        assert (again.flags.name, (await again.load_state("s-1")).seq) == (kind, 1)
        await again.close()


async def test_a_memory_store_is_a_new_one_each_time():
    store = await open_store("memory:")
    await store.create_session("s-1", SessionStarted())
    assert (await (await open_store("memory:")).list_sessions()).sessions == ()


@pytest.mark.parametrize("name", ["sqlite:", "files:", "postgres:x", "redis://x"])
def test_a_name_that_is_no_store_is_refused_with_what_would_be(name):
    with pytest.raises(InvalidInput, match="PATH"):
        store_url(name)


async def test_looking_does_not_create(tmp_path):
    with pytest.raises(StoreNotFound, match="HOLDFAST_STORE"):
        await open_store(start=tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["sqlite:", "files:", ""])
async def test_looking_makes_no_store_of_a_folder_that_is_there(tmp_path, kind):
    with pytest.raises(StoreNotFound):
        await open_store(f"{kind}{tmp_path}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_runs_is_not_taken_for_a_store_of_files(tmp_path):
    (tmp_path / "runs").mkdir()
    assert store_url(tmp_path)[0] == f"sqlite:{tmp_path}"


@pytest.mark.parametrize(("kind", "other"), [("sqlite", "files"), ("files", "sqlite")])
async def test_a_place_with_a_store_of_another_kind_is_refused(tmp_path, kind, other) -> None:
    """Opened as another kind it would look empty, and be taken for that kind from then on."""
    place = tmp_path / "here"
    await (await open_store(f"{kind}:{place}")).close()
    with pytest.raises(StoreUnsafe, match=f"of kind '{kind}'"):
        await open_store(f"{other}:{place}", create=False)
    assert store_url(place)[0] == f"{kind}:{place}"


@pytest.mark.parametrize("text", ["", "a\0b", "files:a\0b"])
async def test_what_is_no_path_is_refused_and_makes_nothing(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="names no place"):
        await open_store(text)
    assert not any(tmp_path.iterdir())


def _refuse(thread):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_machine_without_threads_is_a_failure_of_the_store(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    with pytest.raises(StoreFailed, match="ulimit"):
        await open_store(f"{kind}:{tmp_path}/new")
    monkeypatch.undo()
