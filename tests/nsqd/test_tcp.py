"""NsqdTCPClient, driven by hand against fakensqd."""

import dataclasses
import socket

import gevent
import gevent.event
import pytest

from gnsq import NsqdTCPClient, states
from gnsq.errors import (
    NSQConnectionClosed,
    NSQException,
    NSQFrameError,
    NSQInvalid,
    NSQSocketError,
    NSQTimeout,
)
from gnsq.protocol.frames import HEARTBEAT, MESSAGE, RESPONSE, encode_frame
from tests.kit import peer, wait_until


@pytest.fixture
def client(fakensqd):
    host, port = fakensqd.tcp_address.split(":")
    made = NsqdTCPClient(host, int(port), timeout=5)
    made.connect()
    yield made
    made.close_stream()


def limited(client, timeout):
    """Set the timeout of a connected client: connecting has the usual one, since it must not fail on a busy machine."""
    client.options = dataclasses.replace(client.options, timeout=timeout)
    return client


def test_a_message_all_the_way(client):
    assert client.identify()["max_rdy_count"] == client.max_ready_count == 2500
    client.publish("t", b"body")
    client.check_ok()
    client.multipublish("t", [b"two", b"three"])
    client.check_ok()
    client.subscribe("t", "c")
    client.check_ok()
    client.ready(3)

    kinds, messages = zip(*[client.read_response() for _ in range(3)], strict=True)
    assert kinds == (MESSAGE,) * 3
    assert [message.body for message in messages] == [b"body", b"two", b"three"]
    assert client.is_starved
    messages[0].finish()
    messages[1].touch()
    messages[1].requeue(60_000)
    assert client.in_flight == 1
    client.finish_all([messages[2].id])
    assert client.in_flight == 0

    client.close()
    assert client.read_response() == (RESPONSE, b"CLOSE_WAIT")


def test_signals_are_sent_for_frames_and_commands(client):
    got = []
    for name in ("on_response", "on_message", "on_finish", "on_requeue", "on_error", "on_close"):
        signal = getattr(client, name)
        signal.connect(lambda sender, name=name, **words: got.append((name, sorted(words))), weak=False)
    client.publish("t", b"1")
    client.subscribe("t", "c")
    client.ready(1)
    client.check_ok()
    client.check_ok()
    client.read_response()[1].finish()
    client.finish(b"0123456789abcdef")
    client.read_response()
    client.close_stream()

    assert got == [
        ("on_response", ["response"]),
        ("on_response", ["response"]),
        ("on_message", ["message"]),
        ("on_finish", ["message_id"]),
        ("on_finish", ["message_id"]),
        ("on_error", ["error"]),
        ("on_close", []),
    ]


def test_check_ok_wants_the_expected_and_raises_the_error_of_nsqd(client):
    client.publish("t", b"x")
    with pytest.raises(NSQException, match="b'OK', expected b'CLOSE_WAIT'"):
        client.check_ok(b"CLOSE_WAIT")

    client.send(b"NONSENSE\n")
    with pytest.raises(NSQInvalid, match="E_INVALID invalid command NONSENSE"):
        client.check_ok()


def test_check_ok_answers_heartbeats_and_goes_on(opened):
    beat, answered = encode_frame(RESPONSE, HEARTBEAT), []

    def answer(sock):
        sock.recv(4)
        sock.sendall(beat + beat)
        answered.append(sock.recv(4))
        answered.append(sock.recv(4))
        sock.sendall(encode_frame(RESPONSE, b"OK") + beat)
        answered.append(sock.recv(4))

    with peer(answer) as address:
        client = opened(address, timeout=5)
        client.check_ok()
        client.check_ok(HEARTBEAT)
        wait_until(lambda: len(answered) == 3)

    assert answered == [b"NOP\n"] * 3


def test_closed_client_says_so_and_is_not_opened_again(client):
    client.connect()
    assert client.state == states.CONNECTED
    assert client.stream is not None

    client.close_stream()
    client.close_stream()

    assert client.state == states.DISCONNECTED
    assert client.stream is None
    with pytest.raises(NSQException, match="was closed; make a new client"):
        client.connect()
    with pytest.raises(NSQSocketError, match="not connected"):
        client.nop()


