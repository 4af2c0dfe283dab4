"""Tables on S3: moto, and a proxy before it that behaves as other stores do."""

import datetime as dt

import pyarrow as pa
import pytest
from pyarrow import fs

from gnsq.spark.errors import JobFailed
from gnsq.spark.pipeline.delta import BatchIdentity, Table, check_store
from gnsq.spark.pipeline.maintenance import maintain_table
from gnsq.spark.spool.storage import open_store
from tests.spark.pipeline.helpers import delta_table, table_rows, written
from tests.spark.pipeline.test_readers import TEXTS

SCHEMA = pa.schema([("event_time", pa.timestamp("us", tz="UTC")), ("n", pa.int32())])
TIME = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def location(s3, tmp_path):
    return s3.location(f"bucket/{tmp_path.name}/archive", "KEY:SECRET@")


def table(location, schema=SCHEMA):
    return Table("archive", location, schema, ["_day"], time="event_time")


def files(table, batch_id, *numbers):
    return written(table, batch_id, [{"event_time": TIME, "n": number} for number in numbers])


def claimed(location):
    archive = table(location)
    archive.claim("ours", take_over=False)
    return archive


def put(archive, batch_id, *numbers):
    return archive.commit(BatchIdentity("ours", batch_id, 1, 1), files(archive, batch_id, *numbers))


@pytest.mark.subprocess
def test_batches_are_committed_once_also_by_a_handle_that_is_older(location):
    archive = claimed(location)
    other = table(location)
    other.status()
    put(archive, 0, 1, 2)
    put(other, 1, 3)

    again = claimed(location)

    assert not put(again, 1, 3)
    assert sorted(row["n"] for row in table_rows(location)) == [1, 2, 3]
    status = again.status()
    assert (status.rows, status.files, delta_table(location).version()) == (3, 2, 2)
    with pytest.raises(JobFailed, match="archive belongs to the checkpoint ours") as error:
        table(location).claim("theirs", take_over=False)
    assert "SECRET" not in str(error.value)


@pytest.mark.subprocess
def test_texts_that_rows_are_divided_by_are_read_before_and_after_a_merge(location):
    schema = pa.schema([("n", pa.int64()), ("key", pa.string())])
    archive = Table("archive", location, schema, ["key"])
    archive.claim("ours", take_over=False)
    for batch_id in range(2):
        rows = [{"n": n, "key": key} for n, key in enumerate(TEXTS)]
        archive.commit(BatchIdentity("ours", batch_id, 1, 1), written(archive, batch_id, rows))
    expected = [{"n": n, "key": key} for n, key in enumerate(TEXTS) for _ in range(2)]

    assert sorted(table_rows(location), key=lambda row: row["n"]) == expected
    assert maintain_table(location, retention=0, quiet=0) == 2 * len(TEXTS)
    assert sorted(table_rows(location), key=lambda row: row["n"]) == expected
    assert len([path for path in open_store(location).list() if "/part-" in path]) == len(TEXTS)


@pytest.mark.subprocess
def test_tasks_and_driver_take_the_same_credentials_from_a_profile(proxy, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("[work]\naws_access_key_id=A\naws_secret_access_key=B\naws_session_token=C\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))

    put(claimed(proxy.location(f"bucket/{tmp_path.name}/archive")), 0, 1)

    assert proxy.credentials == {("A", "us-east-1", "C")}


# --- stores that lack something


@pytest.mark.subprocess
def test_store_with_conditional_put_is_taken_and_left_as_it_was_and_one_without_is_refused(proxy, tmp_path):
    location = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")

    check_store(location)

    bucket, _ = fs.FileSystem.from_uri(location)
    # Directories, too: on S3 an empty one is an object.
    assert bucket.get_file_info(fs.FileSelector(f"bucket/{tmp_path.name}", recursive=True, allow_not_found=True)) == []

    proxy.has_conditional_put = False
    with pytest.raises(JobFailed, match=r"^setting output s3://\*\*\*@bucket/\S+: the store ignores .*If-None-Match"):
        check_store(location)


@pytest.mark.subprocess
def test_credentials_that_expire_are_told_and_nothing_is_lost_after_they_are_renewed(proxy, tmp_path):
    archive = claimed(proxy.location(f"bucket/{tmp_path.name}/archive", "KEY:SECRET@"))
    put(archive, 0, 1)
    written = files(archive, 1, 2)
    words = r"^table s3://\*\*\*@bucket/\S+/archive: [^\n]*[Ee]xpired[^\n]*: renew the credentials\. Nothing is lost"

    proxy.has_expired = True
    with pytest.raises(JobFailed, match=words):
        files(archive, 1, 2)
    with pytest.raises(JobFailed, match=words):
        archive.commit(BatchIdentity("ours", 1, 1, 1), written)
    proxy.has_expired = False

    assert put(archive, 1, 2)
    assert sorted(row["n"] for row in table_rows(archive.location)) == [1, 2]


@pytest.mark.parametrize(
    "place", ["s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1", "abfs://nothing"]
)
@pytest.mark.slow
def test_store_that_can_not_be_used_is_told_in_one_line(place):
    with pytest.raises((JobFailed, ValueError), match=r"^(table|output) \S*(bucket/x|nothing)[^\n]*$") as error:
        table(place).claim("ours", take_over=False)

    assert "\x1b" not in str(error.value)


# More than the 0.4 s after which the libraries' own three tries end.
MANY = 8


@pytest.mark.subprocess
@pytest.mark.parametrize(("fault", "times"), [("refuses", MANY), ("loses", 1)], ids=["busy", "lost answer"])
def test_store_that_is_busy_for_a_while_or_whose_answer_was_lost_has_each_batch_once(proxy, tmp_path, fault, times):
    archive = table(proxy.location(f"bucket/{tmp_path.name}/archive", "KEY:SECRET@"))
    setattr(proxy, fault, times)
    archive.claim("ours", take_over=False)
    setattr(proxy, fault, times)
    written = files(archive, 0, 1)
    setattr(proxy, fault, times)

    archive.commit(BatchIdentity("ours", 0, 1, 1), written)
    assert put(archive, 1, 2)

    assert sorted(row["n"] for row in table_rows(archive.location)) == [1, 2]
    setattr(proxy, fault, times)
    assert archive.status().rows == 2
