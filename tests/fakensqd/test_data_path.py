"""FakeNsqd with a data path, in this process: what outlives it, and the lock."""

import json

import pytest
from gevent import socket

from fakensqd import FakeNsqd
from fakensqd.nsqd.storage import DataPath, DataPathError
from gnsq.protocol import commands
from gnsq.protocol.frames import decode_message
from tests.fakensqd.wire import Client, consumer, request
from tests.helpers import wait_until


@pytest.fixture
def started(tmp_path):
    """Start nsqds on one directory; all are stopped in the end."""
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
    """What nsqd.dat says: topic (paused?) -> channel -> paused?"""
    topics = json.loads((path / "nsqd.dat").read_text())["topics"] or []
    return {
        (topic["name"], topic["paused"]): {c["name"]: c["paused"] for c in topic["channels"] or []} for topic in topics
    }


def post(nsqd, target, body=b""):
    assert request(nsqd.http_address, "POST", target, body) in ("", "OK")


def test_what_exists_is_written_at_once(started, tmp_path):
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


def test_what_is_ephemeral_is_not(started, tmp_path):
    nsqd = started()
    consumer(nsqd.tcp_address, channel="c#ephemeral")
    post(nsqd, "/pub?topic=u%23ephemeral", b"x")
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()

    assert metadata(tmp_path) == {("t", False): {}}
    assert set(started().broker.topics) == {"t"}


def test_messages_come_back(started):
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


def test_a_paused_topic_keeps_its_messages(started):
    nsqd = started()
    consumer(nsqd.tcp_address)
    post(nsqd, "/topic/pause?topic=t")
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()

    again = started()
    topic = again.broker.topics["t"]
    assert (topic.paused, topic.depth, topic.channels["c"].depth) == (True, 1, 0)
    post(again, "/topic/unpause?topic=t")

    assert consumer(again.tcp_address).frame()[1].endswith(b"x")


def test_what_was_finished_does_not_come_back_to_one_that_starts_again(started):
    nsqd = started()
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()
    nsqd.start()
    reader = consumer(nsqd.tcp_address)
    reader.send(commands.finish(decode_message(reader.frame()[1])[2]))
    wait_until(lambda: nsqd.broker.topics["t"].channels["c"].in_flight_count == 0)
    nsqd.stop()

    assert started().broker.topics["t"].channels["c"].depth == 0


def test_one_directory_has_one_nsqd(started, tmp_path):
    nsqd = started()
    with pytest.raises(DataPathError, match=f"cannot flock directory {tmp_path} - .*in use by another instance"):
        started()
    nsqd.stop()

    started()


def test_unlock_twice(tmp_path):
    path = DataPath(str(tmp_path))
    path.lock()
    path.unlock()
    path.unlock()

    path.lock()
    path.unlock()


def test_a_directory_that_does_not_exist(tmp_path):
    with pytest.raises(DataPathError, match=r"failed to lock data-path: open .*/none: no such file or directory"):
        FakeNsqd(data_path=str(tmp_path / "none")).start()


def test_a_port_that_is_taken_leaves_the_directory_to_others(started, tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(OSError, match="in use"):
            FakeNsqd(data_path=str(tmp_path), tcp_address=f"127.0.0.1:{sock.getsockname()[1]}").start()

    started()


def test_metadata_that_is_none(tmp_path):
    (tmp_path / "nsqd.dat").write_bytes(b"{")

    with pytest.raises(DataPathError, match="failed to load metadata - failed to parse metadata in"):
        FakeNsqd(data_path=str(tmp_path)).start()

    (tmp_path / "nsqd.dat").unlink()
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(DataPathError, match="failed to read metadata from"):
        FakeNsqd(data_path=str(tmp_path)).start()


def test_damaged_messages_are_set_aside(started, tmp_path, caplog):
    nsqd = started()
    post(nsqd, "/pub?topic=t", b"x")
    nsqd.stop()
    (tmp_path / "fakensqd.messages").write_bytes(b"no")

    assert started().broker.topics["t"].depth == 0

    assert "are not read: no file of fakensqd's messages" in caplog.text
    assert (tmp_path / "fakensqd.messages.damaged").read_bytes() == b"no"


def test_a_directory_that_is_gone_does_not_stop_it(tmp_path, caplog):
    path = tmp_path / "data"
    path.mkdir()
    nsqd = FakeNsqd(data_path=str(path))
    with nsqd:
        (path / "nsqd.dat").unlink()
        path.rmdir()
        post(nsqd, "/pub?topic=t", b"x")

    assert "failed to persist" in caplog.text
    assert nsqd.errors == []


def test_without_a_data_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FakeNsqd() as nsqd:
        post(nsqd, "/pub?topic=t", b"x")

    assert list(tmp_path.iterdir()) == []


def test_clients_of_a_unix_socket(tmp_path):
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
def test_a_restart_of_its_own(started, tmp_path, keep_messages, depth):
    nsqd = started()
    post(nsqd, "/pub?topic=t", b"x")

    nsqd.restart(keep_messages=keep_messages)

    assert metadata(tmp_path) == {("t", False): {}}
    assert nsqd.broker.topics["t"].depth == nsqd.broker.topics["t"].backend_depth == depth
    assert (tmp_path / "fakensqd.messages").exists() is keep_messages
