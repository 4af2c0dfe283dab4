"""Peers that never stop sending: each call ends by its deadline or limit, and other greenlets run meanwhile."""

import contextlib
import gc
import json
import ssl
import threading
import time
import zlib
from dataclasses import dataclass, replace
from socket import SO_SNDBUF, SOL_SOCKET, create_connection, create_server

import gevent
import pytest

from fakensqd import FakeNsqd
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, NsqdTCPClient, Producer
from gnsq.contrib.health import serve_health
from gnsq.errors import NSQException, NSQHttpError, NSQTimeout
from gnsq.protocol.compression import Snappy
from gnsq.protocol.frames import ERROR, HEARTBEAT, MESSAGE, RESPONSE, encode_frame, encode_message
from tests.kit import LIMIT, wait_until

pytestmark = pytest.mark.slow

# Seconds; the timeout of each client.
TIMEOUT = 0.2
# A peer ends its flood after these seconds or bytes, so that a client without a deadline ends, too. Many seconds, since
# on a busy machine a client may not run for some.
FLOOD_SECONDS = 30.0
FLOOD_SIZE = 2**30
# Seconds of CPU time in which the hub runs no other greenlet. CPU time, since other processes may take the cores.
MAX_GAP = 1.0


@dataclass(frozen=True)
class Flood:
    """What a peer sends.

    Attributes:
        piece: Sent again and again, each time in a TLS record of its own after a step of TLS.
        steps: What happens before, in order. A pair of bytes: when the first is received, the second is sent. A pair of
            str: the server's handshake of TLS with this certificate and key.
        pause: Seconds between two pieces; 0: none.
        reads: True: the peer reads what the client sends during the flood.
    """

    piece: bytes
    steps: tuple[tuple[bytes, bytes] | tuple[str, str], ...] = ()
    pause: float = 0.0
    reads: bool = True


@dataclass
class Peer:
    """A peer.

    Attributes:
        sent: Bytes of the flood that it has sent.
        exhausted: True if it has sent a whole flood to a client, which has not ended before.
    """

    address: str = ""
    sent: int = 0
    exhausted: bool = False


class Encrypted:
    """The server's side of TLS on a blocking socket, of which many records can be sent together."""

    def __init__(self, sock, files):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        self._sock, self._incoming, self._outgoing = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until_done(self._object.do_handshake)

    def _until_done(self, step):
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                received = self._sock.recv(65536)
                if not received:
                    raise ConnectionResetError from None
                self._incoming.write(received)
            finally:
                self._sock.sendall(self._outgoing.read())

    def recv(self, size):
        return self._until_done(lambda: self._object.read(size))

    def records(self, piece, count):
        for _ in range(count):
            self._object.write(piece)
        return self._outgoing.read()


def serve(sock, flood, peer, stopped):
    """Send a flood to one client."""
    stream, encrypted = sock, False
    for expected, response in flood.steps:
        if isinstance(expected, str):
            stream, encrypted = Encrypted(sock, (expected, response)), True
            continue
        received = b""
        while expected not in received:
            part = stream.recv(65536)
            if not part:
                return
            received += part
        sock.sendall(stream.records(response, 1) if encrypted else response)
    count = 1 if flood.pause else 1 + 65536 // len(flood.piece)
    pieces, size = flood.piece * count, 0
    if flood.reads and not encrypted:
        threading.Thread(target=drain, args=(sock,), daemon=True).start()
    ends = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < ends and size < FLOOD_SIZE:
        if stopped.wait(flood.pause):
            return
        sock.sendall(stream.records(flood.piece, 2000) if encrypted else pieces)
        size += len(pieces)
        peer.sent += len(pieces)
    peer.exhausted = True


def drain(sock):
    with contextlib.suppress(OSError):
        while sock.recv(65536):
            pass


