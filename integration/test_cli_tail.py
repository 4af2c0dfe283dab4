"""gnsq tail, pub, copy and requeue-dead with real nsqds, and beside the programs of NSQ."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from gnsq import Consumer, NsqdHTTPClient, NSQGiveUp, Producer
from integration.servers import needs_programs, running
from tests.kit import bodies, channel_stats, child, run, wait_for_program, wait_until

ROOT = Path(__file__).parent.parent
BODIES = [b"1", b'{"a": 2}', b"\xff\x00 three", b"four\ttabs", "größer".encode()] * 20

pytestmark = [
    pytest.mark.real,
    pytest.mark.subprocess,
    needs_programs,
]


def settings():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GNSQ_")}
    return {**kept, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": "/nowhere"}


def words(nsqd, *arguments):
    return [sys.executable, "-m", "gnsq", *arguments, "--nsqd", nsqd.tcp_address]


def gnsq(nsqd, *arguments):
    return run(*words(nsqd, *arguments), env=settings())


def publish(nsqd, topic, *messages):
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish(topic, messages)


def wait_received(nsqd, topic, expected):
    """Read a topic until all expected bodies have come; fail for others."""
    found = []
    options = {"max_in_flight": 1000, "message_handler": lambda consumer, message: found.append(message.body)}
    with Consumer(topic, "check", nsqd.tcp_address, **options):
        wait_until(lambda: len(found) >= len(expected) and set(found) >= expected, 30)
    assert set(found) == expected
    return found


def settled(nsqd, topic, channel):
    stats = channel_stats(nsqd, topic, channel)
    return stats["depth"] + stats["in_flight_count"] + stats["deferred_count"] == 0


@pytest.fixture
def nsqds():
    with running("nsqd") as first, running("nsqd") as second:
        yield first, second


def test_nsqd_that_keeps_nothing_in_memory_loses_no_dead_letter_to_a_look():
    letters = [b"%d" % number for number in range(50)]
    with running("nsqd", "--mem-queue-size=0") as nsqd:
        publish(nsqd, "dead", *letters)

        http = ("--nsqd-http", nsqd.http_address)
        refused = gnsq(nsqd, "tail", "dead", "-n", "1", *http)
        NsqdHTTPClient.from_url(nsqd.http_address).create_channel("dead", "review")
        look = gnsq(nsqd, "tail", "dead", "--channel", "review", "--peek", "-n", "20", *http)
        rest = gnsq(nsqd, "tail", "dead", "--channel", "review", "-n", "50", *http)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(look.stdout.split()) == 20
    assert sorted(rest.stdout.encode().split()) == sorted(letters)


@pytest.mark.skipif(not shutil.which("nsq_tail"), reason="needs nsq_tail")
def test_tail_writes_the_bytes_that_nsq_tail_writes(nsqd, topic, tmp_path):
    for channel in ("ours", "theirs"):
        client = NsqdHTTPClient.from_url(nsqd.http_address)
        client.create_topic(topic)
        client.create_channel(topic, channel)
    publish(nsqd, topic, *BODIES)
    count = str(len(BODIES))
    theirs = ["nsq_tail", f"--topic={topic}", "--channel=theirs", f"--nsqd-tcp-address={nsqd.tcp_address}"]

    written = {}
    for name, command in (
        ("ours", words(nsqd, "tail", topic, "--channel", "ours", "-n", count)),
        ("theirs", [*theirs, "-n", count]),
    ):
        with open(tmp_path / name, "wb") as file, child(*command, env=settings(), stdout=file) as process:
            assert process.wait() == 0
        written[name] = sorted((tmp_path / name).read_bytes().split(b"\n"))

    assert written["ours"] == written["theirs"] == sorted([*BODIES, b""])
    assert settled(nsqd, topic, "ours")


@pytest.mark.skipif(not shutil.which("to_nsq"), reason="needs to_nsq")
def test_pub_publishes_what_to_nsq_publishes(nsqd, topic):
    data = b"\n".join(BODIES) + b"\n"
    theirs = ["to_nsq", f"-topic={topic}-theirs", f"-nsqd-tcp-address={nsqd.tcp_address}"]

    for command in (words(nsqd, "pub", f"{topic}-ours"), theirs):
        run(*command, given=data, text=False, env=settings()).check_returncode()

    assert sorted(bodies(nsqd, f"{topic}-ours")) == sorted(bodies(nsqd, f"{topic}-theirs")) == sorted(BODIES)


def test_copy_moves_a_topic_to_another_nsqd(nsqds, topic):
    source, target = nsqds
    messages = {b"%d" % number for number in range(20_000)}
    publish(source, topic, *messages)

    result = gnsq(source, "copy", topic, "--to-nsqd", target.tcp_address, "--idle", "1")

    assert result.returncode == 0, result.stderr
    assert len(wait_received(target, topic, messages)) == len(messages)
    assert settled(source, topic, "copy")


def test_copy_that_is_killed_while_the_target_restarts_loses_nothing(nsqds, topic):
    source, target = nsqds
    messages = {b"%d" % number for number in range(50_000)}
    publish(source, topic, *messages)
    command = words(source, "copy", topic, "--to-nsqd", target.tcp_address, "--timeout", "2")

    def copied():
        found = NsqdHTTPClient.from_url(target.http_address).stats(topic)["topics"] or [{"message_count": 0}]
        return found[0]["message_count"]

    with child(*command, env=settings()) as process:
        wait_for_program(process, lambda: copied() > 1000)
        target.stop()
        target.start()
        wait_for_program(process, copied)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, process.stderr.read()
    # nsqd may deliver requeued messages of a new channel 5 s late.
    result = gnsq(source, "copy", topic, "--to-nsqd", target.tcp_address, "--idle", "7")

    assert result.returncode == 0, result.stderr
    wait_received(target, topic, messages)


def test_dead_letters_of_a_consumer_go_back(nsqd, topic):
    is_repaired, billed = [], []

    def bill(consumer, message):
        if not is_repaired:
            raise NSQGiveUp("no such country") if message.body == b"1" else ValueError("no price")
        billed.append(message.body)

    dead = f"{topic}-dead"
    options = {"give_up_on": ValueError, "dead_letter_topic": dead}
    with (
        Producer(nsqd.tcp_address) as producer,
        Consumer(topic, "c", nsqd.tcp_address, message_handler=bill, **options) as consumer,
    ):
        producer.multipublish(topic, [b"1", b"2"])
        wait_until(lambda: consumer.stats().given_up == 2)
        assert consumer.stats().backoff == "off"
        assert settled(nsqd, topic, "c")
        shown = gnsq(nsqd, "requeue-dead", dead, "--all", "--dry-run")
        kept = gnsq(nsqd, "requeue-dead", dead, "--error", "KeyError", "--leave-for", "1s", "--idle", "0.5")
        is_repaired.append(True)
        requeued = gnsq(nsqd, "requeue-dead", dead, "--all", "--idle", "7s")
        wait_until(lambda: len(billed) == 2)

    assert shown.stdout.count(f"publish to {topic}: from {topic}/c, given up") == 2
    assert "NSQGiveUp: no such country" in shown.stdout
    assert "ValueError: no price" in shown.stdout
    assert "2 messages left in the channel" in kept.stderr
    assert "2 messages requeued" in requeued.stderr
    assert requeued.returncode == 0
    assert settled(nsqd, dead, "requeue-dead")
    assert sorted(billed) == [b"1", b"2"]


def test_letter_that_nsqd_refuses_for_its_size_costs_no_other_message(nsqd, topic):
    """nsqd closes the connection on which it refuses a message that is too large."""

    def fail(consumer, message):
        raise NSQGiveUp("no")

    dead = f"{topic}-dead"
    with (
        Producer(nsqd.tcp_address) as producer,
        Consumer(topic, "c", nsqd.tcp_address, message_handler=fail, dead_letter_topic=dead) as consumer,
    ):
        producer.publish(topic, b"x" * (1024 * 1024 - 10))
        producer.publish(topic, b"small")
        wait_until(lambda: consumer.stats().counts.finished == 2)

        assert consumer.stats().counts.requeued == 0
        assert consumer.stats().counts.received == 2
    topics = NsqdHTTPClient.from_url(nsqd.http_address).stats(dead)["topics"]
    assert topics[0]["message_count"] == 2
