"""Latencies: a window that moves on by halves, exact quantiles, how they are written."""

import pytest

from fakensqd.nsqd import channel
from fakensqd.nsqd.channel import Latencies, human, summary


def values(latencies, now=0.0):
    return [each["value"] for each in summary([latencies], now)["percentiles"]]


def test_nobody_measures():
    assert summary([], 0.0) == {"count": 0, "percentiles": None}


def test_nothing_was_finished():
    latencies = Latencies((0.95, 1.0), 600.0, 0.0)

    assert summary([latencies], 0.0) == {
        "count": 0,
        "percentiles": [{"quantile": 0.95, "value": 0}, {"quantile": 1, "value": 0}],
    }


def test_quantiles_of_several_channels_are_of_all_of_them():
    channels = [Latencies((1.0, 0.5, 0.01), 600.0, 0.0) for _ in range(2)]
    for number in range(1, 11):
        channels[number % 2].add(number * 100, 0.0)

    found = summary(channels, 0.0)

    assert found["count"] == 10
    assert [each["value"] for each in found["percentiles"]] == [1000, 600, 200]


def test_the_window_forgets_by_halves():
    latencies = Latencies((1.0,), 10.0, 0.0)
    latencies.add(2, 1.0)
    latencies.add(1, 6.0)

    assert values(latencies, 9.9) == [2]
    assert values(latencies, 10.1) == [1]
    assert values(latencies, 99.0) == [0]


def test_a_half_keeps_so_many(monkeypatch):
    monkeypatch.setattr(channel, "_KEPT", 2)
    latencies = Latencies((1.0,), 10.0, 0.0)
    for number in range(5):
        latencies.add(number, 0.0)

    assert latencies.kept(0.0) == [0, 1]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0.0ns"), (1000, "1000.0ns"), (1001, "1.0us"), (405_377_052, "405.4ms"), (2_000_000_000, "2.0s")],
)
def test_how_it_is_written(nanoseconds, text):
    assert human(nanoseconds) == text
