"""From an address to a negotiated connection: resolvers, unix sockets, and the border between two transports."""

import json
import ssl

import gevent
import pytest
from gevent import socket

from fakensqd import FakeNsqd
from gnsq import Consumer, NsqdTCPClient, Producer
from gnsq.errors import (
    NSQException,
    NSQFrameError,
    NSQIdentifyFailed,
    NSQProtocolError,
    NSQTimeout,
)
from gnsq.nsqd.connect import TransportStack, load_certificates
from gnsq.options import ConnectionOptions
from gnsq.protocol.compression import Deflate, Snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, encode_frame, encode_message
from gnsq.protocol.handshake import StartTLS, handshake, identify_body, upgrade_steps
from gnsq.transport import ADDRESS_LIMIT, connect, share_of_address
from tests.kit import MemoryTransport, peer, refused_port, resolve_to, silent_port

CODECS = {"deflate": Deflate, "snappy": Snappy}
MESSAGE_FRAME = encode_frame(MESSAGE, encode_message(1, 1, b"0123456789abcdef", b"hello"))


def answer(**fields):
    return encode_frame(RESPONSE, json.dumps({"max_rdy_count": 2500, "version": "1.3.0", **fields}).encode())


def stack_over(transport, options, host="nsqd", port=4150):
    stack = TransportStack(host, port, options)
    stack.connect(transport)
    return stack


def serve(text):
    """A peer that answers whatever comes with one frame, and then waits."""

    def talk(sock):
        sock.recv(100)
        sock.sendall(text)
        gevent.sleep(60)

    return talk


@pytest.mark.parametrize("name", sorted(CODECS))
def test_negotiation_may_be_cut_anywhere(name):
    codec = CODECS[name]()
    compressed = codec.compress(encode_frame(RESPONSE, OK)) + codec.compress(MESSAGE_FRAME + MESSAGE_FRAME)
    stream = answer(**{name: True}) + compressed

    for cut in range(1, len(stream)):
        transport = MemoryTransport(*filter(None, [stream[:cut], stream[cut:]]))
        stack = stack_over(transport, ConnectionOptions(**{name: True}))
        identity = stack.run_handshake(handshake(ConnectionOptions(**{name: True})))
        assert identity.compression.name == name
        assert [stack.read_frame() for _ in range(2)] == [(MESSAGE, MESSAGE_FRAME[8:])] * 2


def test_bytes_after_the_handshake_are_compressed():
    sender, transport = Deflate(), MemoryTransport(answer(deflate=True, deflate_level=3))
    transport.feed(sender.compress(encode_frame(RESPONSE, HEARTBEAT) + encode_frame(RESPONSE, OK)))
    options = ConnectionOptions(deflate=True)

    stack_over(transport, options).run_handshake(handshake(options))

    assert transport.sends[0] == b"  V2"
    assert transport.sends[1].startswith(b"IDENTIFY\n")
    # The answer to the heartbeat that came in between.
    assert Deflate().decompress(b"".join(transport.sends[2:]), 100) == b"NOP\n"


def test_clear_text_after_the_response_does_not_start_tls():
    options = ConnectionOptions(tls_v1=True)
    transport = MemoryTransport(answer(tls_v1=True) + encode_frame(RESPONSE, OK))
    stack = stack_over(transport, options)

    with pytest.raises(NSQProtocolError, match="received 10 bytes in clear text before TLS began"):
        stack.run_handshake(handshake(options))


def test_frame_above_the_limit_is_refused_inside_compression_too():
    codec = Deflate()
    transport = MemoryTransport(answer(deflate=True), codec.compress(b"\x7f\xff\xff\xff\x00\x00\x00\x00"))
    options = ConnectionOptions(deflate=True)

    with pytest.raises(NSQFrameError, match="frame size 2147483647"):
        stack_over(transport, options).run_handshake(handshake(options))


# --- addresses


def test_resolver_says_where_to_connect():
    asked = []
    with peer(serve(encode_frame(RESPONSE, OK))) as address:
        host, port = address.split(":")

        def resolve(announced_host, announced_port):
            asked.append((announced_host, announced_port))
            return host, int(port)

        client = NsqdTCPClient("container.example", 4150, timeout=5, address_resolver=resolve)
        client.connect()
        assert client.identify() is None
        client.close_stream()

    assert asked == [("container.example", 4150)]


@pytest.mark.parametrize(
    ("resolve", "words"),
    [
        (lambda host, port: 1 / 0, "nsqd:4150: address_resolver raised ZeroDivisionError"),
        (lambda host, port: ("a", "1"), r"nsqd:4150: address_resolver gave \('a', '1'\), expected a host and a port"),
        (
            lambda host, port: ("/" + "x" * 200, 0),
            "nsqd:4150: address_resolver: the path of the unix socket .* 201 bytes",
        ),
        (lambda host, port: gevent.sleep(60), "nsqd:4150: address_resolver gave no answer within 0.2 s"),
    ],
)
def test_resolver_that_fails_is_named(resolve, words):
    client = NsqdTCPClient("nsqd", 4150, timeout=0.2, address_resolver=resolve)

    with pytest.raises(NSQException, match=words):
        client.connect()


