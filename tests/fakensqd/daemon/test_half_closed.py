"""A client that shuts down its writing side reads what is still to come, as from the real server, faults or not."""

import gevent
import pytest
from gevent import socket

from fakensqd import FakeNsqd, on
from fakensqd.faults import delay, disconnect
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE
from tests.fakensqd.wire import Client, consumer
from tests.helpers import wait_until

OK = (RESPONSE, b"OK")
PUB = commands.publish("t", b"body")


@pytest.fixture
def nsqd(clock):
    with FakeNsqd(clock=clock, record=True) as nsqd:
        yield nsqd
    assert nsqd.errors == []


def frames(client, count):
    """Read in the background; so many frames, then the end."""
    return gevent.spawn(lambda: ([client.frame() for _ in range(count)], client.ended()))


LATE = [
    pytest.param(on.reply("PUB"), [delay(3.0)], [OK], id="a reply"),
    pytest.param(on.reply("PUB"), [delay(3.0, alone=True)], [OK], id="a reply, alone"),
    pytest.param(on.reply("PUB"), [delay(3.0), disconnect(after=True)], [OK], id="a reply and the end"),
    pytest.param(on.command("PUB"), [delay(3.0)], [OK], id="a command"),
]


@pytest.mark.parametrize(("match", "actions", "expected"), LATE)
def test_what_is_late_still_comes(nsqd, clock, match, actions, expected):
    nsqd.add(match, *actions)
    client = Client(nsqd.tcp_address)

    client.send(PUB)
    client.socket.shutdown(socket.SHUT_WR)
    reader = frames(client, len(expected))
    wait_until(lambda: nsqd.transcript.fired())
    clock.advance(2.9)
    assert not reader.ready()
    clock.advance(0.2)

    assert reader.get(timeout=10) == (expected, True)


def test_a_command_that_ends_early_is_late_too(nsqd, clock):
    nsqd.add(on.command("PUB"), delay(3.0))
    client = Client(nsqd.tcp_address)

    client.send(b"PUB t\n\0\0")
    client.socket.shutdown(socket.SHUT_WR)
    reader = frames(client, 1)
    wait_until(lambda: nsqd.transcript.fired())
    clock.advance(3.0)

    answer = (ERROR, b"E_BAD_MESSAGE PUB failed to read message body size")
    assert reader.get(timeout=10) == ([answer], True)


def test_who_has_hung_up_gets_no_message_while_its_reply_is_late(nsqd, clock):
    nsqd.add(on.reply("PUB", topic="other"), delay(3.0))
    gone = consumer(nsqd.tcp_address)
    gone.send(commands.publish("other", b"x"))
    gone.socket.close()
    wait_until(lambda: not nsqd.broker.topics["t"].channels["c"].subscribers)

    reader = consumer(nsqd.tcp_address)
    nsqd.broker.topics["t"].publish([b"x"], nsqd.now())

    assert reader.frame()[0] == MESSAGE
    clock.advance(3.0)
    wait_until(lambda: len(nsqd.transcript.connected()) == 1)


def test_a_stop_does_not_wait_for_what_is_late(nsqd):
    nsqd.add(on.reply("PUB"), delay(3.0))
    client = Client(nsqd.tcp_address)
    client.send(PUB)
    client.socket.shutdown(socket.SHUT_WR)
    wait_until(lambda: nsqd.transcript.fired())

    with gevent.Timeout(5.0):
        nsqd.stop()

    assert client.ended()
