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


def test_put_file_is_listed_and_read(store, tmp_path):
    assert store.list() == []
    store.make_directory("")
    # The directory is made, if it is not there.
    store.put("a/one", b"before")
    store.put("a/one", b"after")
    store.put("a/two", pa.py_buffer(b"22"))
    store.put("empty", b"")

    assert sorted(store.list()) == ["a/one", "a/two", "empty"]
    assert (read(store, "a/one"), read(store, "a/two")) == (b"after", b"22")
    with pytest.raises(FileNotFoundError):
        LocalStore(tmp_path / "gone").put("one", b"1")


def test_renamed_file_has_its_new_name_only(store):
    store.make_directory("a")
    store.put("a/one", b"1")

    assert store.rename("a/one", "a/two")

    assert store.list() == ["a/two"]
    assert (store.size("a/one"), store.size("a/two")) == (None, 1)
    with pytest.raises(OSError, match="gone"):
        store.rename("a/two", "a/two/gone")
    # What is missing is neither renamed nor removed.
    assert not store.rename("a/one", "a/three")
    store.remove("a/one", "a/two")
    store.remove_directory("b")
    assert store.list() == []


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
    [
        pytest.param("s3a://bucket/dir", "write s3:", id="Hadoop's name"),
        pytest.param("file://host/dir", "names a host: write file:///", id="host"),
        pytest.param(" ", "is empty", id="empty"),
        pytest.param("hdfs://host/x", "is not an object store", id="HDFS"),
    ],
)
def test_location_that_can_not_be_used_is_an_error(location, words):
    with pytest.raises(ValueError, match=words):
        open_store(location)


@pytest.mark.parametrize("location", ["ftp://KEY:SECRET@host/x", "s3://KEY:SECRET@bucket/x?nonsense=1"])
def test_credentials_are_in_no_error(location):
    with pytest.raises(ValueError, match=r"\*\*\*@") as caught:
        open_store(location)

    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
