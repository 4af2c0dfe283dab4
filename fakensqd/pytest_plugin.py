"""The pytest fixtures: fakensqd, fakelookupd, fakecluster; fakensqd_session, fakecluster_session; certificates.

Each test gets a new server, which runs on its own thread and records a transcript. A marker with the fixture's name
sets options for a test, class or module: ``@pytest.mark.fakensqd(max_msg_size=1000)``. With ``threaded=False`` the
server runs in the hub of the test. The servers of a session are reset after each test. Of other packages the plugin
imports only pytest; a used fixture imports gevent.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from fakensqd.certificates import Certificates
    from fakensqd.cluster import FakeCluster
    from fakensqd.daemon.daemon import Daemon
    from fakensqd.lookupd.server import FakeLookupd
    from fakensqd.nsqd.server import FakeNsqd

__all__ = [
    "fakecluster",
    "fakecluster_session",
    "fakelookupd",
    "fakensqd",
    "fakensqd_certificates",
    "fakensqd_options",
    "fakensqd_session",
]

_Server = TypeVar("_Server", bound="Daemon | FakeCluster")

# What pytest.fail(), xfail() and skip() raise.
_OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
# Stored for a test, and for the session: names of fixtures, and their servers.
_SERVERS: pytest.StashKey[list[tuple[str, Any]]] = pytest.StashKey()  # Any: a server or its ServerThread
# Stored for the session: True if the newest test has failed.
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name in ("fakensqd", "fakelookupd", "fakecluster"):
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the fixture {name}; threaded=False: in the hub of the test"
        )


@pytest.fixture(scope="session")
def fakensqd_options() -> dict[str, Any]:  # Any: options are of all types
    """Options of the fixtures with a FakeNsqd or FakeCluster. A module or class of tests may override this fixture.

    For fakensqd_session and fakecluster_session, override it in conftest.py, with ``scope="session"``.
    """
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
def fakensqd_session(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: options are of all types
) -> Iterator[FakeNsqd]:
    """A FakeNsqd on a thread, for an application that is told its address once. reset() after each test."""
    from fakensqd import FakeNsqd

    yield from _running(request, FakeNsqd, fakensqd_options)


@pytest.fixture(scope="session")
def fakecluster_session(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: options are of all types
) -> Iterator[FakeCluster]:
    """Like fakensqd_session: two FakeNsqds that are registered with a FakeLookupd."""
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
    """Run a server in a test or in a session, and end the test, see _end_test()."""
    name = str(request.fixturename)
    marker = request.node.get_closest_marker(name)
    options = {"record": True, **options, **(marker.kwargs if marker is not None else {})}
    threaded = options.pop("threaded", True)
    server = make(**options)
    runner: Any = server.in_thread() if threaded else server  # Any: of two types
    servers = request.node.stash.setdefault(_SERVERS, [])
    servers.append((name, runner))
    yield runner.start()
    servers.remove((name, runner))
    # stop() also raises if a watcher of the thread's hub is left over, such as that of a greenlet that still sleeps.
    _end_test(request.session, runner, runner.stop)


def _end_test(session: pytest.Session, runner: Any, end: Callable[[], None]) -> None:  # Any: of two types
    """Stop or reset a server. Fail the test for internal errors, and for required rules that never acted."""
    from fakensqd.faults.control import RuleNeverActed

    # Before reset(), which drops them.
    errors = [error for error in runner.errors if not isinstance(error, _OUTCOMES)]
    report = runner.report() if runner.unfired() else ""
    unfired = ""
    try:
        end()
    except RuleNeverActed as told:
        unfired = str(told)
    for error in errors or [error for error in runner.errors if not isinstance(error, _OUTCOMES)]:
        raise AssertionError(f"internal error of the emulator: {error!r}") from error
    if unfired and not session.stash.get(_FAILED, False):
        pytest.fail(f"{unfired}\n{report}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """End a test by the first pytest.fail() or pytest.skip() of a handler or receiver of gnsq."""
    greenlets = sys.modules.get("gnsq.concurrency.greenlets")
    if greenlets is None:  # the test uses no client and no server
        yield
        return
    import gevent

    from fakensqd.transcript import outcomes

    test = gevent.getcurrent()

    def watch(error: BaseException) -> None:
        if outcomes or not isinstance(error, _OUTCOMES):
            return
        outcomes.append(error)
        hub = gevent.get_hub()
        if hub.parent is test:  # the test waits, since something else runs in its thread
            hub.loop.run_callback(lambda: outcomes and test.throw(error))

    greenlets.failure_watchers.append(watch)
    try:
        yield
    except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
        raise
    except BaseException as error:
        if outcomes and error is not outcomes[0]:
            raise outcomes[0] from error
        raise
    else:
        if outcomes:
            raise outcomes[0]
    finally:
        greenlets.failure_watchers.remove(watch)
        outcomes.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Reset the servers of the session when the fixtures of the test have ended, which may still use them."""
    try:
        yield
    finally:
        with contextlib.ExitStack() as stack:  # all of them, even if the end of one fails
            for _, runner in item.session.stash.get(_SERVERS, []):
                stack.callback(_end_test, item.session, runner, runner.reset)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed and the end of the transcript of each server to the report of a failed test."""
    sections: list[tuple[str, str]] = []
    if call.when == "call" and call.excinfo is not None:
        used = getattr(item, "fixturenames", ())
        servers = [server for server in item.session.stash.get(_SERVERS, ()) if server[0] in used]
        sections = [(name, runner.report()) for name, runner in (*item.stash.get(_SERVERS, ()), *servers)]
        # A failed wait_until() or assert_published() has the same text as a note.
        notes = getattr(call.excinfo.value, "__notes__", [])
        notes[:] = [note for note in notes if not (note and any(note.splitlines()[-1] in text for _, text in sections))]
    report = yield
    if report.failed:
        report.sections += sections
    if call.when != "teardown":
        item.session.stash[_FAILED] = report.failed
    return report