@contextlib.contextmanager
def flooding(flood):
    """Serve a flood to each client, in threads, so that the hub can't slow it down. Fail if it could end."""
    peer, stopped, sockets, threads = Peer(), threading.Event(), [], []

    def handle(sock):
        with sock, contextlib.suppress(OSError):
            serve(sock, flood, peer, stopped)

    def accept():
        with contextlib.suppress(OSError):
            while not stopped.is_set():
                sock = listener.accept()[0]
                sock.settimeout(FLOOD_SECONDS)
                sockets.append(sock)
                threads.append(threading.Thread(target=handle, args=(sock,), daemon=True))
                threads[-1].start()

    with create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            peer.address = f"127.0.0.1:{listener.getsockname()[1]}"
            yield peer
        finally:
            stopped.set()
            for end in (listener, *sockets):
                with contextlib.suppress(OSError):
                    end.shutdown(2)
            for thread in (accepting, *threads):
                thread.join(LIMIT)
    assert not peer.exhausted, "the client has ended after the flood only"


@contextlib.contextmanager
def other_greenlets_run():
    """Fail if no other greenlet runs while this thread uses MAX_GAP seconds of CPU time, or if LIMIT seconds pass."""
    ran, gaps = time.thread_time(), [0.0]

    def tick():
        nonlocal ran
        while True:
            gaps.append(time.thread_time() - ran)
            ran = time.thread_time()
            gevent.sleep(0.001)

    ticking = gevent.spawn(tick)
    try:
        with gevent.Timeout(LIMIT, AssertionError("the client has not ended")):
            yield
        gaps.append(time.thread_time() - ran)
    finally:
        ticking.kill()
    assert max(gaps) < MAX_GAP


# --- HTTP -------------------------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def http_flood(head, piece, *, before=(), **options):
    return Flood(piece, (*before, (b"\r\n\r\n", head)), **options)


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(http_flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="100 Continue"),
        pytest.param(http_flood(HEAD, b"X: y\r\n"), id="header lines"),
        pytest.param(http_flood(HEAD + b"X: ", b"x" * 64), id="one header line"),
        pytest.param(http_flood(CHUNKED, b"1\r\nx\r\n"), id="chunks of a byte"),
        pytest.param(http_flood(CHUNKED + b"1;", b"x" * 64), id="extension of a chunk"),
        pytest.param(http_flood(CHUNKED + b"0\r\n", b"X: y\r\n"), id="trailers"),
        pytest.param(http_flood(HEAD + b"\r\n", b"x" * 64), id="body"),
    ],
)
def test_http_client_ends(flood):
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQHttpError):
        LookupdClient.from_url(f"http://{peer.address}", timeout=TIMEOUT).nodes()


@pytest.mark.parametrize(
    "flood",
    [
        # Each long: Python 3.14 has a limit of its own for their number.
        pytest.param(http_flood(b"", b"HTTP/1.1 100 Continue\r\nX: %b\r\n\r\n" % (b"x" * 8192)), id="100 Continue"),
        pytest.param(http_flood(CHUNKED, b"1\r\nx\r\n"), id="chunks of a byte"),
        pytest.param(http_flood(CHUNKED + b"0\r\n", b"X: y\r\n"), id="trailers"),
    ],
)
def test_bytes_beside_the_body_are_limited(flood):
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQHttpError, match="more than 262144 bytes of"):
        NsqdHTTPClient.from_url(peer.address, timeout=LIMIT).ping()


def ask(url, **options):
    with pytest.raises(NSQHttpError), NsqdHTTPClient.from_url(url, timeout=TIMEOUT, **options) as client:
        client.ping()


# A TLS record of requests to begin the handshake again. A client must ignore them while it is in the handshake.
HELLO_REQUESTS = b"\x16\x03\x03\x04\x00" + bytes(1024)


@pytest.fixture(scope="module")
def certificate(fakensqd_certificates):
    return tuple(fakensqd_certificates.server("127.0.0.1"))


def test_tls_handshake_of_http_ends():
    with flooding(Flood(HELLO_REQUESTS, ((b"", b""),))) as peer, other_greenlets_run():
        ask(f"https://{peer.address}")


def test_tls_records_of_a_byte_of_http_end(certificate, fakensqd_certificates):
    flood = http_flood(HEAD + b"\r\n", b"x", before=(certificate,))
    with flooding(flood) as peer, other_greenlets_run():
        ask(f"https://{peer.address}", ca_certs=fakensqd_certificates.ca)


