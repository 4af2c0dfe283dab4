"""The reader of a stream as PySpark 4.1 calls it: latestOffset() has no arguments."""

import pytest

from gnsq.spark.errors import SpoolError
from gnsq.spark.source.reader import NsqStreamReader, NsqStreamReader41
from tests.spark.helpers import columns, numbered, publish
from tests.spark.source.test_reader import read


@pytest.fixture
def start(options):
    """Makes readers; the one before has ended, as if it was killed."""
    readers = []

    def start(kind=NsqStreamReader41, **changes):
        for each in readers:
            each.stop()
        readers.append(kind(options(**{"receivers": "external", "max_rows_per_batch": 2, **changes}), ("body",)))
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


def bodies_in(*batch):
    return [row["body"] for row in read(*batch)]


def test_batches_follow_each_other_and_keep_to_the_limit(start, segments):
    reader, found = start(), []
    before = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset()
        # Spark may ask again before it plans the batch.
        assert reader.latestOffset() == end
        found.append(bodies_in(reader, before, end))
        reader.commit(before)
        before = end

    assert found == [[b"body 1", b"body 2"], [b"body 3", b"body 4"], [b"body 5"]]
    assert reader.latestOffset() == before


def test_restarted_query_goes_on_after_a_batch_whose_segments_are_still_there(start, segments):
    first = start()
    end = first.latestOffset()
    bodies_in(first, first.initialOffset(), end)

    # The batch was committed, so Spark does not plan it again.
    again = start()

    assert bodies_in(again, end, again.latestOffset()) == [b"body 3", b"body 4"]


def test_batch_that_was_not_planned_before_a_kill_comes_first(start, segments):
    first = start()
    end = first.latestOffset()

    # If Spark has not written the end into its log, it asks for it again.
    assert start().latestOffset() == end
    # If it has, it calls partitions() first.
    again = start()

    assert bodies_in(again, again.initialOffset(), end) == [b"body 1", b"body 2"]
    assert bodies_in(again, end, again.latestOffset()) == [b"body 3", b"body 4"]


def test_drain_reads_what_is_there_in_one_batch(fakensqd, start):
    publish(fakensqd, "clicks", numbered(100))
    reader = start(receivers="driver", drain=True, max_in_flight=10)

    end = reader.latestOffset()

    assert sorted(bodies_in(reader, reader.initialOffset(), end)) == numbered(100)


def test_end_is_not_kept_when_a_later_pyspark_goes_on(start, segments):
    first = start()
    end = first.latestOffset()
    first.partitions(first.initialOffset(), end)

    later = start(NsqStreamReader)
    assert bodies_in(later, end, later.latestOffset(end, later.getDefaultReadLimit())) == [b"body 3", b"body 4"]

    with pytest.raises(SpoolError, match=r"was read with PySpark 4\.2 or later, .*: use that PySpark again"):
        start().latestOffset()
