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


class Nsqd:
    """The nsqd: sends bytes, reads responses."""

    def __init__(self, registry):
        self.now = 0.0
        self.closed = False
        self.session = LookupdSession(registry, remote_address="127.0.0.1:1", identity=lambda: {"version": "x"})

    def _answers(self, effects):
        answers = []
        for effect in effects:
            match effect:
                case Send(data):
                    while data:
                        (size,) = struct.unpack_from(">i", data)
                        answers.append(data[4 : 4 + size])
                        data = data[4 + size :]
                case Close():
                    self.closed = True
        return answers

    def send(self, data):
        return self._answers(self.session.receive(data, self.now))

    def end(self):
        return self._answers(self.session.end_of_input(self.now))


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def nsqd(registry):
    nsqd = Nsqd(registry)
    assert nsqd.send(b"  V1") == []
    return nsqd


def test_register_before_identify_is_refused(nsqd):
    assert nsqd.send(b"REGISTER t\n") == [b"E_INVALID client must IDENTIFY"]
    assert nsqd.closed


def test_negative_size_closes_the_connection_without_an_error(nsqd):
    assert nsqd.send(b"IDENTIFY\n\xff\xff\xff\xff") == []
    assert nsqd.closed


def test_ping_updates_the_nsqd_until_it_disconnects(nsqd, registry):
    nsqd.send(b"PING\n" + identify())
    (producer,) = registry.producers(Key("client"))
    nsqd.now = 5.0

    nsqd.send(b"REGISTER t\n")
    assert producer.peer.last_update == 0.0
    nsqd.send(b"PING\n")
    assert producer.peer.last_update == 5.0

    nsqd.session.disconnected()
    assert registry.producers(Key("client")) == []


def test_session_of_nsqlookupd_sends_only_responses(nsqd):
    assert nsqd.session.due == math.inf
    assert (nsqd.session.pump(1.0), nsqd.session.tick(1.0)) == ([], [])
    nsqd.session.disconnected()
