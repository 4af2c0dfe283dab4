"""A spool on S3: what holds on other object stores too, and what it costs."""

import logging
import pickle

import pytest
from pyarrow import fs
from pyspark.sql.types import StructType

from gnsq.spark.datasource import NsqDataSource
from gnsq.spark.errors import SpoolError, SpoolInUse
from gnsq.spark.spool.spool import Spool
from gnsq.spark.spool.storage import open_store
from tests.spark.helpers import bodies_of, columns, is_empty, numbered, publish, wait_for

pytestmark = pytest.mark.subprocess


@pytest.fixture
def location(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    return s3.location(f"bucket/{tmp_path.name}/spool")


@pytest.fixture
def remote(location):
    return Spool(location)


def everything_below(location):
    filesystem, path = fs.FileSystem.from_uri(location)
    return [info.path for info in filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))]


def test_segment_is_one_request_to_write_and_two_list_the_spool(s3, remote):
    writer = remote.writer("r1")
    before = len(s3.requests)

    writer.write(1, columns(1, 2))
    assert [segment.rows for segment in remote.listing().segments] == [2]

    wait_for(lambda: len(s3.requests) >= before + 3)
    assert [request.split()[0] for request in s3.requests[before:]] == ["PUT", "GET", "GET"]
    assert bodies_of(remote) == [b"body 1", b"body 2"]


def test_prune_lists_nothing(s3, remote):
    writer = remote.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(number))
    listing = remote.listing()
    before = len(s3.requests)

    remote.prune(listing, {"r1": 2})

    wait_for(lambda: len(s3.requests) >= before + 6)
    assert sorted(request.split()[0] for request in s3.requests[before:]) == ["DELETE"] * 2 + ["HEAD"] * 2 + ["PUT"] * 2
    assert bodies_of(remote) == [b"body 3"]


def test_nothing_is_left_of_a_receiver_that_ended(remote, location):
    writer = remote.writer("r1")
    for number in (1, 2, 3):
        writer.write(number, columns(number))
    remote.prune(remote.listing(), {"r1": 2})
    assert bodies_of(remote) == [b"body 3"]

    writer.close(3)
    remote.prune(remote.listing(), {"r1": 3})

    assert everything_below(location) == []


def test_damaged_segment_is_quarantined(remote, location, caplog):
    remote.writer("r1").write(1, columns(1, 2))
    [segment] = remote.listing().segments
    open_store(location).put(segment.path, b"broken")

    assert bodies_of(remote) == []

    assert remote.listing().rows_quarantined == 2
    assert remote.read(segment) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_object_that_is_gone_is_not_renamed(location):
    assert not open_store(location).rename("r1/one", "r1/two")


def test_missing_bucket_is_an_error(s3, monkeypatch, fakensqd):
    options = {"spool": s3.location("nobucket/spool", "KEY:SECRET@"), "nsqdTcpAddresses": fakensqd.tcp_address}
    reader = NsqDataSource({"topic": "clicks", "channel": "archive", **options}).streamReader(StructType())

    with pytest.raises(
        SpoolError, match=r"spool s3://\*\*\*@nobucket/spool can't be used: .*give a directory"
    ) as caught:
        reader.prepareForTriggerAvailableNow()

    assert "SECRET" not in str(caught.value)


def test_unreachable_endpoint_does_not_quarantine_a_segment(remote):
    remote.writer("r1").write(1, columns(1))
    [segment] = remote.listing().segments
    unreachable = Spool("s3://bucket/spool?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")

    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        unreachable.read(segment)


def test_last_run_on_s3_takes_the_lock(remote):
    first = remote.lock("checkpoint", "clicks/archive")
    second = remote.lock("checkpoint", "clicks/archive")

    second.check()
    with pytest.raises(SpoolInUse, match="taken over by another run"):
        first.check()


def test_query_with_a_spool_on_s3_reads_every_message(fakensqd, s3, location, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    publish(fakensqd, "clicks", numbered(3000))
    schema = StructType().add("body", "binary")
    uri = s3.location(f"bucket/{tmp_path.name}/spool", "KEY:SECRET@")
    given = {"spool": uri, "spoolOwner": "s3://KEY:SECRET@bucket/checkpoint", "segmentRows": "1000"}
    given |= {"nsqdTcpAddresses": fakensqd.tcp_address, "nsqdHttpAddresses": fakensqd.http_address}
    stream = NsqDataSource({"topic": "clicks", "channel": "archive", **given}).streamReader(schema)
    stream.prepareForTriggerAvailableNow()

    start, bodies, texts = stream.initialOffset(), [], []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        partitions = stream.partitions(start, end)
        stream.commit(start)
        for partition in partitions:
            batches = stream.read(pickle.loads(pickle.dumps(partition)))
            bodies += [body for batch in batches for body in batch.column("body").to_pylist()]
        texts += [repr(partitions), repr(stream.reportLatestOffset())]
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
