"""A spool on S3: what holds on other object stores too, and what it costs."""

import logging
import sys

import gevent
import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql.types import StructType

from gnsq.concurrency.io_thread import BlockingIOThread
from gnsq.spark.datasource import NsqDataSource
from gnsq.spark.errors import SpoolError
from gnsq.spark.offsets import Segment
from gnsq.spark.spool.objectstore import PART_SIZE
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from tests.kit import run
from tests.spark.helpers import bodies_of, columns, is_empty, numbered, publish, wait_for
from tests.spark.source.test_reader import read

pytestmark = pytest.mark.subprocess


@pytest.fixture
def remote(location):
    return Spool(location)


def everything_below(location):
    filesystem, path = fs.FileSystem.from_uri(location)
    return [info.path for info in filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))]


def requests_of(s3, before, count):
    """The methods of the requests since noted() has returned a number, of which so many are to come."""
    wait_for(lambda: len(s3.requests) >= before + count)
    return [request.split()[0] for request in s3.requests[before:]]


def test_segment_is_one_request_to_write_and_two_list_the_spool_and_a_prune_lists_nothing(s3, remote, location):
    writer = remote.writer("r1")
    before = s3.noted()

    writer.write(1, columns(1, 2))
    assert [segment.rows for segment in remote.listing().segments] == [2]

    assert requests_of(s3, before, 3) == ["PUT", "GET", "GET"]
    assert bodies_of(remote) == [b"body 1", b"body 2"]
    writer.write(2, columns(2))
    writer.write(3, columns(3))
    listing, before = remote.listing(), s3.noted()

    remote.prune(listing, {"r1": 2})

    assert requests_of(s3, before, 1) == ["POST"]
    assert bodies_of(remote) == [b"body 3"]
    # Nothing is left of a receiver that ended.
    writer.close(3)
    remote.prune(remote.listing(), {"r1": 3})
    assert everything_below(location) == []


def test_1001_files_are_deleted_by_two_requests_and_names_after_one_are_listed_by_one(s3, location):
    store = open_store(location)
    for path in (*(Segment("r1", number, 1, 1).path for number in (2, 3)), Segment("r10", 1, 1, 1).path):
        store.put(path, b"x")
    store.put("r1/closed.json", b"{}")
    before = s3.noted()
    assert store.names("r1", after="000000000003") == {"000000000003-1-1.arrow", "closed.json"}
    assert requests_of(s3, before, 1) == ["GET"]
    assert store.directories() == {"r1", "r10"}
    assert not store.rename("r1/one", "r1/two")
    before = s3.noted()

    store.remove("r1/closed.json", *(Segment("r1", number, 1, 1).path for number in range(1, 1001)))

    # The server may still note an earlier request.
    deletions = wait_for(
        lambda: len(found := [each for each in s3.requests[before:] if each.startswith("POST")]) >= 2 and found
    )
    assert len(deletions) == 2
    assert store.list() == [Segment("r10", 1, 1, 1).path]


def test_directory_that_pyarrow_has_made_is_no_file(location):
    filesystem, path = fs.FileSystem.from_uri(location)
    filesystem.create_dir(f"{path}/r1")
    store = open_store(location)

    assert store.directories() == {"r1"}
    assert store.names("r1") == set()
    store.remove_directory("r1")
    assert store.directories() == set()


def test_file_of_any_name_is_found_by_pyarrow_too(location):
    name = "day=2026-01-01T00:00/ü %20.txt"
    filesystem, path = fs.FileSystem.from_uri(location)
    store = open_store(location)

    store.put(name, b"1")

    assert store.list() == [name]
    assert store.read(name).to_pybytes() == b"1"
    assert filesystem.get_file_info(f"{path}/{name}").size == 1
    with store.open(name) as file:
        assert file.read() == b"1"


def test_authority_for_tls_is_read_from_its_file(tmp_path):
    uri = "s3://KEY:SECRET@bucket/dir?region=us-east-1&tls_verify_certificates=false&tls_ca_file_path="

    with pytest.raises(FileNotFoundError, match=r"none\.pem"):
        open_store(f"{uri}{tmp_path}/none.pem")