# --- TCP --------------------------------------------------------------------------------------------------------------


def response(data):
    return encode_frame(RESPONSE, data)


BEAT = response(HEARTBEAT)
ERRORS = encode_frame(ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
MESSAGES = encode_frame(MESSAGE, encode_message(1, 1, b"0123456789abcdef", b"unwanted"))
BEFORE = [
    pytest.param(Flood(BEAT, ((b"V2", b""),)), id="heartbeats in place of a response"),
    pytest.param(Flood(b"x", ((b"V2", b"\x00\x00\x80\x00"),), pause=0.1), id="a byte at a time"),
]


@pytest.mark.parametrize("flood", BEFORE)
def test_handshake_ends(flood):
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQTimeout):
        identified(peer)


def identified(peer, timeout=TIMEOUT, **options):
    """Connect a client, and send IDENTIFY."""
    host, port = peer.address.split(":")
    client = NsqdTCPClient(host, int(port), timeout=timeout, **options)
    client.connect()
    client.identify()
    return client


def publish(peer):
    with Producer(peer.address, timeout=TIMEOUT, close_timeout=TIMEOUT) as producer, contextlib.suppress(NSQException):
        producer.publish("t", b"1", timeout=TIMEOUT)


IDENTIFIED = ((b"IDENTIFY", response(b"OK")),)
FLOODS = [
    pytest.param(Flood(BEAT, IDENTIFIED), id="heartbeats"),
    pytest.param(Flood(BEAT, IDENTIFIED, reads=False), id="heartbeats, without reading"),
    pytest.param(Flood(response(b"OK"), IDENTIFIED), id="responses"),
    pytest.param(Flood(ERRORS, IDENTIFIED), id="errors"),
    pytest.param(Flood(MESSAGES, IDENTIFIED), id="messages"),
    pytest.param(Flood(MESSAGES, IDENTIFIED, reads=False), id="messages, without reading"),
]


@pytest.mark.parametrize("flood", FLOODS[::5])
def test_reading_ends_by_a_timeout_of_the_caller(flood):
    with flooding(flood) as peer, other_greenlets_run():
        client = identified(peer, LIMIT)
        with pytest.raises(gevent.Timeout), gevent.Timeout(TIMEOUT):
            client.listen()
        client.close_stream()


def test_waiting_for_ok_ends():
    with flooding(Flood(BEAT, IDENTIFIED)) as peer, other_greenlets_run():
        client = identified(peer, LIMIT)
        client.options = replace(client.options, timeout=TIMEOUT)
        with pytest.raises(NSQTimeout):
            client.check_ok()
        client.close_stream()


@pytest.mark.parametrize("flood", FLOODS[:3])
def test_publish_ends(flood):
    with flooding(flood) as peer, other_greenlets_run():
        publish(peer)


@pytest.mark.parametrize("flood", FLOODS)
def test_consumer_receives_from_another_nsqd(flood, fakensqd):
    NsqdHTTPClient.from_url(fakensqd.http_address).publish("t", b"wanted")
    subscribed = replace(flood, steps=(*flood.steps, (b"SUB", response(b"OK")), (b"RDY", b"")))
    got = set()
    with flooding(subscribed) as peer, other_greenlets_run():
        consumer = Consumer(
            *("t", "c", [peer.address, fakensqd.tcp_address]),
            max_in_flight=10,
            message_handler=lambda consumer, message: got.add(message.body),
            close_timeout=TIMEOUT,
        )
        consumer.start(block=False)
        wait_until(lambda: b"wanted" in got)
        consumer.close()
        consumer.join(LIMIT)


# --- compression and TLS of TCP


def deflated(data):
    """Compress to bytes that mean the same at any place of a stream."""
    compressor = zlib.compressobj(9, wbits=-15)
    return compressor.compress(data) + compressor.flush(zlib.Z_FULL_FLUSH)


def negotiated(piece, name, first):
    """A flood after the first bytes in a compressed stream, whose feature has a name in IDENTIFY."""
    identity = json.dumps({"version": "1.3.0", "max_rdy_count": 2500, name: True}).encode()
    return Flood(piece, ((b"IDENTIFY", response(identity) + first),))


