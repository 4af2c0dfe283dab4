"""The pytest fixtures: fakensqd, fakelookupd, fakecluster.

Each test gets a fresh server on a thread of its own, which records what happens. Importing this loads pytest and
nothing of the emulator: gevent is imported when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fakensqd.cluster import FakeCluster
    from fakensqd.daemon import Daemon
    from fakensqd.thread import Threaded

__all__ = ["fakecluster", "fakelookupd", "fakensqd", "fakensqd_options"]

# The servers of a test, and whether it has failed by itself.
_SERVERS: pytest.StashKey[list[tuple[str, Threaded, Daemon | FakeCluster]]] = pytest.StashKey()
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


@pytest.fixture
def fakensqd_options() -> dict[str, Any]:  # Any: options are of all types
    """Options of FakeNsqd for this test; override it in a test's module or class."""
    return {}


@pytest.fixture
def fakensqd(request: pytest.FixtureRequest, fakensqd_options: dict[str, Any]) -> Iterator[Any]:  # Any: a forwarder
    """A running FakeNsqd, on its own thread."""
    from fakensqd import FakeNsqd

    yield from _running(request, FakeNsqd(**{"record": True, **fakensqd_options}))


@pytest.fixture
def fakelookupd(request: pytest.FixtureRequest) -> Iterator[Any]:  # Any: a forwarder to FakeLookupd
    """A running FakeLookupd, on its own thread."""
    from fakensqd import FakeLookupd

    yield from _running(request, FakeLookupd(record=True))


@pytest.fixture
def fakecluster(request: pytest.FixtureRequest, fakensqd_options: dict[str, Any]) -> Iterator[Any]:  # Any: a forwarder
    """Two FakeNsqds registered with a FakeLookupd, on one thread of their own."""
    from fakensqd import FakeCluster

    yield from _running(request, FakeCluster(**{"record": True, **fakensqd_options}))


def _running(request: pytest.FixtureRequest, server: Daemon | FakeCluster) -> Iterator[Any]:  # Any: a forwarder
    """Start a server; in the end stop it, and fail if it did not work as it should."""
    from fakensqd.thread import Threaded

    threaded = Threaded(server)
    request.node.stash.setdefault(_SERVERS, []).append((str(request.fixturename), threaded, server))
    yield threaded.start()
    # Raises if a greenlet is left over.
    threaded.stop()
    for error in server.errors:
        raise AssertionError(f"internal error of the emulator: {error!r}") from error
    unfired = server.unfired()
    if unfired and not request.node.stash.get(_FAILED, False):
        lines = "\n".join(f"  {line}" for line in unfired)
        pytest.fail(f"faults that never fired:\n{lines}\n{server.report()}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put seed and transcript into the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[_FAILED] = True
        for name, threaded, server in item.stash.get(_SERVERS, []):
            report.sections.append((name, threaded.call(server.report)))
    return report
