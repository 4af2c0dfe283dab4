"""The pytest fixtures: fakensqd, fakelookupd, fakecluster; fakensqd_session, fakecluster_session; certificates.

Beside them nsqd, nsqlookupd and nsqd_cluster, for tests that run on both: the emulator, or real servers with --nsqd.
Each test gets a new server, which runs on its own thread and records a transcript. A marker with the fixture's name
sets options for a test, class or module: ``@pytest.mark.fakensqd(max_msg_size=1000)``. With ``threaded=False`` the
server runs in the hub of the test. The servers of a session are reset after each test. Of other packages the plugin
imports only pytest; a used fixture imports gevent.
"""

from __future__ import annotations

import contextlib
import os
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
    from fakensqd.real import RealCluster, RealLookupd, RealNsqd

__all__ = [
    "fakecluster",
    "fakecluster_session",
    "fakelookupd",
    "fakensqd",
    "fakensqd_certificates",
    "fakensqd_options",
    "fakensqd_session",
    "nsqd",
    "nsqd_cluster",
    "nsqlookupd",
]

_Server = TypeVar("_Server", bound="Daemon | FakeCluster")

# What pytest.fail(), xfail() and skip() raise.
_OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
# Stored for a test, and for the session: names of fixtures, and their servers.
_SERVERS: pytest.StashKey[list[tuple[str, Any]]] = pytest.StashKey()  # Any: a server or its ServerThread
# Stored for the session: True if the newest test has failed.
_FAILED: pytest.StashKey[bool] = pytest.StashKey()


