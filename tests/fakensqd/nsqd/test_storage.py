"""The data path: its file as a value, what a FakeNsqd reads and writes, and its lock; the limit of the memory."""

import json

import pytest
from gevent import socket

from fakensqd import FakeNsqd
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.storage import DataPathError, encode, restore
from gnsq.protocol import commands
from gnsq.protocol.frames import decode_message
from tests.fakensqd.wire import Client, consumer, request

# --- files as values --------------------------------------------------------------------------------------------------


# Files that nsqd 1.3.0 has written.
METADATA = [
    pytest.param(b'{"topics":null,"version":"1.3.0"}', [], id="nothing"),
    pytest.param(
        b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}', [("t", False, [])], id="a topic"
    ),
    pytest.param(
        b'{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true},{"name":"d","paused":false}]}],'
        b'"version":"1.3.0"}',
        [("t", True, [("c", True), ("d", False)])],
        id="channels",
    ),
]


@pytest.mark.parametrize(("data", "topics"), METADATA)
def test_metadata_is_encoded_and_decoded(data, topics):
    broker = Broker()
    for name, paused, channels in topics:
        topic = broker.ensure_topic(name)
        topic.set_paused(paused, 0.0)
        for channel, channel_paused in channels:
            topic.ensure_channel(channel, 0.0).set_paused(channel_paused)

    assert encode(broker) == data
    restored = Broker()
    restore(restored, data, 0.0)
    assert encode(restored) == data


def test_invalid_names_in_metadata_are_skipped():
    broker = Broker()
    restore(broker, b'{"topics":[{"name":"a b"},{"name":"t","channels":[{"name":"#"},{"name":"c"}]}]}', 0.0)

    assert {name: list(topic.channels) for name, topic in broker.topics.items()} == {"t": ["c"]}


MALFORMED = [
    *[b"", b"{", b"[]", b"{}", b"\xff", b'{"topics":[{}]}', b'{"topics":[1]}', b'{"topics":1}'],
    *[b'{"topics":[],"messages":[{}]}', b'{"topics":[],"messages":[1]}'],
]


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed_metadata_is_refused(data):
    with pytest.raises(ValueError, match="not the metadata of an nsqd"):
        restore(Broker(), data, 0.0)


def test_messages_are_encoded_and_restored():
    broker, restored = Broker(), Broker()
    topic = broker.ensure_topic("t")
    topic.publish([b"{}", b"\xff\n"], 1.0)
    channel = topic.ensure_channel("c", 1.0)
    (delivered,) = channel.deliver(None, 1, 1.0, 60.0)
    topic.set_paused(True, 1.0)
    topic.publish([b"3"], 1.0, delay=5.0)

    restore(restored, encode(broker, with_messages=True), 0.0)

    topic = restored.topics["t"]
    assert [(m.body, m.attempts, m.delay) for m in topic.stored()] == [(b"3", 0, 0.0)]
    first, second = topic.channels["c"].stored()
    assert [(m.body, m.attempts) for m in (first, second)] == [(b"\xff\n", 0), (b"{}", 1)]
    assert (second.id, second.timestamp) == (delivered.id, delivered.timestamp)


# --- a data path that outlives its nsqd -------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path):
    """Start nsqds on one directory; all are stopped after the test."""
    nsqds = []

    def start(**options):
        nsqd = FakeNsqd(data_path=str(tmp_path), **options)
        nsqds.append(nsqd)
        nsqd.start()
        return nsqd

    yield start
    for nsqd in nsqds:
        nsqd.stop()
        assert nsqd.errors == []


def metadata(path):
    """Read nsqd.dat: (topic, is it paused?) -> channel -> is it paused?"""
    topics = json.loads((path / "nsqd.dat").read_text())["topics"] or []
    return {
        (topic["name"], topic["paused"]): {c["name"]: c["paused"] for c in topic["channels"] or []} for topic in topics
    }


def post(nsqd, target, body=b""):
    assert request(nsqd.http_address, "POST", target, body) in ("", "OK")