def scripted(*chunks):
    """A peer that answers magic and IDENTIFY with OK, then sends these chunks."""

    def answer(sock):
        sock.recv(4096)
        sock.sendall(encode_frame(RESPONSE, b"OK"))
        for chunk in chunks:
            sock.sendall(chunk)
            gevent.sleep(0)
        sock.recv(4096)
        sock.recv(4096)

    return peer(answer)


@pytest.fixture
def opened():
    """Connect clients that are closed at the end."""
    clients = []

    def connect(address, **options):
        host, port = address.split(":")
        client = NsqdTCPClient(host, int(port), **options)
        client.connect()
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close_stream()


def test_malformed_frame_closes_and_its_error_names_the_nsqd(opened):
    with scripted(encode_frame(9, b"x")) as address:
        client = opened(address)
        client.identify()

        with pytest.raises(NSQFrameError, match=f"^{address}: frame type 9"):
            client.read_response()
        assert not client.is_connected


def test_read_timeout_leaves_the_connection_open(opened):
    with scripted() as address:
        client = opened(address)
        client.identify()
        limited(client, 0.2)

        with pytest.raises(NSQTimeout, match=r"nothing came within 0.2 s"):
            client.read_response()
        assert client.is_connected


def test_listen_returns_when_nsqd_closes(opened):
    got = []
    # The magic is read: unread bytes at a close reset the connection.
    with peer(lambda sock: (sock.recv(4), sock.sendall(encode_frame(RESPONSE, b"one")))) as address:
        client = opened(address)
        client.on_response.connect(lambda sender, response: got.append(response), weak=False)
        client.listen()

    assert got == [b"one"]
    assert not client.is_connected


def test_second_connect_at_the_same_time_is_refused():
    waiting = gevent.event.Event()
    client = NsqdTCPClient("nsqd", 4150, timeout=5, address_resolver=lambda host, port: waiting.wait())
    first = gevent.spawn(client.connect)
    gevent.sleep(0)

    with pytest.raises(NSQException, match="another greenlet is connecting"):
        client.connect()
    first.kill()


def test_handlers_of_1_0_send(client):
    client.publish("t", b"x")
    client.check_ok()
    client.subscribe("t", "c")
    client.check_ok()
    client.ready(1)
    message = client.read_response()[1]

    client.handle_touch(message)
    client.handle_requeue(message, 0, True)
    again = client.read_response()[1]
    client.handle_finish(again)
    assert client.in_flight == 0

    client.finish_inflight()
    assert client.in_flight == -1


# --- what gnsq 1.0 promised


def test_parameters_have_the_order_of_1_0_and_are_attributes():
    values = {
        "timeout": 5.0,
        "client_id": "me",
        "hostname": "me.example",
        "heartbeat_interval": 10,
        "output_buffer_size": 4096,
        "output_buffer_timeout": 100,
        "tls_v1": True,
        "tls_options": {"cert_reqs": 0},
        "snappy": True,
        "deflate": False,
        "deflate_level": 3,
        "sample_rate": 5,
        "auth_secret": b"secret",
        "user_agent": "test/1",
    }
    client = NsqdTCPClient("nsqd.example", "4150", *values.values())

    assert (client.address, client.port) == ("nsqd.example", 4150)
    # In milliseconds, as it always was.
    assert {name: getattr(client, name) for name in values} == {**values, "heartbeat_interval": 10_000}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nsqd", 70000), "port '70000' of address 'nsqd:70000' is not a number from 1 to 65535"),
        (("", 4150), "has no host"),
        (("http://u:hush@nsqd",), "address must be a host name or an IP address: the port is an argument"),
        (("nsqd:4150",), "address must be a host name"),
    ],
)
def test_address_that_is_none_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        NsqdTCPClient(*arguments)


def test_new_client_has_names_by_default_and_says_that_it_was_never_connected():
    client = NsqdTCPClient()

    assert client.hostname == socket.gethostname()
    assert client.client_id == socket.gethostname().split(".")[0]
    assert (client.state, client.ready_count, client.in_flight, client.max_ready_count) == (states.INIT, 0, 0, 2500)
    assert client.stream is None
    with pytest.raises(NSQConnectionClosed, match=r"127.0.0.1:4150: not connected: call connect\(\) first"):
        client.read_response()


