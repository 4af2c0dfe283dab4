import time
import traceback

import pyarrow as pa
import pytest

from gnsq.spark.spool.storage import LocalStore, open_store


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "root")


def read(store, path):
    with store.open(path) as file:
        return file.read()


def test_put_file_is_listed_and_read(store):
    store.make_directory("a")
    store.put("a/one", b"1")
    store.put("a/two", pa.py_buffer(b"22"))

    assert sorted(store.list()) == ["a/one", "a/two"]
    assert read(store, "a/two") == b"22"


def test_put_replaces_a_file(store):
    store.make_directory("")
    store.put("one", b"before")
    store.put("one", b"after")

    assert store.list() == ["one"]
    assert read(store, "one") == b"after"


def test_empty_file_is_listed(store):
    store.make_directory("")
    store.put("empty", b"")

    assert store.list() == ["empty"]


def test_missing_directory_is_listed_as_empty(store):
    assert store.list() == []


def test_remove_and_rename_of_missing_files_do_nothing(store):
    store.make_directory("a")

    store.remove("a/one", "a/two")
    store.remove()
    store.remove_directory("b")

    assert not store.rename("a/one", "a/two")

    assert store.list() == []


def test_renamed_file_has_its_new_name_only(store):
    store.make_directory("a")
    store.put("a/one", b"1")

    assert store.rename("a/one", "a/two")

    assert store.list() == ["a/two"]
    assert (store.size("a/one"), store.size("a/two")) == (None, 1)


def test_rename_that_fails_raises(store):
    store.make_directory("a")
    store.put("a/one", b"1")

    with pytest.raises(OSError, match="gone"):
        store.rename("a/one", "a/one/gone")


def test_remove_directory_keeps_a_directory_with_files(store, tmp_path):
    for name in ("a", "b"):
        store.make_directory(name)
    store.put("a/one", b"1")

    store.remove_directory("a")
    store.remove_directory("b")

    assert (tmp_path / "root" / "a").exists()
    assert not (tmp_path / "root" / "b").exists()


def test_put_without_a_root_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        LocalStore(tmp_path / "gone").put("one", b"1")


def test_put_makes_its_directory_again(tmp_path):
    store = LocalStore(tmp_path)

    store.put("a/one", b"1")

    assert store.list() == ["a/one"]


def test_abandoned_directories_and_temporary_files_go(tmp_path):
    store = LocalStore(tmp_path)
    for name in ("empty", "used", "killed"):
        store.make_directory(name)
    store.put("used/one", b"1")
    (tmp_path / "killed" / ".tmp-one").write_bytes(b"1")

    store.remove_abandoned(0.0)
    assert len(store.list()) == 2
    store.remove_abandoned(time.time() + 1)

    assert store.list() == ["used/one"]
    assert [path.name for path in tmp_path.iterdir() if path.name != "killed"] == ["used"]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param("s3a://bucket/dir", "write s3:", id="Hadoop's name"),
        pytest.param("file://host/dir", "names a host: write file:///", id="host"),
    ],
)
def test_location_of_another_meaning_is_refused(location, words):
    with pytest.raises(ValueError, match=words):
        open_store(location)


def test_failed_put_leaves_the_old_file(tmp_path, disk):
    store = LocalStore(tmp_path)
    store.put("one", b"before")

    disk.fail("one", OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        store.put("one", b"after")

    assert (tmp_path / "one").read_bytes() == b"before"


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_paths_and_file_uris_are_local(tmp_path, prefix):
    store = open_store(f"{prefix}{tmp_path}")

    assert isinstance(store, LocalStore)
    assert store.root == tmp_path


@pytest.mark.parametrize(
    ("location", "words"),
    [pytest.param(" ", "is empty", id="empty"), pytest.param("hdfs://host/x", "is not an object store", id="HDFS")],
)
def test_bad_location_is_an_error(location, words):
    with pytest.raises(ValueError, match=words):
        open_store(location)


@pytest.mark.parametrize("location", ["ftp://KEY:SECRET@host/x", "s3://KEY:SECRET@bucket/x?nonsense=1"])
def test_credentials_are_in_no_error(location):
    with pytest.raises(ValueError, match=r"\*\*\*@") as caught:
        open_store(location)

    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
