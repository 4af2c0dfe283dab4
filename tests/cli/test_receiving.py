"""The messages that a command has received and not yet taken; and what ends a run."""

import pytest

from gnsq.cli.receiving import Inbox
from gnsq.message import Message

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