BOMB = BEAT * 50_000
SNAPPY = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED = [
    pytest.param({"deflate": True}, negotiated(deflated(BOMB), "deflate", b""), id="deflate, a bomb"),
    pytest.param({"deflate": True}, negotiated(b"\x00\x00\x00\xff\xff", "deflate", b""), id="deflate, empty blocks"),
    pytest.param({"snappy": True}, negotiated(Snappy().compress(BOMB)[10:], "snappy", SNAPPY), id="snappy, a bomb"),
    pytest.param({"snappy": True}, negotiated(b"\xfe\x00\x00\x00", "snappy", SNAPPY), id="snappy, padding"),
]


@pytest.mark.parametrize(("options", "flood"), COMPRESSED)
def test_compressed_stream_ends(options, flood):
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQTimeout):
        identified(peer, **options)


def test_tls_handshake_ends():
    clear = negotiated(HELLO_REQUESTS, "tls_v1", b"")
    flood = replace(clear, steps=(*clear.steps, (b"\x16\x03", b"")))
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQTimeout):
        identified(peer, tls_v1=True)


def test_small_tls_records_end(certificate, fakensqd_certificates):
    clear = negotiated(BEAT, "tls_v1", b"")
    flood = replace(clear, steps=(*clear.steps, certificate))
    with flooding(flood) as peer, other_greenlets_run(), pytest.raises(NSQTimeout):
        identified(peer, tls_v1=True, tls_options={"ca_certs": fakensqd_certificates.ca})


# --- the health server


@contextlib.contextmanager
def attacking(address, flood):
    """Send a flood to a server, from a thread. Begin when it has sent much, or the server has closed the connection."""
    stopped, peer = threading.Event(), Peer()

    def attack():
        with contextlib.suppress(OSError):
            serve(sock, flood, peer, stopped)

    host, port = address.split(":")
    with create_connection((host, int(port)), FLOOD_SECONDS) as sock:
        # Else megabytes are on their way, which the server reads before it sees the end.
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 2**16)
        thread = threading.Thread(target=attack, daemon=True)
        thread.start()
        try:
            wait_until(lambda: peer.sent > 2**17 or not thread.is_alive())
            yield
        finally:
            stopped.set()
            with contextlib.suppress(OSError):
                sock.shutdown(2)
            thread.join(LIMIT)


POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\n"
CHUNKED_POST = POST + b"Transfer-Encoding: chunked\r\n\r\n"
ATTACKS = [
    pytest.param(Flood(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"), id="requests"),
    pytest.param(Flood(b"X: y\r\n", ((b"", POST),)), id="header lines"),
    pytest.param(Flood(b"1\r\nx\r\n", ((b"", CHUNKED_POST),)), id="chunks of a byte"),
    pytest.param(Flood(b"X: y\r\n", ((b"", CHUNKED_POST + b"0\r\n"),)), id="trailers"),
]


def greenlets():
    """Return the greenlets of this thread that have not ended."""
    found = [item for item in gc.get_objects() if isinstance(item, gevent.Greenlet)]
    return {greenlet for greenlet in found if greenlet.parent is gevent.get_hub() and not greenlet.dead}


@pytest.fixture
def health_server():
    before = greenlets()
    with FakeNsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        server = serve_health(0, producer, host="127.0.0.1")
        yield f"127.0.0.1:{server.server_port}"
        server.stop(timeout=0)
    # A stopped server still reads what has arrived: that takes up to a second, and later tests count switches.
    # Only what is there now: tests that failed before may have left greenlets that start others.
    left = greenlets() - before
    assert len(gevent.joinall(left, LIMIT)) == len(left)


@pytest.mark.parametrize("flood", ATTACKS)
def test_health_server_serves_others(flood, health_server):
    # It does not know the path.
    with other_greenlets_run(), attacking(health_server, flood), contextlib.suppress(NSQHttpError):
        NsqdHTTPClient.from_url(health_server, timeout=LIMIT).ping()