def test_clients_are_compared_and_shown_by_their_address():
    one, same, other = NsqdTCPClient("a", 1), NsqdTCPClient("a", 1), NsqdTCPClient("b", 1)

    assert one == same
    assert len({one, same, other}) == 2
    assert sorted([other, one]) == [one, other]
    assert one != "a:1"
    assert (str(one), repr(one)) == ("a:1", "<NsqdTCPClient a:1>")


def test_subclass_may_override_the_handlers_of_frames(fakensqd):
    class Client(NsqdTCPClient):
        def handle_response(self, data):
            return b"mine: " + super().handle_response(data)

    client = Client(*fakensqd.tcp_address.split(":"), timeout=5)
    client.connect()
    client.publish("t", b"x")

    assert client.read_response() == (RESPONSE, b"mine: OK")
    client.close_stream()


def test_auth_without_a_secret_is_misuse(client):
    with pytest.raises(ValueError, match="AUTH needs a secret: give auth_secret"):
        client.auth()


def test_peer_that_does_not_read_is_a_timeout_and_closes(opened):
    with peer(lambda sock: gevent.sleep(60)) as address:
        client = limited(opened(address), 0.2)

        with pytest.raises(NSQTimeout, match=r"nsqd has not read what was sent within 0.2 s"):
            client.publish("t", b"x" * 50_000_000)

        assert not client.is_connected


# --- TLS was asked for


@pytest.fixture
def nsqd_without_tls():
    """The address of an nsqd that does not offer TLS, and what each of its connections received."""
    received = []

    def answer(sock):
        received.append(bytearray())
        got = received[-1]
        while data := sock.recv(4096):
            got += data
            if data.startswith((b"  V2IDENTIFY", b"IDENTIFY")):
                sock.sendall(encode_frame(RESPONSE, b'{"version":"1.3.0","tls_v1":false,"auth_required":true}'))

    with peer(answer) as address:
        yield address, received


def holds_only_identify(sent):
    return sent.startswith(b"  V2IDENTIFY\n") and len(sent) == 17 + int.from_bytes(sent[13:17])


IN_CLEAR = [
    lambda client: client.publish("t", b"secret"),
    lambda client: client.publish("t", b"secret", defer=1),
    lambda client: client.multipublish("t", [b"secret"]),
    lambda client: client.auth(),
    lambda client: client.subscribe("t", "c"),
    lambda client: client.ready(1),
    lambda client: client.finish(b"0123456789abcdef"),
    lambda client: client.requeue(b"0123456789abcdef"),
    lambda client: client.touch(b"0123456789abcdef"),
    lambda client: client.nop(),
    lambda client: client.send(b"CLS\n"),
    lambda client: client.send(b"PUB t\n\0\0\0\6secret"),
    lambda client: client.send(b"IDENTIFY\n\0\0\0\2{}PUB t\n\0\0\0\6secret"),
    lambda client: client.send(b"IDENTIFY"),
]


def test_only_identify_is_sent_in_clear_text_if_tls_is_wanted(nsqd_without_tls, opened):
    address, received = nsqd_without_tls
    client = opened(address, tls_v1=True, auth_secret=b"secret")

    for act in IN_CLEAR:
        with pytest.raises(NSQException, match=rf"{address}: TLS was asked for .* nothing was sent: call identify"):
            act(client)

    # The connection can still be used as it should be, and refuses what has no TLS.
    with pytest.raises(NSQException, match="does not offer it"):
        client.identify()
    assert [holds_only_identify(got) for got in received] == [True]


def test_close_before_tls_is_on_closes_the_socket_and_sends_nothing(nsqd_without_tls, opened):
    address, received = nsqd_without_tls
    client = opened(address, tls_v1=True)

    client.close()

    wait_until(lambda: received == [b"  V2"])
    assert not client.is_connected


def test_heartbeat_in_clear_text_is_not_answered_if_tls_is_wanted(opened):
    with peer(lambda sock: (sock.recv(4), sock.sendall(encode_frame(RESPONSE, HEARTBEAT)))) as address:
        client = opened(address, tls_v1=True)

        with pytest.raises(NSQException, match=r"nothing was sent: call identify\(\) first"):
            client.read_response()
