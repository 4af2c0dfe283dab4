"""One V2 client, as far as recorded sessions (behaviour/test_recorded) do not have it."""

import math
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakensqd.faults.control import FaultControl
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.session import NSQD
from fakensqd.options import NsqdOptions
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, decode_message
from tests.fakensqd.nsqd.clients import SessionClient
from tests.kit import collector_off

OK = [(RESPONSE, b"OK")]


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def client(broker):
    client = SessionClient(broker)
    assert client.send(b"  V2") == []
    return client


def consumer(broker, ready=1, identify=None, now=0.0, **arguments):
    client = SessionClient(broker, **arguments)
    client.now = now
    client.send(b"  V2")
    if identify is not None:
        assert client.send(commands.identify(identify)) == OK
    assert client.send(commands.subscribe("t", "c")) == OK
    client.send(commands.ready(ready))
    return client


def publish(broker, *bodies, now=0.0):
    broker.ensure_topic("t").publish(list(bodies), now)


def ids(frames):
    return [decode_message(data)[2] for kind, data in frames if kind == MESSAGE]


# --- magic, lines, input that ends ------------------------------------------------------------------------------------


def test_numbers_overflow_as_in_go(client):
    """No recorded session has these: numbers above 64 bits wrap, and a delay that wraps to below 0 becomes 0."""
    *_, (_, message) = client.send(b"SUB t c\nRDY 1\nDPUB t 18446744073709551616\n\0\0\0\1x")
    message_id = decode_message(message)[2]
    for delay in (b"9223372036855", b"18446744073709551616"):
        assert client.send(b"REQ %s %s\n" % (message_id, delay))[0][0] == MESSAGE

    assert client.send(b"RDY 18446744073709551615\n") == [(ERROR, b"E_INVALID RDY count -1 out of range 0-2500")]


COMMANDS = st.one_of(
    st.sampled_from([b"NOP\n", b"CLS\n", b"SUB t c\n", b"RDY 3\n", b"SUB t\r\n", b"FOO\n", b"AUTH\n\0\0\0\1x"]),
    st.builds(commands.publish, st.just("t"), st.binary(min_size=1, max_size=20)),
    st.builds(commands.multipublish, st.just("t"), st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4)),
    st.builds(lambda name, data: name + b" " + data + b"\n", st.sampled_from([b"FIN", b"REQ", b"DPUB"]), st.binary()),
    st.builds(lambda data: b"IDENTIFY\n" + struct.pack(">i", len(data)) + data, st.binary()),
    st.binary(max_size=40),
)


@given(st.lists(COMMANDS, max_size=12), st.data())
def test_responses_do_not_depend_on_how_bytes_are_split(parts, data):
    stream = b"  V2" + b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole, cut = SessionClient(Broker()), SessionClient(Broker())

    wanted = whole.send(stream) + whole.end()
    got = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += cut.send(stream[start:stop])
    got += cut.end()

    # Messages may come between responses at any point.
    def answers(frames):
        return [frame for frame in frames if frame[0] != MESSAGE]

    assert answers(got) == answers(wanted)
    assert (cut.closed, cut.session.state) == (whole.closed, whole.session.state) == (True, whole.session.state)


# --- states -----------------------------------------------------------------------------------------------------------

ID = b"0123456789abcdef"


def test_cls_before_sub_is_refused(client):
    assert client.send(b"CLS\n") == [(ERROR, b"E_INVALID cannot CLS in current state")]


def test_rdy_is_not_parsed_after_cls(broker):
    client = consumer(broker)
    client.send(b"CLS\n")

    assert client.send(b"RDY nonsense\n") == []


# --- consuming --------------------------------------------------------------------------------------------------------


def test_messages_of_one_wake_up_are_one_send(broker):
    client = consumer(broker, ready=100)
    publish(broker, *[b"x"] * 100)
    sends = client.sends

    assert len(client.bodies()) == 100
    assert client.sends == sends + 1


def test_long_queue_is_delivered_in_batches(broker):
    client = consumer(broker, ready=2500)
    publish(broker, *[b"x"] * 300)
    woken = client.woken

    assert len(client.bodies()) == 256
    assert client.woken == woken + 1
    assert len(client.bodies()) == 44


def test_session_of_a_deleted_channel_executes_no_commands(broker):
    client = consumer(broker)
    broker.delete_topic("t")

    assert client.send(commands.publish("u", b"x")) == []
    assert client.closed
    assert broker.topics == {}


