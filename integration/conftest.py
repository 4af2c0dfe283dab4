"""Fixtures of tests with real servers: the shared ones of tests/behaviour, and the account of a test."""

import os
import random
from collections import Counter

import pytest

from tests.behaviour import conftest as behaviour
from tests.behaviour.conftest import _skip_what_an_old_nsqd_does_in_another_way, topic
from tests.spark.conftest import hub, short_lived_java, spool

__all__ = ["_skip_what_an_old_nsqd_does_in_another_way", "hub", "short_lived_java", "spool", "topic"]


def pytest_configure(config):
    behaviour.pytest_configure(config)
    # "make integration" names both; a file that is run by itself needs them, too.
    config.pluginmanager.import_plugin("integration.servers")
    config.option.nsqd = config.option.nsqd or os.environ.get("NSQD") or "real"


class Account:
    """Messages of one test, by their bodies, which are unique.

    Attributes:
        confirmed: Bodies that nsqd has confirmed.
        processed: Number of times that each body was handled.
    """

    def __init__(self):
        self.confirmed = set()
        self.processed = Counter()

    def publish(self, producer, topic, body, **options):
        producer.publish(topic, body, **options)
        self.confirmed.add(body)

    def process(self, consumer, message):
        """Record a message; this is a handler."""
        self.processed[bytes(message.body)] += 1

    @property
    def lost(self):
        return self.confirmed - self.processed.keys()

    @property
    def duplicated(self):
        """Number of times that a message was processed after the first time."""
        return self.processed.total() - len(self.processed)


@pytest.fixture
def account():
    """The account of a test. All confirmed messages must be processed."""
    account = Account()
    yield account
    assert account.confirmed, "nothing was published"
    assert account.lost == set()


@pytest.fixture
def chosen() -> random.Random:
    """What a test chooses at random: the same in each run, but with another KILLS_SEED."""
    seed = os.environ.get("KILLS_SEED", "1")
    print(f"KILLS_SEED={seed}")
    return random.Random(seed)