def test_unix_socket(socket_folder):
    path = str(socket_folder / "nsqd.sock")
    with FakeNsqd(tcp_address=path):
        client = NsqdTCPClient(path, timeout=5)
        client.connect()

        assert client.identify()["version"]
        assert str(client) == path
        client.close_stream()


def test_unix_socket_that_is_not_there(socket_folder):
    with pytest.raises(OSError, match=r"none.sock: can't connect: No such file"):
        NsqdTCPClient(str(socket_folder / "none.sock"), timeout=5).connect()


def test_tls_over_a_unix_socket_needs_the_name_to_check():
    options = load_certificates(ConnectionOptions(tls_v1=True))
    stack = stack_over(MemoryTransport(), options, "/run/nsqd.sock", 0)

    with pytest.raises(NSQException, match=r"/run/nsqd.sock: TLS over a unix socket needs the name to check"):
        stack.run_handshake(upgrade_steps(StartTLS()))


@pytest.mark.parametrize(("host", "name"), [("." * 3, None), ("nsqd", "a\0b")])
def test_host_name_that_tls_can_not_check_is_an_error_of_ours(host, name):
    options = load_certificates(ConnectionOptions(tls_v1=True, server_hostname=name))
    stack = stack_over(MemoryTransport(), options, host, 4150)

    with pytest.raises(NSQException, match="TLS can't begin"):
        stack.run_handshake(upgrade_steps(StartTLS()))


# --- checks before connecting


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda **options: Consumer("t", "c", "nsqd", **options), id="consumer"),
        pytest.param(lambda **options: Producer("nsqd", **options), id="producer"),
        pytest.param(lambda **options: NsqdTCPClient("nsqd", **options), id="client"),
    ],
)
def test_constructors_refuse_unusable_options(make, monkeypatch):
    with pytest.raises(ValueError, match=r"ca_certs '/no/such.pem'"):
        make(tls_v1=True, tls_options={"ca_certs": "/no/such.pem"})
    with pytest.raises(ValueError, match="snappy and deflate are both asked for"):
        make(snappy=True, deflate=True)
    with pytest.raises(TypeError, match="auth_secret must be bytes or None, not a int"):
        make(auth_secret=5)
    monkeypatch.setitem(__import__("sys").modules, "snappy", None)
    with pytest.raises(ImportError, match="pip install python-snappy"):
        make(snappy=True)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"tls_options": {"ca_certs": "/no/such.pem"}}, id="tls_options"),
        pytest.param({"tls_context": ssl.create_default_context()}, id="tls_context"),
        pytest.param({"server_hostname": "nsqd.example"}, id="server_hostname"),
        pytest.param({}, id="none"),
    ],
)
def test_options_of_tls_are_not_used_if_tls_is_refused(options):
    options = ConnectionOptions(tls_v1=False, **options)

    assert load_certificates(options) is options
    assert identify_body(options)["tls_v1"] is False


def test_error_in_clear_text_instead_of_tls_is_raised():
    options = load_certificates(ConnectionOptions(tls_v1=True))
    words = b"E_IDENTIFY_FAILED IDENTIFY failed tls: no cipher suite"
    stack = stack_over(MemoryTransport(encode_frame(ERROR, words)), options)

    with pytest.raises(NSQIdentifyFailed, match="no cipher suite"):
        stack.run_handshake(upgrade_steps(StartTLS()))


def test_second_address_of_a_name_is_tried_though_the_first_refuses_or_swallows_packets(monkeypatch):
    with peer(serve(encode_frame(RESPONSE, OK))) as address, silent_port() as silent:
        for first in (refused_port(), silent):
            resolve_to(monkeypatch, first, int(address.split(":")[1]))
            connect("two.example", 4150, 1.0).close()


@pytest.mark.parametrize(
    ("seconds", "count", "share"),
    [
        pytest.param(60.0, 1, 60.0, id="the only one"),
        pytest.param(60.0, 2, ADDRESS_LIMIT, id="a short one if there is another"),
        pytest.param(60.0, 20, ADDRESS_LIMIT, id="for each of many"),
        pytest.param(3.0, 3, 1.0, id="of a short time"),
    ],
)
def test_share_of_an_address(seconds, count, share):
    assert share_of_address(seconds, count) == share


def test_timeout_names_the_address_and_its_share(monkeypatch):
    with silent_port() as first, silent_port() as second:
        resolve_to(monkeypatch, first, second)
        with pytest.raises(NSQTimeout) as caught:
            connect("two.example", 4150, 0.4)

    tried = f"127.0.0.1:{first}: no answer within 0.2 s"  # a slow machine may have no time for the second
    assert str(caught.value).startswith(f"two.example:4150: no connection within 0.4 s (tried {tried}")


def test_connections_are_kept_alive_and_do_not_wait_for_more():
    with peer(lambda sock: gevent.sleep(60)) as address:
        host, port = address.split(":")
        transport = connect(host, int(port), 5.0)
        sock = transport._socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        transport.close()
