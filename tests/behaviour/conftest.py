"""The nsqd of these tests: fakensqd, or a real one with ``-p integration.servers``."""

import contextlib
import re
import uuid

import pytest

from fakensqd import FakeNsqd
from gnsq import NsqdHTTPClient, Producer


def pytest_configure(config):
    config.addinivalue_line("markers", "since(version): what earlier releases of nsqd do in another way")


@pytest.fixture(autouse=True)
def _skip_what_an_old_nsqd_does_in_another_way(request):
    mark = request.node.get_closest_marker("since")
    if mark:
        version = NsqdHTTPClient.from_url(request.getfixturevalue("nsqd").http_address).info()["version"]
        if _numbers(version) < _numbers(mark.args[0]):
            pytest.skip(f"nsqd {version} is older than {mark.args[0]}")


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


@pytest.fixture
def nsqd(request):
    real = request.config.pluginmanager.hasplugin("integration.servers")
    return request.getfixturevalue("real_nsqd" if real else "fakensqd")


@pytest.fixture
def producer(nsqd):
    with Producer(nsqd.tcp_address) as made:
        yield made


@pytest.fixture
def http(nsqd):
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        yield client


@pytest.fixture
def topic():
    """A topic name that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def lookupd(request):
    real = request.config.pluginmanager.hasplugin("integration.servers")
    return request.getfixturevalue("real_lookupd" if real else "fakelookupd")


@pytest.fixture
def start_nsqd(request):
    """Starts an nsqd with flags, written with underscores."""
    real = request.config.pluginmanager.hasplugin("integration.servers")
    with contextlib.ExitStack() as stack:

        def start(**options):
            if not real:
                for flag in {"auth_http_address", "lookupd_tcp_address"} & set(options):
                    options[f"{flag}es"] = (options.pop(flag),)
                return stack.enter_context(FakeNsqd(**options).in_thread())
            from integration.servers import NO_PROGRAMS, program, running

            if program("nsqd") is None:
                pytest.skip(NO_PROGRAMS)
            return stack.enter_context(running("nsqd", *[_flag(*option) for option in options.items()]))

        yield start


def _flag(name, value):
    text = str(value).lower() if isinstance(value, bool) else value
    return f"--{name.replace('_', '-')}={text}"
