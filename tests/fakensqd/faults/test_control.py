"""Rules on real connections: each action at each of its points, by a manual clock."""

import contextlib
import re

import gevent
import pytest

from fakensqd import FakeCluster, FakeNsqd, Scenario, on
from fakensqd.faults import (
    corrupt,
    delay,
    disconnect,
    drop,
    duplicate,
    error,
    inject,
    refuse,
    reorder,
    reset,
)
from fakensqd.faults.control import RuleNeverActed
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, decode_message, encode_frame
from tests.kit.wire import Client, consumer

OK = (RESPONSE, b"OK")
BEAT = (RESPONSE, b"_heartbeat_")
PUB = commands.publish("t", b"body")


@pytest.fixture
def client(nsqd):
    return Client(nsqd.tcp_address)


def body(frame):
    assert frame[0] == MESSAGE
    return decode_message(frame[1])[3]


def stored(nsqd):
    return nsqd.broker.topics["t"].message_count if "t" in nsqd.broker.topics else 0


# --- commands and replies ---------------------------------------------------------------------------------------------

PUBLISHED = [
    pytest.param(on.command, error("E_PUB_FAILED"), [(ERROR, b"E_PUB_FAILED PUB failed exiting")], True, 0, id="error"),
    pytest.param(on.reply, error("E_BAD_MESSAGE", "no"), [(ERROR, b"E_BAD_MESSAGE no")], True, 1, id="reply: error"),
    pytest.param(on.command, error("E_FIN_FAILED", "x"), [(ERROR, b"E_FIN_FAILED x"), OK], False, 1, id="not fatal"),
    pytest.param(on.command, drop(), [OK], False, 1, id="drop"),
    pytest.param(on.reply, drop(), [OK], False, 2, id="reply: drop"),
    pytest.param(on.command, duplicate(), [OK, OK, OK], False, 3, id="duplicate"),
    pytest.param(on.reply, duplicate(3), [OK, OK, OK, OK], False, 2, id="reply: duplicate"),
    pytest.param(on.reply, corrupt("type"), [(9, b"OK"), OK], False, 2, id="reply: corrupt type"),
    pytest.param(on.reply, corrupt("body"), [(0, b"\xb0K"), OK], False, 2, id="reply: corrupt body"),
    pytest.param(on.reply, corrupt("body", b"YES"), [(0, b"YES"), OK], False, 2, id="reply: another body"),
    pytest.param(on.command, disconnect(), [], True, 0, id="disconnect"),
    pytest.param(on.command, disconnect(after=True), [OK], True, 1, id="disconnect after"),
    pytest.param(on.reply, disconnect(), [], True, 1, id="reply: disconnect"),
    pytest.param(on.reply, disconnect(after=True), [OK], True, 1, id="reply: disconnect after"),
    pytest.param(on.command, reset(), [], True, 0, id="reset"),
    pytest.param(on.reply, reset(), [], True, 1, id="reply: reset"),
    pytest.param(on.command, inject("heartbeat"), [BEAT, OK, OK], False, 2, id="inject"),
    pytest.param(on.reply, inject(encode_frame(0, b"x"), after=True), [OK, (0, b"x"), OK], False, 2, id="inject after"),
    pytest.param(on.reply, reorder(), [OK, OK], False, 2, id="reply: reorder"),
]


@pytest.mark.parametrize(("point", "action", "frames", "ended", "count"), PUBLISHED)
def test_rule_acts_on_pub_or_its_reply(nsqd, client, point, action, frames, ended, count):
    nsqd.add(point("PUB", topic="t"), action)

    client.send(PUB)
    if not ended:
        client.send(PUB)

    assert [client.frame() for _ in frames] == frames
    assert not ended or client.ended()
    assert stored(nsqd) == count
    assert nsqd.unfired() == []


def test_corrupt_changes_a_body_before_it_is_stored(nsqd, client):
    nsqd.add(on.command("PUB"), corrupt("body"))
    nsqd.add(on.command("PUB", body=b"body"), corrupt("body", b"another"))

    client.send(PUB + PUB)

    assert [client.frame(), client.frame()] == [OK, OK]
    reader = consumer(nsqd.tcp_address, ready=2)
    assert [body(reader.frame()), body(reader.frame())] == [b"\x9dody", b"another"]


