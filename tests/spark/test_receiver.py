import logging
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from gnsq.spark.receiver import Receiver, ReceiverOptions
from gnsq.spark.store import LocalStore
from tests.spark.helpers import FakeMessage, bodies_of, channel_stats, is_empty, numbered, publish, wait_for


@pytest.fixture
def receive(fakensqd, spool, hub):
    """Start a receiver; it is closed at the end."""
    receivers = []

    def start(**options):
        options = {"topic": "clicks", "channel": "archive", "nsqd_tcp_addresses": (fakensqd.tcp_address,), **options}

        def make():
            receiver = Receiver(ReceiverOptions(**options), spool)
            receivers.append(receiver)
            receiver.start()
            return receiver

        return hub.call(make)

    yield start
    for receiver in receivers:
        hub.call(receiver.close)


def test_messages_are_in_the_spool_and_finished(fakensqd, spool, receive):
    publish(fakensqd, "clicks", numbered(2500))

    receiver = receive()
    wait_for(lambda: receiver.rows == 2500)

    assert sorted(bodies_of(spool)) == numbered(2500)
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    assert {segment.receiver for segment in spool.contents().segments} == {receiver.id}
    [batch] = spool.read(receiver.id, 1)
    assert set(batch.column("nsqd").to_pylist()) == {fakensqd.tcp_address}
    assert set(batch.column("topic").to_pylist()) == {"clicks"}


def test_lone_message_waits_for_its_segment_no_longer_than_told(fakensqd, receive):
    receiver = receive(segment_time=0.05)
    publish(fakensqd, "clicks", [b"one"])

    wait_for(lambda: receiver.segments == 1, limit=5)


def test_segment_is_cut_by_bytes(fakensqd, receive):
    receiver = receive(segment_bytes=1000, segment_time=30)
    publish(fakensqd, "clicks", [b"x" * 400] * 3)

    wait_for(lambda: receiver.rows == 2, limit=5)


def test_segment_is_cut_at_half_of_what_may_be_in_flight(fakensqd, receive):
    receiver = receive(max_in_flight=10, segment_time=30)
    publish(fakensqd, "clicks", numbered(10))

    wait_for(lambda: receiver.rows >= 5, limit=5)


def test_nothing_is_finished_before_it_is_durable(fakensqd, receive, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()
    put = LocalStore.put

    def slow(store, path, data):
        reached.set()
        assert go_on.wait(20)
        put(store, path, data)

    monkeypatch.setattr(LocalStore, "put", slow)
    receiver = receive()
    publish(fakensqd, "clicks", numbered(10))

    assert reached.wait(20)
    assert channel_stats(fakensqd, "clicks", "archive")["in_flight_count"] == 10
    go_on.set()
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    assert receiver.rows == 10


def test_close_gives_back_what_is_not_durable(fakensqd, spool, hub, receive):
    receiver = receive(segment_time=30)
    publish(fakensqd, "clicks", numbered(20))
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["in_flight_count"] == 20)

    hub.call(receiver.close)

    stats = channel_stats(fakensqd, "clicks", "archive")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (20, 0, 20)
    assert bodies_of(spool) == []
    assert spool.contents().receivers == set()


def test_close_says_that_nothing_more_will_come(fakensqd, tmp_path, hub, receive):
    receiver = receive()
    publish(fakensqd, "clicks", [b"one"])
    wait_for(lambda: receiver.rows == 1)

    hub.call(receiver.close)
    hub.call(receiver.close)

    assert (tmp_path / "spool" / receiver.id / "closed.json").read_text() == '{"segments": 1}'


def test_failing_disk_stops_finishing_and_loses_nothing(fakensqd, spool, receive, monkeypatch, caplog):
    put, broken = LocalStore.put, threading.Event()
    broken.set()

    def full(store, path, data):
        if broken.is_set() and path.endswith(".arrow"):
            raise OSError(28, "No space left on device")
        put(store, path, data)

    monkeypatch.setattr(LocalStore, "put", full)
    receiver = receive()
    publish(fakensqd, "clicks", numbered(50))
    wait_for(lambda: receiver.failing)
    assert channel_stats(fakensqd, "clicks", "archive")["clients"][0]["ready_count"] == 0
    broken.clear()

    wait_for(lambda: receiver.rows == 50)
    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    assert sorted(bodies_of(spool)) == numbered(50)
    publish(fakensqd, "clicks", numbered(50, first=50))
    wait_for(lambda: receiver.rows == 100)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "No space left on device" in errors[0].message
    assert "free space or repair" in errors[0].message


def test_close_with_a_failing_disk_gives_everything_back(fakensqd, hub, receive, monkeypatch):
    put = LocalStore.put

    def full(store, path, data):
        if path.endswith(".arrow"):
            raise OSError(28, "No space left on device")
        put(store, path, data)

    monkeypatch.setattr(LocalStore, "put", full)
    receiver = receive()
    publish(fakensqd, "clicks", numbered(50))
    wait_for(lambda: receiver.failing)

    hub.call(receiver.close)

    stats = channel_stats(fakensqd, "clicks", "archive")
    assert (stats["depth"], stats["in_flight_count"]) == (50, 0)


