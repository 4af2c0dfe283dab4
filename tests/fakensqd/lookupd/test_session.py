"""The connection of one nsqd to nsqlookupd, as far as recorded sessions do not have it."""

import json
import math
import struct

import pytest

from fakensqd.effects import Close, Send
from fakensqd.lookupd.registry import Key, Registry
from fakensqd.lookupd.session import LookupdSession

FACTS = {"broadcast_address": "b", "hostname": "h", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}


def identify(**changes):
    body = json.dumps(FACTS | changes).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def session(registry):
    session = LookupdSession(registry, remote_address="127.0.0.1:1", identity=lambda: {"version": "x"})
    assert session.receive(b"  V1", 0.0) == []
    return session


def test_register_before_identify_is_refused(session):
    text = b"E_INVALID client must IDENTIFY"

    assert session.receive(b"REGISTER t\n", 0.0) == [Send(struct.pack(">i", len(text)) + text), Close()]


def test_negative_size_closes_the_connection_without_an_error(session):
    assert session.receive(b"IDENTIFY\n\xff\xff\xff\xff", 0.0) == [Close()]


def test_ping_updates_the_nsqd_until_it_disconnects(session, registry):
    session.receive(b"PING\n" + identify(), 0.0)
    (producer,) = registry.producers(Key("client"))

    session.receive(b"REGISTER t\n", 5.0)
    assert producer.peer.last_update == 0.0
    session.receive(b"PING\n", 5.0)
    assert producer.peer.last_update == 5.0

    session.disconnected()
    assert registry.producers(Key("client")) == []


def test_session_of_nsqlookupd_sends_only_responses(session):
    assert session.due == math.inf
    assert (session.pump(1.0), session.tick(1.0)) == ([], [])
