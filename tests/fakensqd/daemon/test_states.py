"""States of a daemon: down, restarted, not reading, delayed, without heartbeats."""

import gevent
import gevent.socket
import pytest

from fakensqd import FakeLookupd, FakeNsqd
from gnsq.protocol import commands
from gnsq.protocol.frames import MESSAGE, RESPONSE, decode_message
from tests.kit import wait_until
from tests.kit.wire import Client, consumer, request

OK = (RESPONSE, b"OK")
HEARTBEAT = (RESPONSE, b"_heartbeat_")


def refuses(port):
    try:
        gevent.socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


# --- down and up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("daemon_class", [FakeNsqd, FakeLookupd])
def test_down_aborts_and_refuses_connections_until_up(daemon_class):
    with daemon_class() as daemon:
        addresses = (daemon.tcp_address, daemon.http_address)
        client = Client(daemon.tcp_address)

        daemon.down()
        daemon.down()
        assert client.ended()
        assert refuses(daemon.tcp_port)
        assert refuses(daemon.http_port)
        assert not daemon.running

        daemon.up()
        daemon.up()
        assert daemon.running
        assert (daemon.tcp_address, daemon.http_address) == addresses
        assert request(daemon.http_address, "GET", "/ping") == "OK"


# --- restart ----------------------------------------------------------------------------------------------------------


def messages(reader, count):
    frames = [reader.frame() for _ in range(count)]
    return [(decode_message(data)[3], decode_message(data)[1]) for kind, data in frames if kind == MESSAGE]


def test_restart_keeps_topics_channels_and_messages(nsqd, clock):
    reader = consumer(nsqd.tcp_address)
    topic = nsqd.broker.topics["t"]
    topic.publish([b"in flight", b"queued"], 0.0)
    topic.publish([b"deferred"], 0.0, delay=60.0)
    nsqd.broker.ensure_topic("held").publish([b"x"], 0.0)
    nsqd.broker.topics["held"].paused = True
    nsqd.broker.ensure_topic("gone#ephemeral")
    topic.ensure_channel("gone#ephemeral", 0.0)
    topic.ensure_channel("paused", 0.0).set_paused(True)
    assert messages(reader, 1) == [(b"in flight", 1)]
    before = nsqd.start_time
    clock.advance(10.0)

    nsqd.restart()
    assert reader.ended()
    assert request(nsqd.http_address, "GET", "/info")["start_time"] == nsqd.start_time == before + 10

    topics = nsqd.broker.topics
    assert list(topics) == ["t", "held"]
    assert (topics["held"].paused, topics["held"].depth) == (True, 1)
    assert list(topics["t"].channels) == ["c", "paused"]
    assert topics["t"].channels["paused"].paused
    channel = topics["t"].channels["c"]
    assert (channel.depth, channel.deferred_count, channel.in_flight_count, channel.message_count) == (3, 0, 0, 0)
    reader = consumer(nsqd.tcp_address, ready=10)
    assert messages(reader, 3) == [(b"queued", 1), (b"in flight", 2), (b"deferred", 1)]


def test_restart_without_messages_keeps_topics_and_channels(nsqd):
    topic = nsqd.broker.ensure_topic("t")
    topic.ensure_channel("c", 0.0)
    topic.publish([b"x"], 0.0)
    nsqd.broker.ensure_topic("u").publish([b"x"], 0.0)

    nsqd.restart(keep_messages=False)

    assert nsqd.broker.topics["t"].channels["c"].depth == 0
    assert nsqd.broker.topics["u"].depth == 0


def test_message_ids_are_unique_after_a_restart(nsqd):
    topic = nsqd.broker.ensure_topic("t")
    topic.ensure_channel("c", 0.0)
    topic.publish([b"x"], 0.0)
    nsqd.restart()
    nsqd.broker.topics["t"].publish([b"y"], 0.0)

    one, other = nsqd.broker.topics["t"].channels["c"].stored()

    assert one.id != other.id


# --- stop_reading() ---------------------------------------------------------------------------------------------------


def test_stop_reading_accepts_connections_and_answers_none(nsqd, clock):
    nsqd.record()
    before = Client(nsqd.tcp_address)
    before.send(b"NOP\n")
    nsqd.wait_until(lambda nsqd: nsqd.transcript.commands(), ["NOP"])

    nsqd.stop_reading()
    nsqd.stop_reading()
    after = Client(nsqd.tcp_address)
    for client in (before, after):
        client.send(commands.publish("t", b"x"))
    pinging = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    clock.advance(50.0)
    assert nsqd.broker.topics == {}
    assert not pinging.ready()

    nsqd.resume_reading()
    nsqd.resume_reading()
    assert after.frame() == OK
    assert pinging.get(timeout=10) == "OK"
    assert [before.frame(), before.frame()] == [HEARTBEAT, OK]


def test_stop_while_reading_is_stopped():
    with FakeNsqd() as nsqd:
        nsqd.stop_reading()
        pinging = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
        wait_until(lambda: nsqd._resumed.linkcount())

    with pytest.raises(OSError, match=r"closed|reset"):
        pinging.get(timeout=10)


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_silent_clients_stay_connected_while_heartbeats_are_paused(nsqd, clock):
    old = consumer(nsqd.tcp_address)
    nsqd.pause_heartbeats()
    new = consumer(nsqd.tcp_address)

    clock.advance(55.0)
    assert len(nsqd.sessions) == 2
    nsqd.resume_heartbeats()

    assert (old.frame(), new.frame()) == (HEARTBEAT, HEARTBEAT)


def test_client_that_was_silent_for_too_long_is_disconnected_after_the_pause(nsqd, clock):
    client = consumer(nsqd.tcp_address)
    nsqd.pause_heartbeats()
    clock.advance(500.0)
    assert len(nsqd.sessions) == 1

    nsqd.resume_heartbeats()

    assert client.ended()


# --- set_processing_delay() -------------------------------------------------------------------------------------------


def test_processing_delay_delays_commands_and_requests(nsqd, clock):
    client = Client(nsqd.tcp_address)
    nsqd.set_processing_delay(3.0)
    client.send(commands.publish("t", b"x"))
    pinging = gevent.spawn(request, nsqd.http_address, "GET", "/ping")

    clock.advance(2.9)
    assert (nsqd.broker.topics, pinging.ready()) == ({}, False)
    clock.advance(0.1)
    assert client.frame() == OK
    assert pinging.get(timeout=10) == "OK"

    with pytest.raises(ValueError, match="seconds -1 must be 0 or more"):
        nsqd.set_processing_delay(-1)
    nsqd.set_processing_delay(0)
    client.send(commands.publish("t", b"x"))
    assert client.frame() == OK
