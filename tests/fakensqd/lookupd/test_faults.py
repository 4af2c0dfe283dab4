"""Transcript and faults of connections from nsqds to FakeLookupd."""

import pytest

from fakensqd import FakeLookupd, FakeNsqd, on
from fakensqd.faults import corrupt, disconnect, drop, duplicate, error, expire_message, inject
from fakensqd.lookupd.registry import Key
from tests.fakensqd.lookupd.test_session import identify
from tests.kit import wait_until
from tests.kit.wire import Client, request

OK = b"OK"


class Nsqd(Client):
    """One connection to nsqlookupd."""

    magic = b"  V1" + identify()

    def __init__(self, lookupd):
        super().__init__(lookupd.tcp_address)

    def answer(self):
        """Wait for a response; b"" is the end of the connection."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, count):
        data = b""
        while len(data) < count and (part := self.socket.recv(count - len(data))):
            data += part
        return data


@pytest.fixture
def lookupd(clock):
    with FakeLookupd(clock=clock, record=True, seed=1) as lookupd:
        yield lookupd
    assert lookupd.errors == []


@pytest.fixture
def nsqd(lookupd):
    nsqd = Nsqd(lookupd)
    assert nsqd.answer().startswith(b"{")
    return nsqd


def registered(lookupd):
    return len(lookupd.registry.find(Key("topic", "t")))


def test_commands_and_responses_of_nsqlookupd_are_recorded(lookupd, nsqd):
    nsqd.send(b"REGISTER t c\nUNREGISTER t c\nPING\nREGISTER a@b\n")
    answers = [nsqd.answer() for _ in range(5)]

    assert answers[4] == b""
    commands = [(entry.name, entry.topic, entry.channel) for entry in lookupd.transcript.select("command")]
    assert commands == [
        ("IDENTIFY", "", ""),
        ("REGISTER", "t", "c"),
        ("UNREGISTER", "t", "c"),
        ("PING", "", ""),
        ("REGISTER", "a@b", ""),
    ]
    replies = [entry.name for entry in lookupd.transcript.select("reply")]
    assert replies == ["", "OK", "OK", "OK", "E_BAD_TOPIC"]
    first, *others = lookupd.transcript.select("command")
    assert b'"tcp_port": 4150' in first.bodies[0]
    assert {entry.client_id for entry in others} == {"b:4150"}
    assert [entry.executed for entry in lookupd.transcript.select("command")] == [1, 1, 1, 1, 0]


# What differs from nsqd: each error ends the connection, and responses have no type.
REPLIES = [
    pytest.param(on.command, error("E_INVALID", "no"), [b"E_INVALID no"], True, 0, id="error"),
    pytest.param(on.reply, error("E_FIN_FAILED", "x"), [b"E_FIN_FAILED x"], True, 1, id="reply: all are fatal"),
    pytest.param(on.command, drop(), [OK], False, 0, id="drop"),
    pytest.param(on.reply, duplicate(), [OK, OK, OK], False, 1, id="reply: duplicate"),
    pytest.param(on.reply, corrupt("body"), [b"\xb0K", OK], False, 1, id="reply: corrupt body"),
    pytest.param(on.reply, inject(b"\0\0\0\1x", after=True), [OK, b"x", OK], False, 1, id="reply: inject"),
]


@pytest.mark.parametrize(("point", "action", "answers", "ended", "count"), REPLIES)
def test_fault_acts_on_a_registration(lookupd, nsqd, point, action, answers, ended, count):
    held = []

    def look(steps, event):
        held.append(registered(lookupd))
        return steps

    lookupd.add(point("REGISTER", topic="t", channel="c"), action)
    lookupd.add(on.command("PING"), look, optional=True)

    nsqd.send(b"REGISTER t c\n" + (b"" if ended else b"PING\n"))

    assert [nsqd.answer() for _ in answers] == answers
    assert not ended or nsqd.answer() == b""
    assert ended or held == [count]
    assert lookupd.unfired() == []


def test_fake_nsqd_registers_again_when_its_connection_was_cut(lookupd, clock):
    lookupd.add(on.reply("REGISTER", topic="t"), disconnect())
    with FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address], clock=clock) as nsqd:
        nsqd.wait_registered()
        request(nsqd.http_address, "POST", "/topic/create?topic=t")
        wait_until(lambda: lookupd.transcript.fired())
        clock.advance(15.0)

        wait_until(lambda: registered(lookupd))
    (again,) = lookupd.transcript.select("command", name="REGISTER")[1:]
    assert (again.connection, again.client_id) == (2, nsqd.tcp_address)


OTHERS = [
    pytest.param(on.command("PUB"), drop(), "FakeLookupd has no PUB; it has IDENTIFY", id="a command of nsqd's"),
    pytest.param(on.frame("message"), drop(), "FakeLookupd has no frame to act on", id="frames"),
    pytest.param(on.reply(), corrupt("type"), "is for nsqd only", id="a type"),
    pytest.param(on.reply(), inject("heartbeat"), "is for nsqd only", id="a heartbeat"),
    pytest.param(on.command(), expire_message(), "is for nsqd only", id="a timeout"),
]


@pytest.mark.parametrize(("match", "action", "words"), OTHERS)
def test_rule_for_events_that_nsqlookupd_does_not_have_is_refused(match, action, words):
    with pytest.raises(ValueError, match=words):
        FakeLookupd().add(match, action)
