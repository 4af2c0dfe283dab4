"""The pytest fixtures: fakensqd, fakelookupd, fakecluster.

Each test gets a fresh server on a thread of its own. Importing this loads pytest and nothing of the emulator: gevent
is imported when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fakensqd.thread import Server

__all__ = ["fakecluster", "fakelookupd", "fakensqd", "fakensqd_options"]


@pytest.fixture
def fakensqd_options() -> dict[str, Any]:  # Any: options are of all types
    """Options of FakeNsqd for this test; override it in a test's module or class."""
    return {}


@pytest.fixture
def fakensqd(fakensqd_options: dict[str, Any]) -> Iterator[Any]:  # Any: a forwarder to FakeNsqd
    """A running FakeNsqd, on its own thread."""
    from fakensqd import FakeNsqd

    yield from _running(FakeNsqd(**fakensqd_options))


@pytest.fixture
def fakelookupd() -> Iterator[Any]:  # Any: a forwarder to FakeLookupd
    """A running FakeLookupd, on its own thread."""
    from fakensqd import FakeLookupd

    yield from _running(FakeLookupd())


@pytest.fixture
def fakecluster(fakensqd_options: dict[str, Any]) -> Iterator[Any]:  # Any: a forwarder to FakeCluster
    """Two FakeNsqds registered with a FakeLookupd, on one thread of their own."""
    from fakensqd import FakeCluster

    yield from _running(FakeCluster(**fakensqd_options))


def _running(server: Server) -> Iterator[Any]:  # Any: a forwarder
    """Start a server; in the end stop it, and fail if it did not work as it should."""
    from fakensqd.thread import Threaded

    threaded = Threaded(server)
    yield threaded.start()
    # Raises if a greenlet is left over.
    threaded.stop()
    for error in server.errors:
        raise AssertionError(f"internal error of the emulator: {error!r}") from error
