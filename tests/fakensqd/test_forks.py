"""A child that is forked while a server runs leaves its ports and connections to the parent."""

import pytest

from tests.kit import run_program

pytestmark = pytest.mark.subprocess

SCRIPT = """
import contextlib, os, sys
import gevent
from gevent import socket
from fakensqd import FakeAuthServer, FakeLookupd, FakeNsqd, FakeCluster, Relay
from gnsq import NsqdHTTPClient, NsqdTCPClient, Producer

@contextlib.contextmanager
def child():
    # Waits until the parent lets it end. Its greenlets run first: those of a server in this hub are there, too.
    read, write = os.pipe()
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        for _ in range(100):
            gevent.sleep(1e-6)
        os.write(ready_write, b"x")
        os.read(read, 1)
        os._exit(0)
    os.read(ready_read, 1)
    yield
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0

def connects(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
"""


def run(body):
    done = run_program(SCRIPT + body)
    assert (done.stderr, done.returncode) == ("", 0)


def test_server_goes_down_and_comes_up_while_the_child_lives():
    run("""
for made in (FakeNsqd(), FakeNsqd().in_thread(), FakeLookupd().in_thread()):
    with made as server, child():
        assert connects(server.tcp_address) and connects(server.http_address)
        server.down()
        assert not connects(server.tcp_address) and not connects(server.http_address)
        server.restart()
        assert connects(server.tcp_address) and connects(server.http_address)
        server.stop()
        assert not connects(server.tcp_address)
""")


def test_stopped_server_does_not_accept_in_the_child():
    run("""
for made, address_of in (
    (FakeCluster(2), lambda cluster: cluster.nsqds[0].tcp_address),
    (FakeCluster(2).in_thread(), lambda cluster: cluster.lookupds[0].http_address),
    (FakeAuthServer(), lambda server: server.http_address),
    (FakeAuthServer().in_thread(), lambda server: server.http_address),
):
    with contextlib.ExitStack() as stack:
        address = address_of(stack.enter_context(made))
        with child():
            stack.close()
            assert not connects(address)
""")


@pytest.mark.parametrize("thread", ["", ".in_thread()"], ids=["hub", "thread"])
def test_connections_end_with_the_server_and_only_the_parent_answers(thread):
    run(f"""
with FakeLookupd(){thread} as lookupd, FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address]){thread} as nsqd:
    client = NsqdTCPClient(*nsqd.tcp_address.split(":"), timeout=5)
    client.connect()
    client.identify()
    nsqd.wait_registered()
    with child():
        for _ in range(50):
            client.publish("t", b"1")
            client.check_ok()
        assert len(nsqd.messages("t")) == 50
        nsqd.down()
        try:
            client.read_response()
        except Exception as error:
            assert "closed" in str(error) or "reset" in str(error), error
        else:
            raise AssertionError
""")


def test_call_of_a_server_of_a_thread_says_in_the_child_what_is_wrong():
    run("""
with FakeNsqd().in_thread() as nsqd:
    pid = os.fork()
    if not pid:
        try:
            nsqd.publish("t", b"1")
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
""")
