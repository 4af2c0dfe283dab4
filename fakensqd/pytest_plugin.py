"""The pytest fixtures: fakensqd, fakelookupd, fakecluster, fakensqd_certificates.

Each test gets a new server, which runs on its own thread and records a transcript. A marker with the fixture's name
sets options for a test, class or module: ``@pytest.mark.fakensqd(max_msg_size=1000)``. With ``threaded=False`` the
server runs in the hub of the test. Of other packages the plugin imports only pytest; a used fixture imports gevent.
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

# Stored for a test. _REPORTS: fixture names, and functions that describe their servers; _FAILED: True if it failed.
_REPORTS: pytest.StashKey[list[tuple[str, Callable[[], str]]]] = pytest.StashKey()
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name in ("fakensqd", "fakelookupd", "fakecluster"):
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the fixture {name}; threaded=False: in the hub of the test"
        )


@pytest.fixture
def fakensqd_options() -> dict[str, Any]:  # Any: options are of all types
    """Options of FakeNsqd for fakensqd and fakecluster. A module or class of tests may override this fixture."""
    return {}


@pytest.fixture
def fakensqd(request: pytest.FixtureRequest, fakensqd_options: dict[str, Any]) -> Iterator[FakeNsqd]:  # Any: options
    """A running FakeNsqd, on its own thread unless the marker has threaded=False."""
    from fakensqd import FakeNsqd

    yield from _running(request, FakeNsqd, fakensqd_options)


@pytest.fixture
def fakelookupd(request: pytest.FixtureRequest) -> Iterator[FakeLookupd]:
    """A running FakeLookupd, on its own thread unless the marker has threaded=False."""
    from fakensqd import FakeLookupd

    yield from _running(request, FakeLookupd, {})


@pytest.fixture
def fakecluster(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: options are of all types
) -> Iterator[FakeCluster]:
    """Two FakeNsqds that are registered with a FakeLookupd, all on one thread, unless the marker sets other options."""
    from fakensqd import FakeCluster

    yield from _running(request, FakeCluster, fakensqd_options)


@pytest.fixture(scope="session")
def fakensqd_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA that signs certificates: ``.ca``, ``.server(names)``, ``.client(common_name)``."""
    from fakensqd import Certificates

    return Certificates(tmp_path_factory.mktemp("fakensqd-certificates"))


def _running(
    request: pytest.FixtureRequest,
    make: Callable[..., _Server],
    options: dict[str, Any],  # Any: options are of all types
) -> Iterator[_Server]:
    """Run a server in a test. Fail the test for internal errors, unfired required rules, or a thread's leftovers."""
    from fakensqd.faults.control import RuleNeverActed

    marker = request.node.get_closest_marker(str(request.fixturename))
    options = {"record": True, **options, **(marker.kwargs if marker is not None else {})}
    threaded = options.pop("threaded", True)
    server = make(**options)
    runner: Any = server.in_thread() if threaded else server  # Any: of two types
    request.node.stash.setdefault(_REPORTS, []).append((str(request.fixturename), runner.report))
    yield runner.start()
    unfired = ""
    try:
        # This also raises if a watcher of the thread's hub is left over, such as that of a greenlet that still sleeps.
        runner.stop()
    except RuleNeverActed as told:
        unfired = str(told)
    for error in server.errors:
        raise AssertionError(f"internal error of the emulator: {error!r}") from error
    if unfired and not request.node.stash.get(_FAILED, False):
        pytest.fail(f"{unfired}\n{server.report()}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed and the end of the transcript of each server to the report of a failed test."""
    if call.when != "call" or call.excinfo is None:
        return (yield)
    sections = [(name, describe()) for name, describe in item.stash.get(_REPORTS, [])]
    shown = getattr(call.excinfo.value, "transcript", "")  # a WaitError of wait_until() has a transcript
    if isinstance(shown, str) and shown and any(shown.splitlines()[-1] in text for _, text in sections):
        call.excinfo.value.transcript = ""  # type: ignore[attr-defined]  # the value is a WaitError
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        report.sections += sections
    return report