# --- time -------------------------------------------------------------------------------------------------------------


def nothing_comes(client):
    with gevent.Timeout(0.02, False):
        client.frame()
        return False
    return True


def test_delayed_command_delays_later_commands(nsqd, client, clock):
    nsqd.add(on.command("PUB"), delay(1.0))

    client.send(PUB + commands.publish("u", b"x"))
    nsqd.wait_until(lambda nsqd: nsqd.transcript.commands(), ["PUB"])
    assert nsqd.broker.topics == {}
    clock.advance(1.0)

    assert [client.frame(), client.frame()] == [OK, OK]
    assert list(nsqd.broker.topics) == ["t", "u"]


def test_reply_delayed_alone_is_overtaken(nsqd, client, clock):
    nsqd.add(on.reply("PUB"), delay(1.0, alone=True), corrupt("body", b"late"))

    client.send(PUB + PUB)
    assert client.frame() == OK
    clock.advance(1.0)

    assert client.frame() == (RESPONSE, b"late")


def test_delayed_identify_reply_is_sent_before_compression_begins(nsqd, client, clock):
    nsqd.add(on.reply("IDENTIFY"), delay(1.0))

    client.send(commands.identify({"feature_negotiation": True, "snappy": True}))
    nsqd.wait_until(lambda nsqd: nsqd.transcript.fired(), ["on.reply('IDENTIFY'), delay(seconds=1.0)"])
    assert nothing_comes(client)
    clock.advance(1.0)

    assert b'"snappy":true' in client.frame()[1]


# --- pushed frames ----------------------------------------------------------------------------------------------------


def publish(nsqd, *bodies):
    nsqd.broker.ensure_topic("t").publish(list(bodies), nsqd.now())


PUSHED = [
    pytest.param(drop(), [b"b"], 2, id="drop"),
    pytest.param(corrupt("body"), [b"\x9e", b"b"], 2, id="corrupt body"),
]


@pytest.mark.parametrize(("action", "bodies", "in_flight"), PUSHED)
def test_rule_acts_on_a_pushed_message(nsqd, action, bodies, in_flight):
    client = consumer(nsqd.tcp_address, ready=5)
    nsqd.add(on.frame("message", topic="t", channel="c", body=b"a"), action)

    publish(nsqd, b"a", b"b")

    assert [body(client.frame()) for _ in bodies] == bodies
    assert nsqd.in_flight("t", "c") == in_flight


def test_dropped_heartbeats_are_not_sent(nsqd, client, clock):
    client.send(commands.identify({"heartbeat_interval": 1000, "client_id": "me"}))
    assert client.frame() == OK
    nsqd.add(on.frame("heartbeat", client_id="me").first(2), drop())
    for count in (1, 2, 3):
        clock.advance(1.0)
        client.send(b"NOP\n")
        nsqd.wait_until(lambda nsqd: nsqd.transcript.commands("NOP"), ["NOP"] * count)

    assert client.frame() == BEAT
    assert len(nsqd.transcript.fired()) == 2


# --- connections ------------------------------------------------------------------------------------------------------

TURNED_AWAY = [pytest.param(action, id=str(action)) for action in (refuse(), reset(), disconnect())]


@pytest.mark.parametrize("action", TURNED_AWAY)
def test_rule_ends_a_new_connection(nsqd, action):
    nsqd.add(on.connect(connection=1), action)

    assert Client(nsqd.tcp_address).ended()
    other = Client(nsqd.tcp_address)
    other.send(PUB)
    assert other.frame() == OK


def test_dropped_connection_is_accepted_and_never_served(nsqd):
    nsqd.add(on.connect(), drop())
    client = Client(nsqd.tcp_address)

    client.send(PUB)

    assert nothing_comes(client)
    client.socket.close()
    nsqd.wait_until(lambda nsqd: nsqd.transcript.connected(), [])


