"""Blobs in an object store: put once whoever puts, read anywhere, and failures by name."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import obstore
import pytest

from holdfast.blobs import objects
from holdfast.blobs.choose import check_url, open_blobs
from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.core.errors import Corruption, InvalidInput, NothingWritten, StoreDenied
from holdfast.core.records import digest_id
from holdfast.testing.s3_server import shared_bucket

DATA = b"the quick brown fox " * 10_000
ID = digest_id(DATA)


@pytest.fixture
def place(tmp_path):
    return shared_bucket(tmp_path.name)


@pytest.fixture
def blobs(place):
    return open_blobs(place)


def test_what_is_put_comes_back_from_another_machine(blobs, place):
    blobs.put("default", ID, DATA)
    other = open_blobs(place)
    assert other.get("default", ID) == DATA
    assert other.has("default", ID)
    assert [(entry.tenant, entry.id) for entry in other.entries()] == [("default", ID)]
    assert next(other.entries()).size < len(DATA)


def test_tenants_are_apart_and_what_is_not_there_is_none(blobs):
    blobs.put("one", ID, DATA)
    assert blobs.get("two", ID) is None
    assert not blobs.has("two", ID)


def test_a_removed_blob_is_gone_and_removing_again_is_fine(blobs):
    blobs.put("default", ID, DATA)
    blobs.remove("default", ID)
    blobs.remove("default", ID)
    assert not blobs.has("default", ID)
    assert list(blobs.entries()) == []


def test_of_many_that_put_at_once_one_writes(blobs, monkeypatch):
    modes = []
    put = obstore.put

    def counted(store, path, data, *, mode):
        result = put(store, path, data, mode=mode)
        modes.append(mode)
        return result

    monkeypatch.setattr(objects.obstore, "put", counted)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: blobs.put("default", ID, DATA), range(16)))
    assert modes == ["create"]


def test_putting_again_repairs_a_damaged_copy(blobs):
    blobs.put("default", ID, DATA)
    path = objects._path("default", ID)
    obstore.put(blobs._objects, path, b"damaged")
    with pytest.raises(Corruption):
        blobs.get("default", ID)
    blobs.put("default", ID, DATA)
    assert blobs.get("default", ID) == DATA


def test_putting_an_old_blob_again_makes_it_young(blobs, monkeypatch):
    blobs.put("default", ID, DATA)
    first = next(blobs.entries()).modified
    monkeypatch.setattr(objects, "RENEW_SECONDS", -timedelta(days=1).total_seconds())
    blobs.put("default", ID, DATA)
    assert next(blobs.entries()).modified >= first


def test_a_bucket_that_is_not_there_is_a_failure_that_names_it(place):
    missing = open_blobs(place.replace("s3://holdfast-test", "s3://no-such-bucket"))
    with pytest.raises((NothingWritten, StoreDenied), match="no-such-bucket"):
        missing.put("default", ID, DATA)


def test_a_folder_is_kept_durably_by_our_own_hand(tmp_path):
    assert isinstance(open_blobs(f"file://{tmp_path}"), DirectoryBlobStore)


@pytest.mark.parametrize(
    "url",
    [
        "s3:bucket",
        "ftp://host/x",
        "file:relative",
        "s3://b/x?secret_access_key=x",
        "s3://user:secret@b/x",
    ],
)
def test_a_place_that_cannot_be_meant_and_credentials_in_it_are_refused(url):
    with pytest.raises(InvalidInput):
        check_url(url)


@pytest.mark.parametrize("url", ["gs://bucket/x", "az://container/x?account_name=a"])
def test_the_other_kinds_are_understood(url, monkeypatch):
    monkeypatch.setenv(
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        '{"gcs_base_url":"http://127.0.0.1:1",'
        '"disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}',
    )
    assert open_blobs(url).__class__.__name__ == "ObjectBlobStore"
