"""The pytest fixtures: fakensqd, fakelookupd, fakecluster, fakensqd_certificates.

Each test gets a fresh server on a thread of its own, which records what happens. A marker with the fixture's name gives
it options for one test, class or module: ``@pytest.mark.fakensqd(max_msg_size=1000)``; with ``threaded=False`` it runs
in the test's own hub. Importing this loads pytest and nothing of the emulator: gevent is imported when a fixture is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from fakensqd.certificates import Certificates
    from fakensqd.cluster import FakeCluster
    from fakensqd.daemon.daemon import Daemon
    from fakensqd.lookupd.server import FakeLookupd
    from fakensqd.nsqd.server import FakeNsqd

__all__ = ["fakecluster", "fakelookupd", "fakensqd", "fakensqd_certificates", "fakensqd_options"]

_Server = TypeVar("_Server", bound="Daemon | FakeCluster")

# What tells of the servers of a test, by fixture, and whether the test has failed by itself.
_REPORTS: pytest.StashKey[list[tuple[str, Callable[[], str]]]] = pytest.StashKey()
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    for name in ("fakensqd", "fakelookupd", "fakecluster"):
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the fixture {name}; threaded=False: in my hub"
        )


@pytest.fixture
def fakensqd_options() -> dict[str, Any]:  # Any: options are of all types
    """Options of FakeNsqd for this test, in fakensqd and fakecluster; override it in a test's module or class."""
    return {}


@pytest.fixture
def fakensqd(request: pytest.FixtureRequest, fakensqd_options: dict[str, Any]) -> Iterator[FakeNsqd]:  # Any: as above
    """A running FakeNsqd, on its own thread."""
    from fakensqd import FakeNsqd

    yield from _running(request, FakeNsqd, fakensqd_options)


@pytest.fixture
def fakelookupd(request: pytest.FixtureRequest) -> Iterator[FakeLookupd]:
    """A running FakeLookupd, on its own thread."""
    from fakensqd import FakeLookupd

    yield from _running(request, FakeLookupd, {})


@pytest.fixture
def fakecluster(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: as above
) -> Iterator[FakeCluster]:
    """Two FakeNsqds registered with a FakeLookupd, on one thread of their own."""
    from fakensqd import FakeCluster

    yield from _running(request, FakeCluster, fakensqd_options)


@pytest.fixture(scope="session")
def fakensqd_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA and what it signs, in a temporary directory: ``.ca``, ``.server(names)``, ``.client(common_name)``."""
    from fakensqd import Certificates

    return Certificates(tmp_path_factory.mktemp("fakensqd-certificates"))


def _running(
    request: pytest.FixtureRequest,
    make: Callable[..., _Server],
    options: dict[str, Any],  # Any: as above
) -> Iterator[_Server]:
    """Start a server; in the end stop it, and fail if it did not work as it should."""
    marker = request.node.get_closest_marker(str(request.fixturename))
    options = {"record": True, **options, **(marker.kwargs if marker is not None else {})}
    threaded = options.pop("threaded", True)
    server = make(**options)
    reports = request.node.stash.setdefault(_REPORTS, [])
    if threaded:
        from fakensqd.thread import ServerThread

        thread = ServerThread(server)
        reports.append((str(request.fixturename), lambda: thread.call(server.report)))
        yield thread.start()
        # Raises if a greenlet is left over.
        thread.stop()
    else:
        reports.append((str(request.fixturename), server.report))
        with server:
            yield server
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
    if call.when != "call" or call.excinfo is None:
        return (yield)
    sections = [(name, tell()) for name, tell in item.stash.get(_REPORTS, [])]
    shown = getattr(call.excinfo.value, "transcript", "")  # that of wait_until()
    if isinstance(shown, str) and shown and any(shown.splitlines()[-1] in text for _, text in sections):
        call.excinfo.value.transcript = ""  # type: ignore[attr-defined]  # it is fakensqd.transcript.WaitError
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        report.sections += sections
    return report
