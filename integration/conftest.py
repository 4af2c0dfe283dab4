"""Fixtures of tests with real servers: the shared ones of tests/behaviour, and the account of a test."""

import os
import random

import pytest

from integration.account import Account
from tests.behaviour import conftest as behaviour
from tests.behaviour.conftest import _skip_what_an_old_nsqd_does_in_another_way, topic
from tests.spark.conftest import short_lived_java

__all__ = ["_skip_what_an_old_nsqd_does_in_another_way", "short_lived_java", "topic"]


def pytest_configure(config):
    behaviour.pytest_configure(config)
    # "make integration" names both; a file that is run by itself needs them, too.
    config.pluginmanager.import_plugin("integration.servers")
    config.option.nsqd = config.option.nsqd or os.environ.get("NSQD") or "real"


@pytest.fixture
def account(request):
    """The account of a test. All confirmed messages must be processed; the summary of the run prints the account."""
    account = Account(request.node.name)
    yield account
    request.node.user_properties.append(("account", str(account)))
    assert account.published, "nothing was published"
    assert account.lost == set()


@pytest.fixture
def chosen() -> random.Random:
    """What a test chooses at random: the same in each run, but with another KILLS_SEED."""
    seed = os.environ.get("KILLS_SEED", "1")
    print(f"KILLS_SEED={seed}")
    return random.Random(seed)
