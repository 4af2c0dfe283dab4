"""Addresses to listen on: host and port, or a path."""

import contextlib
import socket

import pytest
from gevent import socket as cooperative

from fakensqd.addresses import (
    UNIX_PORT,
    bound_address,
    join_address,
    listen,
    listen_address,
    listen_before_start,
    peer_address,
    remove_socket_file,
    split_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:4150", ("::1", 4150)), (":4150", ("", 4150))],
)
def test_addresses(text, address):
    assert split_address(text) == listen_address(text) == address
    assert join_address(*address) == text


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:x", "localhost:65536", ""])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is not host:port"):
        listen_address(text)


def test_a_path():
    assert listen_address("/run/nsqd.sock") == ("/run/nsqd.sock", UNIX_PORT)
    assert join_address("/run/nsqd.sock", UNIX_PORT) == "/run/nsqd.sock"


@pytest.mark.parametrize(
    ("address", "text"),
    [(("10.0.0.1", 7), "10.0.0.1:7"), (("::ffff:10.0.0.1", 7, 0, 0), "10.0.0.1:7"), ("", "@"), (b"", "@")],
)
def test_peers(address, text):
    assert peer_address(address) == text


def test_a_port_that_is_taken():
    listener = listen(("127.0.0.1", 0))
    with contextlib.closing(listener), pytest.raises(OSError, match="in use"):
        listen(bound_address(listener))


def test_the_socket_of_a_server_that_is_dead_is_taken_over(tmp_path):
    path = str(tmp_path / "x.sock")
    listen((path, UNIX_PORT)).close()

    with contextlib.closing(listen((path, UNIX_PORT))) as listener:
        assert bound_address(listener) == (path, UNIX_PORT)
        with pytest.raises(OSError, match="in use"):
            listen((path, UNIX_PORT))
        remove_socket_file((path, UNIX_PORT))
    remove_socket_file((path, UNIX_PORT))
    assert list(tmp_path.iterdir()) == []


def test_who_listens_early_is_found_by_its_address():
    address = listen_before_start("127.0.0.1:0")
    with contextlib.closing(socket.create_connection(split_address(address), timeout=10)):
        listener = listen(split_address(address))
        with contextlib.closing(listener):
            assert isinstance(listener, cooperative.socket)
            assert join_address(*bound_address(listener)) == address
            listener.accept()[0].close()
