from gnsq.spark.gauge import SpoolGauge


def test_nobody_lists_below_the_limit():
    gauge = SpoolGauge(100, 0.5)

    gauge.add(99)

    assert not gauge.is_due(10)
    assert not gauge.is_full


def test_at_the_limit_a_listing_decides():
    gauge = SpoolGauge(100, 0.5)
    gauge.add(100)

    assert gauge.is_due(10)
    gauge.look(40, 10)
    assert not gauge.is_full
    assert not gauge.is_due(20)
    gauge.add(60)
    assert gauge.is_due(20)
    gauge.look(100, 20)
    assert gauge.is_full


def test_full_spool_is_listed_again_and_again_but_not_all_the_time():
    gauge = SpoolGauge(100, 0.5)
    gauge.look(150, 10)

    assert not gauge.is_due(10.4)
    assert gauge.is_due(10.5)
    gauge.look(99, 10.5)
    assert not gauge.is_full