def test_topics_and_channels_are_written_at_once(started, tmp_path):
    nsqd = started()
    assert metadata(tmp_path) == {}

    post(nsqd, "/topic/create?topic=t")
    assert metadata(tmp_path) == {("t", False): {}}
    consumer(nsqd.tcp_address)
    assert metadata(tmp_path) == {("t", False): {"c": False}}
    post(nsqd, "/channel/pause?topic=t&channel=c")
    assert metadata(tmp_path) == {("t", False): {"c": True}}
    post(nsqd, "/topic/pause?topic=t")
    assert metadata(tmp_path) == {("t", True): {"c": True}}
    post(nsqd, "/channel/delete?topic=t&channel=c")
    post(nsqd, "/topic/unpause?topic=t")
    assert metadata(tmp_path) == {("t", False): {}}
    post(nsqd, "/topic/delete?topic=t")
    assert metadata(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["nsqd.dat"]


def test_ephemeral_names_are_not_written(started, tmp_path):
    nsqd = started()
    consumer(nsqd.tcp_address, channel="c#ephemeral")
    post(nsqd, "/pub?topic=u%23ephemeral", b"x")
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()

    assert metadata(tmp_path) == {("t", False): {}}
    assert set(started().broker.topics) == {"t"}


def test_messages_are_restored_after_a_stop(started):
    nsqd = started()
    reader = consumer(nsqd.tcp_address, ready=0)
    for target, body in [("/pub?topic=t", b"in flight"), ("/pub?topic=t&defer=60000", b"late"), ("/pub?topic=u", b"u")]:
        post(nsqd, target, body)
    reader.send(commands.ready(1))
    in_flight = decode_message(reader.frame()[1])
    post(nsqd, "/pub?topic=t", b"queued")
    nsqd.stop()

    again = started()

    assert (again.broker.topics["u"].depth, again.broker.topics["u"].message_count) == (1, 0)
    channel = again.broker.topics["t"].channels["c"]
    assert (channel.depth, channel.deferred_count, channel.message_count) == (3, 0, 0)
    reader = consumer(again.tcp_address, ready=3)
    got = [decode_message(reader.frame()[1]) for _ in range(3)]
    assert [(body, attempts) for _, attempts, _, body in got] == [(b"queued", 1), (b"in flight", 2), (b"late", 1)]
    assert got[1][0] == in_flight[0]
    assert got[1][2] == in_flight[2]


def test_data_path_is_locked_by_one_nsqd(started, tmp_path):
    nsqd = started()
    with pytest.raises(DataPathError, match=f"cannot flock directory {tmp_path} - .*in use by another instance"):
        started()
    nsqd.stop()

    started()


def test_data_path_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(DataPathError, match=r"failed to lock data-path: open .*/none: no such file or directory"):
        FakeNsqd(data_path=str(tmp_path / "none")).start()


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000], ids=["cut", "deep"])
def test_start_with_an_unreadable_file_is_refused(tmp_path, data):
    (tmp_path / "nsqd.dat").write_bytes(data)

    with pytest.raises(DataPathError, match="failed to load metadata - failed to parse metadata in"):
        FakeNsqd(data_path=str(tmp_path)).start()

    (tmp_path / "nsqd.dat").unlink()
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(DataPathError, match="failed to read metadata from"):
        FakeNsqd(data_path=str(tmp_path)).start()


def test_messages_of_a_start_that_failed_are_kept(started, tmp_path):
    nsqd = started()
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(OSError, match="in use"):
            FakeNsqd(data_path=str(tmp_path), tcp_address=f"127.0.0.1:{sock.getsockname()[1]}").start()

    assert started().depth("t") == 1


def test_deleted_data_path_is_logged(tmp_path, caplog):
    path = tmp_path / "data"
    path.mkdir()
    nsqd = FakeNsqd(data_path=str(path))
    with nsqd:
        (path / "nsqd.dat").unlink()
        path.rmdir()
        post(nsqd, "/pub?topic=t", b"x")

    assert "failed to persist" in caplog.text
    assert nsqd.errors == []


def test_client_connects_by_a_unix_socket(tmp_path):
    path = str(tmp_path / "tcp.sock")
    with FakeNsqd(tcp_address=path) as nsqd:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(commands.MAGIC_V2 + commands.publish("t", b"x"))
            assert sock.recv(100).endswith(b"OK")
            (session,) = nsqd.sessions
            assert session.remote_address == "@"
            info = request(nsqd.http_address, "GET", "/info")
        assert (nsqd.tcp_address, info["tcp_port"]) == (path, -1)

    assert nsqd.errors == []
    assert Client.opened == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keep_messages", "depth"), [(True, 1), (False, 0)])
def test_restart_keeps_messages_only_if_told_so(started, tmp_path, keep_messages, depth):
    nsqd = started()
    post(nsqd, "/pub?topic=t", b"x")

    nsqd.restart(keep_messages=keep_messages)

    assert metadata(tmp_path) == {("t", False): {}}
    assert nsqd.broker.topics["t"].depth == depth
    assert "messages" not in json.loads((tmp_path / "nsqd.dat").read_text())


# --- messages beyond the limit of the memory --------------------------------------------------------------------------


def body(frame):
    return decode_message(frame[1])[3]


def publish(address, *bodies, topic="t"):
    client = Client(address)
    for each in bodies:
        client.send(commands.publish(topic, each))
        assert client.frame() == (0, b"OK")


def depths(nsqd):
    channel = nsqd.broker.topics["t"].channels["c"]
    return channel.depth, channel.backend_depth


@pytest.fixture
def nsqd():
    with FakeNsqd(mem_queue_size=2) as nsqd:
        nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
        yield nsqd
    assert nsqd.errors == []


def test_ephemeral_channel_drops_what_is_beyond_its_memory(nsqd):
    nsqd.broker.ensure_topic("t").ensure_channel("e#ephemeral", 0.0)
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4")

    assert (nsqd.depth("t", "e#ephemeral"), depths(nsqd)) == (2, (4, 2))


@pytest.mark.parametrize("limit", [0, -1])
def test_ephemeral_topic_without_memory_drops_all_messages(limit):
    with FakeNsqd(mem_queue_size=limit) as nsqd:
        publish(nsqd.tcp_address, b"x", topic="t#ephemeral")

        assert nsqd.depth("t#ephemeral") == 0
