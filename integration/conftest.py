"""Fixtures of the tests on real servers: those of the behaviour suite that they share, and accounts."""

import pytest

from integration.account import Account
from tests.behaviour.conftest import _skip_what_an_old_nsqd_does_in_another_way, nsqd, pytest_configure, topic
from tests.spark.conftest import short_lived_java

__all__ = ["_skip_what_an_old_nsqd_does_in_another_way", "nsqd", "pytest_configure", "short_lived_java", "topic"]


@pytest.fixture
def account(request):
    """What went in and came out; all that was confirmed must have been processed, and the run's summary says so."""
    account = Account(request.node.name)
    yield account
    request.node.user_properties.append(("account", str(account)))
    assert account.published, "nothing was published"
    assert account.lost == set()