def test_large_object_is_sent_in_parts_and_read_as_it_was_written(s3, location):
    store = open_store(location)
    data = bytes(range(256)) * (PART_SIZE // 256 + 1)
    before = s3.noted()

    store.put("large", pa.py_buffer(data))

    assert requests_of(s3, before, 4) == ["POST", "PUT", "PUT", "POST"]
    assert store.read("large").to_pybytes() == data
    assert store.size("large") == len(data)


def test_no_credentials_are_an_error_that_says_what_to_set(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    with pytest.raises(OSError, match="no credentials of AWS found: set AWS_ACCESS_KEY_ID"):
        open_store(s3.location("bucket/spool")).list()


FORKS = """
import os, sys
from gnsq.spark.spool.storage import open_store

store = open_store(sys.argv[1])
store.list()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    store.list()
except OSError as error:
    print(error, flush=True)
    # At a usual exit pyarrow may wait for threads that a forked child lacks.
    os._exit(42)
"""


def test_child_of_a_fork_is_refused_in_words(location):
    # In a process that has no threads of other tests.
    done = run(sys.executable, "-c", FORKS, location)

    assert done.returncode == 42, done.stderr
    assert "can't be used in a process forked from one that has used it" in done.stdout


def test_store_works_in_the_thread_of_a_hub(hub, location):
    store = open_store(location)

    def put():
        io_thread, turns = BlockingIOThread(), []
        ticker = gevent.spawn(lambda: [(turns.append(None), gevent.sleep(0)) for _ in range(1000)])
        for number in range(10):
            io_thread.call(store.put, f"r1/{number}", b"x")
        ticker.kill()
        io_thread.close()
        return len(turns)

    # The hub has run other greenlets meanwhile.
    assert hub.call(put) > 10
    assert len(store.list()) == 10


def test_store_that_is_busy_for_a_while_loses_nothing(proxy, tmp_path):
    spool = Spool(proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@"))
    # More than the 0.4 s after which the libraries' own three tries end.
    proxy.refuses = 8
    spool.writer("r1").write(1, columns(1))
    proxy.refuses = 8
    listing = spool.listing()
    proxy.refuses = 8
    assert bodies_of(spool) == [b"body 1"]
    proxy.refuses = 8
    spool.prune(listing, {"r1": 1})

    assert bodies_of(spool) == []


@pytest.mark.slow
def test_file_that_pyarrow_reads_is_asked_for_as_long(proxy, tmp_path):
    store = open_store(proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@"))
    store.put("one", b"1")
    # More than the 6 s after which pyarrow gives up by itself.
    proxy.refuses = 9

    with store.open("one") as file:
        assert file.read() == b"1"


def test_missing_bucket_is_an_error(s3, monkeypatch, fakensqd):
    options = {"spool": s3.location("nobucket/spool", "KEY:SECRET@"), "nsqdTcpAddresses": fakensqd.tcp_address}
    reader = NsqDataSource({"topic": "clicks", "channel": "archive", **options}).streamReader(StructType())

    with pytest.raises(
        SpoolError, match=r"spool s3://\*\*\*@nobucket/spool can't be used: .*give a directory"
    ) as caught:
        reader.prepareForTriggerAvailableNow()

    assert "SECRET" not in str(caught.value)


def test_store_that_refuses_requests_does_not_quarantine_a_segment(proxy, remote, location, tmp_path, caplog):
    remote.writer("r1").write(1, columns(1, 2))
    [segment] = remote.listing().segments
    proxy.has_expired = True
    uri = proxy.location(f"bucket/{tmp_path.name}", "KEY:SECRET@")

    with pytest.raises(OSError, match="ExpiredToken"):
        Spool(uri).read(segment)
    with pytest.raises(OSError, match="ExpiredToken") as caught:
        open_store(uri).remove(*(Segment("r1", number, 1, 1).path for number in range(1, 1001)))
    assert len(str(caught.value)) < 1000

    # One that is damaged is.
    open_store(location).put(segment.path, b"broken")
    assert bodies_of(remote) == remote.read(segment) == []
    assert remote.listing().rows_quarantined == 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_query_with_a_spool_on_s3_reads_every_message(fakensqd, s3, location, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    publish(fakensqd, "clicks", numbered(3000))
    schema = StructType().add("body", "binary")
    uri = s3.location(f"bucket/{tmp_path.name}/spool", "KEY:SECRET@")
    given = {"spool": uri, "spoolOwner": "s3://KEY:SECRET@bucket/checkpoint", "maxRowsPerBatch": "1000"}
    given |= {"nsqdTcpAddresses": fakensqd.tcp_address, "nsqdHttpAddresses": fakensqd.http_address}
    stream = NsqDataSource({"topic": "clicks", "channel": "archive", **given}).streamReader(schema)
    stream.prepareForTriggerAvailableNow()

    start, bodies, texts = stream.initialOffset(), [], []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        texts += [repr(stream.partitions(start, end)), repr(stream.reportLatestOffset())]
        bodies += [row["body"] for row in read(stream, start, end)]
        stream.commit(start)
        start = end
    stream.commit(end)
    # The segments of a batch are deleted after the next one, here an empty one.
    stream.latestOffset(end, stream.getDefaultReadLimit())
    stream.stop()

    assert sorted(bodies) == numbered(3000)
    assert is_empty(fakensqd, "clicks", "archive")
    texts.append(open_store(location).open("owner.json").read().decode())
    assert "SECRET" not in "".join(texts) + caplog.text
    assert list(Spool(location).listing().segments) == []
