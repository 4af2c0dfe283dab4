"""The nsqd of these tests: the emulator, or with ``--nsqd=real`` a real one."""

import contextlib
import re
import shutil

import pytest

from fakensqd import FakeNsqd
from fakensqd.pytest_plugin import nsqd
from fakensqd.real import RealNsqd
from gnsq import NsqdHTTPClient, Producer

__all__ = ["nsqd"]  # not the one of tests/conftest.py


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
def producer(nsqd):
    with Producer(nsqd.tcp_address) as made:
        yield made


@pytest.fixture
def http(nsqd):
    with NsqdHTTPClient.from_url(nsqd.http_address) as client:
        yield client


@pytest.fixture
def topic(nsqd):
    return nsqd.topic()


@pytest.fixture
def start_nsqd(nsqd):
    """Starts an nsqd of the same kind, with options."""
    with contextlib.ExitStack() as stack:

        def start(**options):
            if not isinstance(nsqd, RealNsqd):
                return stack.enter_context(FakeNsqd(**options).in_thread())
            if shutil.which("nsqd") is None:
                pytest.skip("starts servers of its own, and there is no nsqd on PATH")
            return stack.enter_context(RealNsqd(**options))

        yield start
