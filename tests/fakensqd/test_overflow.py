"""Messages beyond the memory queue are on disk as soon as they are accepted; test_program kills a program."""

import shutil

import pytest

from fakensqd import FakeNsqd
from fakensqd.nsqd.storage import DataPath
from gnsq.protocol import commands
from gnsq.protocol.frames import decode_message
from tests.fakensqd.wire import Client, consumer, request


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
def killed(tmp_path):
    """Start what another would find if an nsqd was killed now: a copy of its directory."""
    copies = []

    def killed(nsqd, **options):
        path = tmp_path / f"copy{len(copies)}"
        shutil.copytree(nsqd.options.data_path, path)
        copy = FakeNsqd(data_path=str(path), **options)
        copies.append(copy)
        copy.start()
        return copy

    yield killed
    for copy in copies:
        copy.stop()


@pytest.fixture
def nsqd(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    with FakeNsqd(data_path=str(path), mem_queue_size=2) as nsqd:
        nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)
        yield nsqd
    assert nsqd.errors == []


def test_what_has_no_room_in_memory_survives(nsqd, killed):
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4")

    assert depths(nsqd) == (4, 2)
    copy = killed(nsqd)
    assert depths(copy) == (2, 2)
    reader = consumer(copy.tcp_address, ready=2)
    assert [body(reader.frame()), body(reader.frame())] == [b"3", b"4"]


def test_it_stays_on_disk_when_there_is_room_again(nsqd, killed):
    publish(nsqd.tcp_address, b"1", b"2", b"3")
    reader = consumer(nsqd.tcp_address, ready=2)
    assert [body(reader.frame()), body(reader.frame())] == [b"1", b"2"]
    publish(nsqd.tcp_address, b"4")

    assert depths(nsqd) == (2, 1)
    assert depths(killed(nsqd)) == (1, 1)


def test_what_is_in_flight_is_lost(nsqd, killed, tmp_path):
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4")
    reader = consumer(nsqd.tcp_address, ready=3)
    assert [body(reader.frame()) for _ in range(3)] == [b"1", b"2", b"3"]

    assert depths(killed(nsqd)) == (1, 1)
    reader.send(commands.ready(4))
    reader.frame()
    assert not (tmp_path / "data" / "fakensqd.messages").exists()
    assert depths(killed(nsqd)) == (0, 0)


def test_what_a_topic_holds_is_on_disk_too(nsqd, killed):
    publish(nsqd.tcp_address, b"1", b"2", b"3", topic="u")
    copy = killed(nsqd)

    assert [message.body for message in copy.broker.topics["u"].stored()] == [b"3"]
    channel = copy.broker.topics["u"].ensure_channel("c", 0.0)
    assert (channel.depth, channel.backend_depth) == (1, 0)
    assert killed(copy).broker.topics["u"].depth == 0


def test_what_came_back_from_an_orderly_stop_is_on_disk_until_it_leaves(nsqd, killed):
    publish(nsqd.tcp_address, b"1", b"2")
    nsqd.stop()
    copy = killed(nsqd)

    assert depths(copy) == (2, 2)
    consumer(copy.tcp_address).frame()
    assert depths(killed(copy)) == (1, 1)


def test_what_was_emptied_or_deleted_is_gone(nsqd, killed):
    publish(nsqd.tcp_address, b"1", b"2", b"3", topic="u")
    publish(nsqd.tcp_address, b"1", b"2", b"3")
    request(nsqd.http_address, "POST", "/topic/empty?topic=u")
    request(nsqd.http_address, "POST", "/channel/delete?topic=t&channel=c")

    copy = killed(nsqd)

    assert [topic.depth for topic in copy.broker.topics.values()] == [0, 0]


def test_what_is_ephemeral_is_not_on_disk(nsqd, tmp_path):
    nsqd.broker.ensure_topic("e#ephemeral").ensure_channel("c", 0.0)
    nsqd.broker.ensure_topic("t").ensure_channel("e#ephemeral", 0.0)
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4", topic="e#ephemeral")
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4")
    consumer(nsqd.tcp_address, ready=10).frame()
    assert nsqd.depth("t", "e#ephemeral") == 2

    nsqd.broker.delete_topic("e#ephemeral")
    assert not (tmp_path / "data" / "fakensqd.messages").exists()


def test_a_restart_that_loses_messages_keeps_those_on_disk(nsqd):
    publish(nsqd.tcp_address, b"1", b"2", b"3")

    nsqd.restart(keep_messages=False)

    assert depths(nsqd) == (1, 1)


def test_the_file_does_not_grow_for_ever(tmp_path):
    with FakeNsqd(data_path=str(tmp_path), mem_queue_size=0) as nsqd:
        topic = nsqd.broker.ensure_topic("t")
        channel = topic.ensure_channel("c", 0.0)
        topic.publish([b"kept"], 0.0)
        for _ in range(3000):
            topic.publish([b"x" * 100], 0.0)
            channel.deliver(None, 1, 0.0, 60.0)

        assert (tmp_path / "fakensqd.messages").stat().st_size < 500_000
        assert channel.backend_depth == 1


def test_a_disk_that_is_gone_does_not_stop_it(tmp_path, caplog):
    path = tmp_path / "data"
    path.mkdir()
    with FakeNsqd(data_path=str(path), mem_queue_size=0) as nsqd:
        shutil.rmtree(path)
        publish(nsqd.tcp_address, b"1")

        assert nsqd.depth("t") == 1
    assert "failed to persist" in caplog.text
    assert nsqd.errors == []


def test_what_is_stored_while_it_is_stopped_is_written_with_the_start(nsqd, killed):
    nsqd.stop()
    nsqd.broker.topics["t"].publish([b"1", b"2", b"3"], 0.0)
    nsqd.start()

    assert depths(killed(nsqd)) == (1, 1)


def test_a_file_whose_end_is_missing_gives_what_is_whole(nsqd, tmp_path, caplog):
    publish(nsqd.tcp_address, b"1", b"2", b"3", b"4")
    file = tmp_path / "data" / "fakensqd.messages"
    data = file.read_bytes()
    nsqd.stop()
    file.write_bytes(data[:-1])

    with FakeNsqd(data_path=str(tmp_path / "data")) as again:
        assert depths(again) == (1, 1)
    assert "the end is not whole, and not read: " in caplog.text


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path):
    path = DataPath(str(tmp_path))
    path._stored("t", None, [])
    path._removed("t", None, [])

    assert list(tmp_path.iterdir()) == []


def test_a_deferred_message_loses_its_delay_on_disk():
    with FakeNsqd(mem_queue_size=1) as nsqd:
        client = Client(nsqd.tcp_address)
        for _ in range(2):
            client.send(commands.deferpublish("t", b"x", 60_000))
            assert client.frame() == (0, b"OK")

        channel = nsqd.broker.topics["t"].ensure_channel("c", nsqd.now())

        assert (channel.deferred_count, channel.depth) == (1, 1)


@pytest.mark.parametrize("limit", [0, -1])
def test_without_memory_an_ephemeral_topic_drops_all(limit):
    with FakeNsqd(mem_queue_size=limit) as nsqd:
        publish(nsqd.tcp_address, b"x", topic="t#ephemeral")

        assert nsqd.depth("t#ephemeral") == 0