def test_sub_beyond_max_channel_consumers_is_refused():
    broker = Broker(NsqdOptions(max_channel_consumers=1))
    consumer(broker)
    client = SessionClient(broker)

    frames = client.send(b"  V2SUB t c\n")

    assert frames == [(ERROR, b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")]
    assert client.closed


# --- costs ------------------------------------------------------------------------------------------------------------


def calls(function, *arguments):
    """Count the Python functions that a function calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    with collector_off():
        sys.setprofile(note)
        try:
            function(*arguments)
        finally:
            sys.setprofile(before)
    return count


def test_messages_of_one_mpub_need_one_call_each(client):
    data = commands.multipublish("t", [b"x"] * 1000)

    count = calls(client.session.receive, data, 0.0)

    assert 1000 <= count < 1100
    assert client.broker.topics["t"].message_count == 1000


def test_messages_of_one_delivery_need_no_calls(broker):
    client = consumer(broker, ready=2500)
    publish(broker, *[b"x"] * 256)

    assert calls(client.session.pump, 0.0) < 50
    assert client.session.in_flight_count == 256


def test_finishes_of_one_read_need_no_calls(broker):
    client = consumer(broker, ready=2500)
    publish(broker, *[b"x"] * 1000)
    message_ids = [message_id for _ in range(4) for message_id in ids(client.pump())]

    assert calls(client.session.receive, commands.finish_all(message_ids), 0.0) < 50
    assert client.session.finish_count == 1000


# --- FINs that come together ------------------------------------------------------------------------------------------


def in_flight(count=4):
    """A client that has got messages and now has RDY 0, their ids, and the id of another client's message."""
    broker = Broker()
    client = consumer(broker, ready=count)
    publish(broker, *[b"x"] * count)
    message_ids = ids(client.pump())
    client.send(commands.ready(0))
    other = consumer(broker)
    publish(broker, b"x")
    return client, message_ids, *ids(other.pump())


def not_in_flight(message_id):
    return (ERROR, b"E_FIN_FAILED FIN %s failed ID not in flight" % message_id)


def test_unknown_ids_among_finishes_are_errors_in_order():
    client, (first, second, third, fourth), foreign = in_flight()

    frames = client.send(commands.finish_all([first, ID, second, foreign, first, third, fourth]))

    does_not_own = (ERROR, b"E_FIN_FAILED FIN %s failed client does not own message" % foreign)
    assert frames == [not_in_flight(ID), does_not_own, not_in_flight(first)]
    assert (client.session.finish_count, client.session.in_flight_count) == (4, 0)
    assert not client.closed


# Each broker makes the same ids.
_, IDS, FOREIGN = in_flight()
ANSWERS = st.builds(
    bytes.__mod__,
    st.sampled_from([b"FIN %s\n"] * 3 + [b"FIN %s\r\n", b"FIN %s x\n", b"REQ %s 0\n", b"TOUCH %s\n"]),
    st.sampled_from([*IDS, FOREIGN, ID]),
)
OTHERS = st.sampled_from([b"NOP\n", b"CLS\n", commands.publish("u", b"FIN %s\n" % IDS[0]), b"FIN 0123456789abcde\r\n"])


def outcome(parts, *, recorded):
    client, _, _ = in_flight()
    if recorded:
        client.session.attach(FaultControl("FakeNsqd", NSQD, record=True), 1)
    frames = [frame for part in parts for frame in client.send(part)]
    session, channel = client.session, client.broker.topics["t"].channels["c"]
    counts = session.finish_count, session.requeue_count, session.in_flight_count, channel.in_flight_count
    return frames, client.closed, session.state, counts


@given(st.lists(ANSWERS | OTHERS, max_size=12), st.integers(1, 300), st.booleans())
def test_commands_have_the_same_effect_however_they_are_cut(lines, size, recorded):
    data = b"".join(lines)
    parts = [data[start : start + size] for start in range(0, len(data), size)]

    assert outcome(parts, recorded=recorded) == outcome(lines, recorded=False)


# --- output buffer ----------------------------------------------------------------------------------------------------


def test_full_output_buffer_is_sent_without_a_timeout(broker):
    client = consumer(broker, ready=100, identify={"output_buffer_timeout": -1, "output_buffer_size": 64})
    publish(broker, b"a" * 20)
    assert client.pump() == []

    for _ in range(3):
        publish(broker, b"a" * 20)

    assert len(client.bodies()) == 4


# --- time -------------------------------------------------------------------------------------------------------------


def test_magic_has_no_deadline(broker):
    assert SessionClient(broker).session.due == math.inf


def test_client_without_heartbeats_has_no_deadline_and_cannot_subscribe(client):
    client.send(commands.identify({"heartbeat_interval": -1}))
    assert client.session.due == math.inf

    assert client.send(b"SUB t c\n") == [(ERROR, b"E_INVALID cannot SUB with heartbeats disabled")]


def test_second_identify_keeps_heartbeats_and_msg_timeout_of_deliveries(broker):
    client = SessionClient(broker)
    client.send(b"  V2" + commands.identify({"heartbeat_interval": 5000, "msg_timeout": 5000}))
    client.send(commands.identify({"heartbeat_interval": 1000, "msg_timeout": 1000}))
    assert client.session.due == 2.0

    client.send(b"SUB t c\nRDY 1\n")
    publish(broker, b"a")
    client.pump()

    assert broker.due == 5.0
