"""The reader of a stream as PySpark 4.1 calls it: latestOffset() has no arguments."""

import pickle

import pytest

from gnsq.spark.errors import SpoolError
from gnsq.spark.options import ReadOptions
from gnsq.spark.source.reader import NsqStreamReader, NsqStreamReader41
from tests.spark.helpers import columns, numbered, publish


@pytest.fixture
def options(fakensqd, tmp_path):
    return ReadOptions(
        topic="clicks",
        channel="archive",
        nsqd_tcp_addresses=(fakensqd.tcp_address,),
        nsqd_http_addresses=(fakensqd.http_address,),
        spool=str(tmp_path / "spool"),
        receivers="external",
        max_rows_per_batch=2,
    )


@pytest.fixture
def start(options):
    """Makes readers; the one before has ended, as if it was killed."""
    readers = []

    def start(kind=NsqStreamReader41, **changes):
        for each in readers:
            each.stop()
        readers.append(kind(ReadOptions(**{**vars(options), **changes}), ("body",)))
        return readers[-1]

    yield start
    for each in readers:
        each.stop()


@pytest.fixture
def segments(spool):
    """Five segments with one row each."""
    writer = spool.writer("r1")
    for number in range(1, 6):
        writer.write(number, columns(number))


def bodies(reader, start, end):
    return [
        row["body"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def test_batches_follow_each_other_and_keep_to_the_limit(start, segments):
    reader, found = start(), []
    before = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset()
        # Spark may ask again before it plans the batch.
        assert reader.latestOffset() == end
        found.append(bodies(reader, before, end))
        reader.commit(before)
        before = end

    assert found == [[b"body 1", b"body 2"], [b"body 3", b"body 4"], [b"body 5"]]
    assert reader.latestOffset() == before


def test_restarted_query_goes_on_after_a_batch_whose_segments_are_still_there(start, segments):
    first = start()
    end = first.latestOffset()
    bodies(first, first.initialOffset(), end)

    # The batch was committed, so Spark does not plan it again.
    again = start()

    assert bodies(again, end, again.latestOffset()) == [b"body 3", b"body 4"]


def test_batch_that_was_not_planned_before_a_kill_comes_first(start, segments):
    first = start()
    end = first.latestOffset()

    # Spark has written the end into its log, and calls partitions() first.
    again = start()

    assert bodies(again, again.initialOffset(), end) == [b"body 1", b"body 2"]
    assert bodies(again, end, again.latestOffset()) == [b"body 3", b"body 4"]


def test_drain_reads_what_is_there_in_one_batch(fakensqd, start):
    publish(fakensqd, "clicks", numbered(100))
    reader = start(receivers="driver", drain=True, max_in_flight=10)

    end = reader.latestOffset()

    assert sorted(bodies(reader, reader.initialOffset(), end)) == numbered(100)


def test_query_that_was_killed_before_its_first_batch_may_start_again(start, segments):
    start().latestOffset()

    assert start().latestOffset()["r"] == {"r1": 2}


def test_spool_that_a_later_pyspark_has_read_is_refused(start, segments):
    later = start(NsqStreamReader)
    later.latestOffset(later.initialOffset(), later.getDefaultReadLimit())

    with pytest.raises(SpoolError, match=r"was read with PySpark 4\.2 or later, and PySpark 4\.1 can't go on"):
        start().latestOffset()


def test_end_is_not_kept_when_a_later_pyspark_goes_on(start, segments):
    first = start()
    end = first.latestOffset()
    first.partitions(first.initialOffset(), end)

    later = start(NsqStreamReader)
    assert bodies(later, end, later.latestOffset(end, later.getDefaultReadLimit())) == [b"body 3", b"body 4"]

    with pytest.raises(SpoolError, match="use that PySpark again"):
        start().latestOffset()
