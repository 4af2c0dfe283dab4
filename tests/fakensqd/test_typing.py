"""Types of fakensqd as mypy sees them in the tests of another project. One run of mypy for all."""

import re
import sys

import pytest

from fakensqd.options import ClusterOptionsDict, NsqdOptionsDict
from tests.helpers import run

RIGHT = """
from collections.abc import Iterator
from typing import assert_type

import pytest

from fakensqd import FakeAuthServer, FakeCluster, FakeLookupd, FakeNsqd, Grant, Relay, Transcript, on
from fakensqd.faults import corrupt, disconnect, inject
from fakensqd.server import ServerThread


def test_fixture(fakensqd: FakeNsqd) -> None:
    assert_type(fakensqd.tcp_address, str)
    assert_type(fakensqd.messages("orders"), list[bytes])
    assert_type(fakensqd.messages("orders", "billing"), list[bytes])
    assert_type(fakensqd.depth("orders") + fakensqd.in_flight("orders", "billing"), int)
    assert_type(fakensqd.wait_until(lambda nsqd: nsqd.depth("orders"), 3, timeout=1.0), int)
    assert_type(fakensqd.transcript, Transcript)
    fakensqd.publish("orders", b"42", b"43", delay=1.5)
    fakensqd.assert_published("orders", b"42", count=1, timeout=5.0)
    with fakensqd.add(on.reply("PUB", topic="orders").nth(2), disconnect()) as added:
        assert_type(added.fired, int)
    fakensqd.restart(keep_messages=False)


def test_cluster(fakecluster: FakeCluster, fakelookupd: FakeLookupd) -> None:
    fakecluster.publish("orders", b"42")
    assert_type(fakecluster.nsqds[0].messages("orders"), list[bytes])
    assert_type(fakelookupd.http_address, str)


@pytest.fixture
def nsqd() -> Iterator[FakeNsqd]:
    with FakeNsqd(max_msg_size=1000, lookupd_tcp_addresses=["localhost:4160"]).in_thread() as running:
        yield assert_type(running, FakeNsqd)


def test_threads() -> None:
    nsqd = FakeNsqd().in_thread().start()
    assert_type(nsqd, FakeNsqd)
    with FakeAuthServer({"secret": [Grant()]}).in_thread() as auth, Relay(auth.http_address).in_thread() as relay:
        assert_type(relay.address, str)
    with FakeLookupd().in_thread() as lookupd, FakeCluster(nsqds=1, msg_timeout=1.0).in_thread() as cluster:
        assert_type(lookupd, FakeLookupd)
        assert_type(cluster, FakeCluster)
    thread = ServerThread(FakeNsqd())
    with thread as running:
        assert_type(running, FakeNsqd)
        assert_type(thread.call(max, 1, 2), int)
"""
WRONG = [
    ("fakensqd.publish('orders', '42')", "arg-type"),
    ("fakensqd.publish(b'orders', b'42')", "arg-type"),
    ("fakensqd.publish('orders', b'42', defer=1)", "call-arg"),
    ("fakensqd.assert_published('orders', '42')", "arg-type"),
    ("fakensqd.wait_until(lambda nsqd: nsqd.no_such_thing)", "attr-defined"),
    ("fakensqd.no_such_thing", "attr-defined"),
    ("FakeNsqd().in_thread().start().no_such_thing", "attr-defined"),
    ("FakeAuthServer(thread=True)", "call-arg"),
    ("FakeNsqd(max_msg_sise=1000)", "call-arg"),
    ("FakeNsqd(max_msg_size='1000')", "arg-type"),
    ("FakeLookupd(tombstone=1.0)", "call-arg"),
    ("FakeCluster(node_id=1)", "call-arg"),
    ("fakecluster.messages(1)", "arg-type"),
    ("on.reply('PUBB')", "arg-type"),
    ("on.frame('pong')", "arg-type"),
    ("corrupt('head')", "arg-type"),
    ("inject('beat')", "arg-type"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory, mypy_cache):
    """Give the line and the code of each error that mypy finds in the right lines, followed by the wrong ones."""
    pytest.importorskip("mypy")
    path = tmp_path_factory.mktemp("downstream") / "test_orders.py"
    wrong = [
        "def test_wrong(fakensqd: FakeNsqd, fakecluster: FakeCluster) -> None:",
        *(f"    {line}" for line, _ in WRONG),
    ]
    path.write_text("\n".join([*RIGHT.splitlines(), *wrong]) + "\n")
    options = [
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
        f"--cache-dir={mypy_cache('mypy')}",
    ]
    done = run(sys.executable, "-m", "mypy", *options, str(path))
    found = re.findall(r"test_orders\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {int(line): code for line, code in found}


@pytest.mark.subprocess
def test_right_uses_have_no_errors(errors):
    assert {line: code for line, code in errors.items() if line <= len(RIGHT.splitlines())} == {}


@pytest.mark.parametrize(
    ("number", "code"), [(len(RIGHT.splitlines()) + index, code) for index, (_, code) in enumerate(WRONG, 2)]
)
@pytest.mark.subprocess
def test_wrong_use_is_an_error(errors, number, code):
    assert errors.get(number) == code


def test_typed_keywords_of_a_cluster_are_those_that_it_does_not_set():
    own = {"tcp_address", "http_address", "lookupd_tcp_addresses", "node_id"}

    assert set(NsqdOptionsDict.__annotations__) - set(ClusterOptionsDict.__annotations__) == own
