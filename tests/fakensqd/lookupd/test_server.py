"""FakeLookupd over its sockets."""

import pytest
from gevent import socket

from fakensqd import FakeLookupd
from fakensqd.clock import ManualClock
from tests.kit.wire import request


def test_fake_lookupd_answers_tcp_and_http():
    with FakeLookupd(clock=ManualClock(start_ns=10**18), broadcast_address="b.example") as lookupd:
        sock = socket.create_connection(("127.0.0.1", lookupd.tcp_port), timeout=10)
        body = b'{"broadcast_address":"n.example","tcp_port":1,"http_port":2,"version":"1.3.0"}'
        sock.sendall(b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body + b"REGISTER t c\n")
        answer = sock.recv(1000)
        (node,) = request(lookupd.http_address, "GET", "/nodes")["producers"]
        debug = request(lookupd.http_address, "GET", "/debug")
        sock.close()

    assert b'"broadcast_address":"b.example"' in answer
    assert f'"tcp_port":{lookupd.tcp_port}'.encode() in answer
    assert (node["broadcast_address"], node["topics"]) == ("n.example", ["t"])
    assert debug["client::"][0]["last_update"] == 10**18
    assert lookupd.options.broadcast_address == "b.example"
    assert lookupd.errors == []


def test_options_are_those_of_nsqlookupd():
    with pytest.raises(TypeError, match="FakeLookupd has no option lifetime"):
        FakeLookupd(lifetime=1)
