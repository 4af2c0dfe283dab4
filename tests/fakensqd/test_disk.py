"""What is written to disk, as values: nsqd's own file and the messages."""

import pytest

from fakensqd.message import QueuedMessage
from fakensqd.nsqd.storage import (
    ChannelRecord,
    DiskError,
    Queue,
    TopicRecord,
    decode_messages,
    decode_metadata,
    encode_messages,
    encode_metadata,
    encode_removed,
    encode_stored,
)

# As nsqd 1.3.0 has left them.
METADATA = [
    pytest.param(b'{"topics":null,"version":"1.3.0"}', [], id="nothing"),
    pytest.param(
        b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}', [TopicRecord("t")], id="a topic"
    ),
    pytest.param(
        b'{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true},{"name":"d","paused":false}]}],'
        b'"version":"1.3.0"}',
        [TopicRecord("t", True, (ChannelRecord("c", True), ChannelRecord("d")))],
        id="channels",
    ),
]


@pytest.mark.parametrize(("data", "records"), METADATA)
def test_metadata_there_and_back(data, records):
    assert encode_metadata(records) == data
    assert decode_metadata(data) == records


def test_names_that_are_none_are_skipped():
    data = b'{"topics":[{"name":"a b"},{"name":"t","channels":[{"name":"#"},{"name":"c"}]}]}'

    assert decode_metadata(data) == [TopicRecord("t", False, (ChannelRecord("c"),))]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"topics":[{}]}', b'{"topics":[1]}', b'{"topics":1}'])
def test_what_is_no_metadata(data):
    with pytest.raises(DiskError, match="no metadata of nsqd"):
        decode_metadata(data)


def message(number, attempts=0):
    made = QueuedMessage(b"%016d" % number, b"body %d" % number, 10**18 + number, delay=5.0)
    made.attempts = attempts
    return made


def facts(queues):
    return [
        (queue.topic, queue.channel, [(m.id, m.body, m.timestamp, m.attempts, m.delay) for m in queue.messages])
        for queue in queues
    ]


def test_messages_there_and_back():
    queues = [
        Queue("t", None, [message(1)]),
        Queue("t", "c", [message(2, attempts=3), message(3)]),
        Queue("u", "c", []),
    ]

    found = facts(decode_messages(encode_messages(queues))[0])

    assert found == [
        ("t", None, [(b"%016d" % 1, b"body 1", 10**18 + 1, 0, 0.0)]),
        ("t", "c", [(b"%016d" % 2, b"body 2", 10**18 + 2, 3, 0.0), (b"%016d" % 3, b"body 3", 10**18 + 3, 0, 0.0)]),
        ("u", "c", []),
    ]


def test_no_messages():
    assert decode_messages(encode_messages([])) == ([], 0)


def test_what_is_appended():
    data = encode_messages([Queue("t", "c", [message(1), message(2)])])
    data += encode_stored(Queue("t", None, [message(2)])) + encode_removed("t", "c", [b"%016d" % 2, b"%016d" % 9])

    queues, torn = decode_messages(data)

    ids = [(queue.channel, [message.id for message in queue.messages]) for queue in queues]
    assert (ids, torn) == ([("c", [b"%016d" % 1]), (None, [b"%016d" % 2])], 0)


def test_a_last_record_that_is_not_whole_is_left_out():
    whole = encode_messages([Queue("t", "c", [message(1)])])
    record = encode_stored(Queue("t", "c", [message(2)]))

    for size in range(len(record)):
        queues, torn = decode_messages(whole + record[:size])
        assert ([len(queue.messages) for queue in queues], torn) == ([1], size)


def test_every_damage_is_noticed():
    data = encode_messages([Queue("t", "c", [message(1)])])

    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            queues, torn = decode_messages(damaged)
        except DiskError:
            continue
        assert (queues, torn > 0) == ([], True)