def test_full_spool_pauses_and_a_pruned_one_resumes(fakensqd, spool, receive):
    publish(fakensqd, "clicks", [b"x" * 1000] * 400)
    receiver = receive(max_spool_bytes=100_000, max_in_flight=40)

    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["clients"][0]["ready_count"] == 0)
    assert receiver.rows < 400
    while receiver.rows < 400:
        before = receiver.rows
        spool.prune({receiver.id: receiver.segments})
        wait_for(lambda before=before: receiver.rows > before)

    wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))


def test_no_more_than_max_rows_are_taken(fakensqd, spool, hub, receive):
    publish(fakensqd, "clicks", numbered(100))

    receiver = receive(max_rows=30, segment_time=30)
    assert hub.call(receiver.finished.wait, 10)
    hub.call(receiver.close)

    assert len(bodies_of(spool)) == 30
    wait_for(lambda: channel_stats(fakensqd, "clicks", "archive")["depth"] == 70)


def test_messages_whose_connection_is_gone_are_counted(spool, hub):
    receiver = hub.call(
        lambda: Receiver(ReceiverOptions(topic="t", channel="c", nsqd_tcp_addresses=("127.0.0.1:1",)), spool)
    )
    messages = [FakeMessage(1), FakeMessage(2, lost=True)]

    hub.call(receiver._finish_all, messages)

    assert receiver.unanswered == 1
    assert [message.answers for message in messages] == [["FIN"], ["FIN"]]


def test_one_lost_connection_keeps_no_other_message_from_being_given_back(spool, hub):
    receiver = hub.call(
        lambda: Receiver(ReceiverOptions(topic="t", channel="c", nsqd_tcp_addresses=("127.0.0.1:1",)), spool)
    )
    messages = [FakeMessage(1, lost=True), FakeMessage(2)]

    hub.call(receiver._requeue_all, messages)

    assert [message.answers for message in messages] == [["REQ 0"], ["REQ 0"]]


def test_bug_in_the_writing_is_told(fakensqd, receive, monkeypatch, caplog):
    def bug(store, path, data):
        raise RuntimeError("bug")

    receiver = receive(close_timeout=0.2)
    monkeypatch.setattr(LocalStore, "put", bug)
    publish(fakensqd, "clicks", [b"one"])

    wait_for(lambda: receiver.error)
    assert "internal error" in caplog.text
    monkeypatch.undo()


def test_spool_that_cannot_be_made_raises(fakensqd, tmp_path, hub):
    from gnsq.spark.spool import Spool

    (tmp_path / "file").write_text("")
    spool = Spool(str(tmp_path / "file" / "spool"))
    options = ReceiverOptions(topic="clicks", channel="archive", nsqd_tcp_addresses=(fakensqd.tcp_address,))

    with pytest.raises(NotADirectoryError):
        hub.call(lambda: Receiver(options, spool).start())


# --- command line


def command(*arguments):
    return [sys.executable, "-m", "gnsq.spark.receiver", *arguments]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_command_receives_and_stops_in_order(fakensqd, spool, tmp_path, number):
    publish(fakensqd, "clicks", numbered(100))
    arguments = ["--topic", "clicks", "--channel", "archive", "--spool", str(tmp_path / "spool")]
    with subprocess.Popen(
        command(*arguments, "--nsqd-tcp-address", fakensqd.tcp_address), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: spool.size() and len(bodies_of(spool)) == 100)
        wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)

    assert process.returncode == 0
    assert re.search(r"stopped in order: 100 rows in \d+ segments", errors)
    assert "Traceback" not in errors
    [receiver] = [path for path in (tmp_path / "spool").iterdir() if path.is_dir()]
    assert (receiver / "closed.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--spool", "/tmp/x"], "no address", id="no address"),
        pytest.param(["--spool", "ftp://x", "--nsqd-tcp-address", "x:1"], "ftp://x", id="bad spool"),
        pytest.param(["--spool", "/proc/x", "--nsqd-tcp-address", "x:1"], "a directory that can be written", id="disk"),
    ],
)
def test_command_says_what_is_wrong(arguments, words):
    done = subprocess.run(
        command("--topic", "t", "--channel", "c", *arguments), capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_killed_receiver_loses_nothing(fakensqd, spool, tmp_path):
    """Killed at any moment, often between a segment and its FINs; what it had not finished comes again."""
    publish(fakensqd, "clicks", numbered(3000))
    arguments = [
        "--topic",
        "clicks",
        "--channel",
        "archive",
        "--spool",
        str(tmp_path / "spool"),
        "--max-in-flight",
        "50",
    ]
    for rows in (200, 700):
        process = subprocess.Popen(
            command(*arguments, "--nsqd-tcp-address", fakensqd.tcp_address), stderr=subprocess.DEVNULL
        )
        wait_for(lambda rows=rows: len(bodies_of(spool)) >= rows)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    process = subprocess.Popen(
        command(*arguments, "--nsqd-tcp-address", fakensqd.tcp_address), stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: set(bodies_of(spool)) == set(numbered(3000)))
        wait_for(lambda: is_empty(fakensqd, "clicks", "archive"))
    finally:
        process.terminate()
        process.wait(20)

    assert spool.contents().corrupt == []


@pytest.fixture
def fakensqd_options(request):
    # What a killed receiver had in flight comes again soon.
    return {"msg_timeout": 1.0} if request.function is test_killed_receiver_loses_nothing else {}