# Options of pytest, which are settings of its configuration and variables of the environment, too.
_OPTIONS = {
    "nsqd": "servers of the fixtures nsqd, nsqlookupd and nsqd_cluster: fake (default); real: the programs on PATH; "
    "compose: services of the compose file; or the addresses of an nsqd that runs, host:4150,4151",
    "nsqlookupd": "addresses of an nsqlookupd that runs, host:4160,4161; default: as --nsqd says",
    "nsqd-program": "path of nsqd, beside which nsqlookupd is; default: those on PATH",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("nsqd")
    for name, text in _OPTIONS.items():
        group.addoption(f"--{name}", help=f"{text}. Also {_variable(name)} in the environment, {name} in pytest's ini")
        parser.addini(name, text)


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def _setting(config: pytest.Config, name: str) -> str:
    """Return an option, the variable of its name, or the setting of its name."""
    return str(config.getoption(f"--{name}") or os.environ.get(_variable(name)) or config.getini(name))


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name in ("fakensqd", "fakelookupd", "fakecluster", "nsqd", "nsqlookupd", "nsqd_cluster"):
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the fixture {name}; threaded=False: in the hub of the test"
        )
    if config.getoption("--nsqd"):
        _choice(config)
    config.addinivalue_line("markers", "fake_only(reason): skipped if --nsqd names real servers")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the servers if they are not the emulator."""
    choice = _setting(config, "nsqd")
    return None if choice in ("", "fake") else f"nsqd: {choice}"


def _choice(config: pytest.Config, name: str = "nsqd") -> str:
    """Return fake, real, compose, or two addresses with a comma between them."""
    choice = _setting(config, name) or ("fake" if name == "nsqd" else "")
    if choice in ("fake", "real", "compose", ""):
        return choice
    try:
        return ",".join(split_addresses(choice))
    except ValueError:
        raise pytest.UsageError(
            f"{choice!r} (--{name}, {_variable(name)} in the environment, or {name} in pytest's ini) is not fake, "
            "real, compose, or addresses such as 127.0.0.1:4150,4151"
        ) from None


def split_addresses(choice: str) -> tuple[str, str]:
    """Split ``host:4150,4151`` into an address for TCP and one for HTTP.

    Raises:
        ValueError: If it has another form.
    """
    tcp, _, http = choice.partition(",")
    host, colon, port = tcp.rpartition(":")
    http = http if ":" in http else f"{host}:{http}"
    if not (colon and port.isdecimal() and http.rpartition(":")[2].isdecimal()):
        raise ValueError(f"{choice!r} is not host:port,port")
    return tcp, http


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


@pytest.fixture
def nsqd(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: options are of all types
) -> Iterator[FakeNsqd | RealNsqd]:
    """An nsqd for tests that run on both: a FakeNsqd, or with --nsqd a RealNsqd."""
    yield from _either(request, "Nsqd", fakensqd_options)


@pytest.fixture
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[FakeLookupd | RealLookupd]:
    """An nsqlookupd for tests that run on both."""
    yield from _either(request, "Lookupd", {})


@pytest.fixture
def nsqd_cluster(
    request: pytest.FixtureRequest,
    fakensqd_options: dict[str, Any],  # Any: options are of all types
) -> Iterator[FakeCluster | RealCluster]:
    """Two nsqds that are registered with an nsqlookupd, for tests that run on both."""
    yield from _either(request, "Cluster", fakensqd_options)


def _either(
    request: pytest.FixtureRequest,
    kind: str,
    options: dict[str, Any],  # Any: options are of all types
) -> Iterator[Any]:  # Any: of several classes
    """Run an emulated or a real server in a test."""
    name, choice = str(request.fixturename), _choice(request.config)
    if kind == "Lookupd":
        choice = _choice(request.config, "nsqlookupd") or choice
    if choice == "fake":
        import fakensqd

        yield from _running(request, getattr(fakensqd, f"Fake{kind}"), options)
        return
    from fakensqd import real

    make, program = getattr(real, f"Real{kind}"), _setting(request.config, "nsqd-program")
    options = {**options, **_marked(request)}
    options.pop("threaded", None)
    if kind == "Lookupd" and program:
        program = os.path.join(os.path.dirname(program), "nsqlookupd")
    if choice == "real":
        server = make(program=program, **options)
    elif kind == "Cluster" or (kind == "Lookupd" and choice == _choice(request.config) != "compose"):
        pytest.skip(f"{name}: --nsqd={choice} names one nsqd, and no {name}")
    elif changed := sorted(options.keys() - real.WITHOUT_MEANING):
        pytest.skip(f"{name}: the option {changed[0]} needs an nsqd of the test's own: --nsqd=real")
    else:
        server = make.service() if choice == "compose" else make.at(*choice.split(","))
    with server:
        request.node.stash.setdefault(_SERVERS, []).append((name, server))
        yield server


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:  # Any: options are of all types
    marker = request.node.get_closest_marker(str(request.fixturename))
    return {} if marker is None else dict(marker.kwargs)


def _running(
    request: pytest.FixtureRequest,
    make: Callable[..., _Server],
    options: dict[str, Any],  # Any: options are of all types
) -> Iterator[_Server]:
    """Run a server in a test or in a session, and end the test, see _end_test()."""
    name = str(request.fixturename)
    options = {"record": True, **options, **_marked(request)}
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
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip the tests that only the emulator can run, if the servers are real."""
    marker = item.get_closest_marker("fake_only")
    if marker is not None and _choice(item.config) != "fake":
        pytest.skip(f"needs the emulator: {''.join(marker.args) or marker.kwargs.get('reason', 'no reason is given')}")
    with _skipped():
        yield


@contextlib.contextmanager
def _skipped() -> Iterator[None]:
    """Skip the test if it asks a real server for what only the emulator can do, unless it has failed before."""
    try:
        yield
    except Exception as error:
        real = sys.modules.get("fakensqd.real")
        if real is not None and isinstance(error, real.Unavailable) and error.__context__ is None:
            raise pytest.skip.Exception(str(error), _use_item_location=True) from error
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """End a test by the first pytest.fail() or pytest.skip() of a handler or receiver of gnsq."""
    greenlets = sys.modules.get("gnsq.concurrency.greenlets")
    if greenlets is None:  # the test uses no client and no server
        with _skipped():
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
        with _skipped():
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
