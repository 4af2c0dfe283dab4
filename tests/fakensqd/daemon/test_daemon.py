"""Listeners: start, stop, ports, addresses, and that nothing is left over."""

import contextlib
import socket

import gevent
import gevent.socket
import pytest

from fakensqd import FakeNsqd
from gnsq.protocol import commands
from tests.kit import wait_until
from tests.kit.wire import request


def test_start_after_a_stop_takes_the_same_ports(tls_options, client_context):
    nsqd = FakeNsqd(**tls_options)
    with nsqd:
        nsqd.start()  # has no effect
        addresses = (nsqd.tcp_address, nsqd.http_address, nsqd.https_address)
        assert request(nsqd.https_address, "POST", "/pub?topic=t", b"x", context=client_context) == "OK"
    nsqd.stop()

    with nsqd:
        assert (nsqd.tcp_address, nsqd.http_address, nsqd.https_address) == addresses
        assert nsqd.https_address == f"127.0.0.1:{nsqd.https_port}"
        assert nsqd.broker.topics["t"].depth == 1
        assert request(nsqd.http_address, "GET", "/ping") == "OK"


@pytest.mark.parametrize("taken", ["tcp_address", "http_address", "https_address"])
def test_port_in_use_raises_and_leaves_no_listener(taken, tls_options):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        nsqd = FakeNsqd(**tls_options, **{taken: f"127.0.0.1:{other.getsockname()[1]}"})

        with pytest.raises(OSError, match="Address already in use"):
            nsqd.start()

    assert not nsqd.running
    nsqd = FakeNsqd(http_address=nsqd.http_address)
    with nsqd:
        pass


def test_http_clients_that_disconnect_early_are_no_errors(capfd):
    with FakeNsqd() as nsqd:
        for junk in (
            b"  V2SUB t c\n",
            b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
            b"\x16\x03\x01\n\n",
        ):
            sock = gevent.socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=10)
            sock.sendall(junk)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()

        assert request(nsqd.http_address, "GET", "/ping") == "OK"

    assert nsqd.errors == []
    assert capfd.readouterr().err == ""


LAST_DATA = [pytest.param(b"", id="in silence"), pytest.param(commands.ready(1), id="with RDY")]


@pytest.mark.parametrize("last_data", LAST_DATA)
def test_disconnected_client_gets_no_message_of_a_client_that_connects_later(last_data):
    with FakeNsqd() as nsqd, contextlib.ExitStack() as stack:

        def connected(data):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", nsqd.tcp_port)))
            sock.sendall(commands.MAGIC_V2 + data)
            return sock

        disconnected = connected(
            commands.subscribe("t", "c") + commands.ready(0 if last_data else 1) + commands.publish("u", b"x")
        )
        gevent.socket.wait_read(disconnected.fileno(), timeout=10)
        # Unread data would turn the close into a reset.
        assert disconnected.recv(100).count(b"OK") == 2

        def all_at_once():
            """Run in the loop before accept(): the new connection is accepted before the end of the old one is seen."""
            watcher.stop()
            disconnected.sendall(last_data)
            disconnected.close()
            connected(commands.publish("t", b"x"))

        loop = gevent.get_hub().loop
        watcher = loop.io(connected(b"").fileno(), 2, priority=loop.MAXPRI)
        watcher.start(all_at_once)

        channel = nsqd.broker.topics["t"].channels["c"]
        wait_until(lambda: channel.message_count and not channel.subscribers)
        watcher.close()
        assert (channel.depth, channel.in_flight_count) == (1, 0)
