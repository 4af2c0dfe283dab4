"""The messages that a command has received and not yet taken; and what ends a run."""

import time

import pytest

from gnsq.cli.progress import Counter
from gnsq.cli.receiving import Inbox, Receiver
from gnsq.cli.servers import load_cluster
from gnsq.cli.topics import Topics
from gnsq.message import Message
from gnsq.running import StopSignals

MIB = bytes(1 << 20)


class Consumer:
    """What an Inbox asks of a consumer."""

    topic = "t"

    def __init__(self):
        self.calls = []

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")


@pytest.fixture
def consumer():
    return Consumer()


@pytest.fixture
def inbox(consumer):
    """An inbox with 70 messages of 1 MiB."""
    made = Inbox()
    for number in range(70):
        made.add(consumer, [Message(1, 1, b"%016d" % number, MIB)])
    return made


def test_no_more_messages_are_requested_while_many_bytes_wait(inbox, consumer):
    assert consumer.calls == ["pause"]

    taken = [len(inbox.take(1000)) for _ in range(3)]

    assert taken == [16, 16, 16]
    assert consumer.calls == ["pause", "resume"]


def test_messages_are_given_back_without_asking_for_others(inbox, consumer):
    assert len(inbox.empty()) == 70

    assert inbox.take(1000) == []
    assert consumer.calls == ["pause"]


def test_message_above_the_limit_of_a_batch_is_taken_alone(consumer):
    inbox = Inbox()
    inbox.add(consumer, [Message(1, 1, b"%016d" % number, MIB * 20) for number in range(2)])

    assert len(inbox.take(1000)) == 1


def test_idle_time_begins_when_the_consumer_is_ready(fakensqd):
    servers = {"nsqd": (fakensqd.tcp_address,), "nsqd_http": (fakensqd.http_address,)}
    cluster = load_cluster(None, None, servers)
    seconds = []
    for _ in range(2):  # the first start takes longer, since it imports modules
        started = time.monotonic()
        with StopSignals() as stop:
            receiver = Receiver(
                cluster, Topics(("t",)), "c", stop, Counter("done"), max_in_flight=10, batch=10, idle=0.5
            )
            receiver.run(lambda received: None)
        seconds.append(time.monotonic() - started)

    assert (receiver.is_idle, receiver.is_complete) == (True, True)
    assert min(seconds) >= 0.5


def test_handler_that_raises_ends_the_run_with_its_error(fakensqd):
    def fail(received):
        raise RuntimeError("broken")

    fakensqd.publish("t", b"1")
    cluster = load_cluster(None, None, {"nsqd": (fakensqd.tcp_address,)})
    with StopSignals() as stop, pytest.raises(RuntimeError, match="broken"):
        Receiver(cluster, Topics(("t",)), "c", stop, Counter("done"), max_in_flight=10, batch=10).run(fail)

    assert fakensqd.messages("t", "c") == [b"1"]
