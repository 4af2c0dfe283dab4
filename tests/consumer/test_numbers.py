"""Many nsqds, and many consumers one after the other: nothing is left over."""

import gc
import os
from collections import Counter

import gevent
import pytest

from fakensqd import FakeLookupd, FakeNsqd
from gnsq import Consumer
from gnsq.stats import ConsumerStats
from tests.kit import need_open_files, wait_until

pytestmark = pytest.mark.slow


def ignore(consumer, message):
    pass


class Left:
    """Greenlets, descriptors, threads and objects at rest, to compare with later ones."""

    def __init__(self):
        gevent.idle()
        self.before = self.counts()
        self.watchers = gevent.get_hub().loop.activecnt

    def counts(self):
        """Count greenlets, descriptors and threads (also native ones), but for those of gevent's pool, which stay."""
        gc.collect()
        greenlets = sum(isinstance(item, gevent.Greenlet) and not item.dead for item in gc.get_objects())
        threads = len(os.listdir("/proc/self/task")) - gevent.get_hub().threadpool.size
        return greenlets, len(os.listdir("/proc/self/fd")), threads

    def check(self):
        wait_until(lambda: all(now <= then for now, then in zip(self.counts(), self.before, strict=True)))
        # Objects of the hub may come and go.
        assert gevent.get_hub().loop.activecnt <= self.watchers + 3


def addresses_of(nsqd, count):
    """Addresses of one nsqd that a consumer takes for different nsqds."""
    return [f"127.0.{number // 250}.{1 + number % 250}:{nsqd.tcp_port}" for number in range(count)]


def test_consumer_with_five_hundred_nsqds():
    need_open_files(4096)
    served = Counter()
    with FakeNsqd(tcp_address="0.0.0.0:0") as nsqd:
        addresses = addresses_of(nsqd, 500)
        # Threads of the resolver, and others that stay.
        with Consumer("t", "c", addresses[:50], message_handler=ignore):
            pass
        wait_until(lambda: not nsqd.sessions)
        left = Left()
        consumer = Consumer(
            "t",
            "c",
            addresses,
            message_handler=lambda _, message: served.update([message.nsqd]),
            max_in_flight=1250,
        )
        with consumer:
            wait_until(lambda: consumer.total_ready_count == 500, 60)
            for _ in range(3):
                nsqd.broker.ensure_topic("t").publish([b"x"] * 500, nsqd.now())
                wait_until(lambda: nsqd.depth("t", "c") + nsqd.in_flight("t", "c") == 0, 60)
            wait_until(lambda: consumer.total_ready_count == 1250, 60)
            assert isinstance(consumer.stats(), ConsumerStats)
        assert set(served) == set(addresses)
        assert served.total() == 1500
        wait_until(lambda: not nsqd.sessions)
        assert nsqd.errors == []
        left.check()


def rounds(count, nsqd, lookupd):
    for _ in range(count):
        got = []
        consumer = Consumer(
            "t",
            "c",
            nsqd.tcp_address,
            lookupd.http_address,
            message_handler=lambda _, message, got=got: got.append(message),
            max_in_flight=3,
        )
        consumer.on_close.connect(ignore_close, weak=False)
        with consumer:
            nsqd.broker.ensure_topic("t").publish([b"x"] * 5, nsqd.now())
            wait_until(lambda got=got: len(got) == 5)


def ignore_close(consumer):
    pass


def test_many_consumers_one_after_the_other_leak_nothing():
    with FakeNsqd() as nsqd, FakeLookupd() as lookupd:
        rounds(15, nsqd, lookupd)  # objects that are made once
        wait_until(lambda: not nsqd.sessions)
        left = Left()
        gc.collect()
        objects = len(gc.get_objects())

        rounds(60, nsqd, lookupd)

        wait_until(lambda: not nsqd.sessions)
        left.check()
        gc.collect()
        # Caches grow a little; one object per consumer would be 60.
        assert len(gc.get_objects()) - objects < 50
