"""Addresses: hosts with ports, paths, listening, and connecting by the daemon's clock."""

import contextlib

import gevent
import pytest
from gevent import socket

from fakensqd import FakeLookupd, FakeNsqd
from fakensqd.addresses import (
    UNIX_PORT,
    bound_address,
    connect,
    join_address,
    listen,
    listen_address,
    listen_before_start,
    open_socket,
    peer_address,
    remove_socket_file,
    split_address,
)
from tests.kit import peer, silent_port, wait_until
from tests.kit.wire import request


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:4150", ("::1", 4150)), (":4150", ("", 4150))],
)
def test_address_is_split_and_joined(text, address):
    assert split_address(text) == listen_address(text) == address
    assert join_address(*address) == text


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:x", "localhost:65536", ""])
def test_invalid_address_is_refused(text):
    with pytest.raises(ValueError, match="is not host:port"):
        listen_address(text)


def test_path_is_an_address_to_listen_on():
    assert listen_address("/run/nsqd.sock") == ("/run/nsqd.sock", UNIX_PORT)
    assert join_address("/run/nsqd.sock", UNIX_PORT) == "/run/nsqd.sock"


@pytest.mark.parametrize(
    ("address", "text"),
    [(("10.0.0.1", 7), "10.0.0.1:7"), (("::ffff:10.0.0.1", 7, 0, 0), "10.0.0.1:7"), ("", "@"), (b"", "@")],
)
def test_address_of_a_client_is_formatted(address, text):
    assert peer_address(address) == text


@pytest.mark.parametrize("listening", [True, False])
def test_port_in_use_cannot_be_opened(listening):
    listener = listen(("127.0.0.1", 0))
    address = bound_address(listener)
    with contextlib.closing(listener), pytest.raises(OSError, match=f"in use: '{join_address(*address)}'"):
        open_socket(address, listening=listening)


def test_path_that_is_too_long_for_a_socket_is_refused():
    with pytest.raises(
        ValueError, match=r"the path of the unix socket .* has 108 bytes, more than 107: give a shorter"
    ):
        listen_address("/" + "x" * 107)


def test_socket_file_of_a_dead_server_is_replaced(socket_folder):
    path = str(socket_folder / "x.sock")
    listen((path, UNIX_PORT)).close()

    with contextlib.closing(listen((path, UNIX_PORT))) as listener:
        assert bound_address(listener) == (path, UNIX_PORT)
        with pytest.raises(OSError, match="in use"):
            listen((path, UNIX_PORT))
        remove_socket_file((path, UNIX_PORT))
    remove_socket_file((path, UNIX_PORT))
    assert list(socket_folder.iterdir()) == []


def test_listen_takes_over_a_socket_of_listen_before_start():
    address = listen_before_start("127.0.0.1:0")
    with contextlib.closing(socket.create_connection(split_address(address), timeout=10)):
        listener = listen(split_address(address))
        with contextlib.closing(listener):
            assert isinstance(listener, socket.socket)
            assert join_address(*bound_address(listener)) == address
            listener.accept()[0].close()


# --- connecting -------------------------------------------------------------------------------------------------------


def test_connection_that_is_not_accepted_times_out(clock):
    with silent_port() as port:
        connecting = gevent.spawn(connect, ("127.0.0.1", port), clock, 2.0)
        clock.advance(1.9)
        assert not connecting.ready()
        clock.advance(0.2)

        with pytest.raises(TimeoutError):
            connecting.get(timeout=10)


def test_nsqlookupd_that_does_not_answer_times_out(clock):
    commands = []

    def listen(sock):
        while data := sock.recv(65536):
            commands.append(data)

    with peer(listen) as address, FakeNsqd(clock=clock, lookupd_tcp_addresses=address) as nsqd:
        waiting = gevent.spawn(nsqd.wait_registered)
        wait_until(lambda: commands)
        clock.advance(0.9)
        assert not waiting.ready()
        clock.advance(0.2)

        assert waiting.ready()


def test_new_topic_waits_five_seconds_for_channels_of_an_nsqlookupd(clock):
    with (
        FakeLookupd(clock=clock, record=True) as lookupd,
        FakeNsqd(clock=clock, lookupd_tcp_addresses=lookupd.tcp_address) as nsqd,
    ):
        nsqd.wait_registered()
        lookupd.set_processing_delay(3600.0)
        channel = nsqd.broker.ensure_topic("t").ensure_channel("c", nsqd.now())
        request(nsqd.http_address, "POST", "/pub?topic=t", b"x")
        clock.advance(4.9)
        assert channel.depth == 0
        clock.advance(0.2)

        assert channel.depth == 1


def test_file_that_is_no_socket_is_not_replaced_by_one(socket_folder):
    file = socket_folder / "nsqd.sock"
    file.write_text("kept")

    with pytest.raises(OSError, match="in use"):
        open_socket((str(file), UNIX_PORT), listening=True)
    assert file.read_text() == "kept"