def test_delayed_connection_is_served_later(nsqd, clock):
    nsqd.add(on.connect(), delay(1.0))
    client = Client(nsqd.tcp_address)
    client.send(PUB)
    nsqd.wait_until(lambda nsqd: len(nsqd.transcript.fired()), 1)

    clock.advance(1.0)

    assert client.frame() == OK


# --- adding and removing rules ----------------------------------------------------------------------------------------


def test_rule_is_removed_at_the_end_of_its_block(nsqd, client):
    with nsqd.add(on.reply("PUB").always(), duplicate()) as added:
        client.send(PUB)
        assert [client.frame(), client.frame()] == [OK, OK]

    client.send(PUB + b"NOPE\n")

    assert [client.frame()[1][:9] for _ in range(2)] == [b"OK", b"E_INVALID"]
    assert added.fired == 1


def test_server_that_records_nothing_has_no_transcript():
    with pytest.raises(RuntimeError, match=r"FakeNsqd\(record=True\)"):
        _ = FakeNsqd().transcript


def test_actions_beside_a_scenario_are_refused():
    with pytest.raises(TypeError, match="its own actions"):
        FakeNsqd().add(Scenario(), drop())


def test_nsqds_of_a_cluster_count_events_together():
    with FakeCluster(seed=5) as cluster:
        cluster.add(on.reply("PUB").nth(2), disconnect())
        cluster.add(on.http("/nothing"), drop(), optional=True)
        first, second = map(Client, cluster.nsqd_tcp_addresses)
        first.send(PUB)
        assert first.frame() == OK
        assert cluster.unfired() == [
            "on.reply('PUB').nth(2), disconnect(): 1 fitted, and its time did not come",
        ]

        second.send(PUB)

        assert second.ended()
        assert cluster.unfired() == []
        assert "FakeNsqd, seed=5" in cluster.report()


def test_rules_of_a_cluster_may_be_added_and_removed_before_its_start():
    cluster = FakeCluster(nsqds=1, lookupds=0)
    removed = cluster.add(on.command("PUB"), drop(), optional=True)
    added = cluster.add(Scenario().then(on.command("PUB"), disconnect()))
    removed.remove()
    with cluster:
        client = Client(cluster.nsqd_tcp_addresses[0])
        client.send(PUB)
        assert client.ended()

    assert (added.fired, removed.fired) == (1, 0)


# --- rules that never act ---------------------------------------------------------------------------------------------

UNFIRED = "rule never acted: on.reply('PUB'), drop(): nearest was DPUB topic='t' on connection 1: kind is 'DPUB'"


def end_of_a_test(nsqd, how, error=None):
    with nsqd as running:
        added = running.add(on.reply("PUB"), drop())
        with added if how == "with" else contextlib.nullcontext():
            client = Client(running.tcp_address)
            client.send(commands.deferpublish("t", b"x", 1))
            client.frame()
            if error is not None:
                raise error


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("how", ["with", "stop"])
def test_rule_that_never_acted_raises_at_the_end_or_is_a_note_of_another_exception(threaded, how):
    error = ValueError("the test's")
    nsqd, failing = (FakeNsqd().in_thread() if threaded else FakeNsqd() for _ in range(2))

    with pytest.raises(RuleNeverActed, match=re.escape(UNFIRED)):
        end_of_a_test(nsqd, how)
    with pytest.raises(ValueError, match="the test's"):
        end_of_a_test(failing, how, error)

    assert not nsqd.running
    nsqd.stop()  # it is told once
    (note,) = error.__notes__
    assert note.startswith(UNFIRED)


def test_unfired_rule_of_a_cluster_is_told_once_after_all_servers_are_stopped():
    cluster = FakeCluster().start()
    cluster.add(on.reply("PUB"), drop())
    cluster.add(on.http("/pub"), drop(), optional=True)

    with pytest.raises(RuleNeverActed) as caught:
        cluster.stop()

    assert str(caught.value) == "rule never acted: on.reply('PUB'), drop(): nothing of that kind happened"
    assert not any(server.running for server in (*cluster.nsqds, *cluster.lookupds))
