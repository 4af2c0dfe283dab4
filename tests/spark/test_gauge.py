import pytest

from gnsq.spark.receiver.receiver import SpoolSizeEstimator


@pytest.fixture
def gauge():
    """At 10 s, of a spool that had nothing in it at 0 s."""
    gauge = SpoolSizeEstimator(100, 0.5, 20.0)
    gauge.record_listing(0, 0)
    return gauge


def test_what_others_have_left_is_listed_first():
    assert SpoolSizeEstimator(100, 0.5, 20.0).is_due(0)


def test_nobody_lists_for_little(gauge):
    gauge.add(24)

    assert not gauge.is_due(10)
    assert not gauge.is_full


def test_each_quarter_of_the_limit_is_followed_by_a_listing(gauge):
    gauge.add(25)

    assert not gauge.is_due(0.4)
    assert gauge.is_due(10)
    gauge.record_listing(70, 10)
    assert not gauge.is_due(15)


def test_what_others_write_is_found_in_time(gauge):
    assert not gauge.is_due(19.9)
    assert gauge.is_due(20)


def test_at_the_limit_a_listing_decides_at_once(gauge):
    gauge.add(100)

    assert gauge.is_due(0.1)
    gauge.record_listing(40, 0.1)
    assert not gauge.is_full
    gauge.add(60)
    assert gauge.is_due(0.2)
    gauge.record_listing(100, 0.2)
    assert gauge.is_full


def test_full_spool_is_listed_again_and_again_but_not_all_the_time(gauge):
    gauge.record_listing(150, 10)

    assert not gauge.is_due(10.4)
    assert gauge.is_due(10.5)
    gauge.record_listing(99, 10.5)
    assert not gauge.is_full
