"""LookupdClient with any nsqlookupd."""

import pytest

from gnsq import LookupdClient
from gnsq.errors import NSQHttpError


@pytest.fixture
def client(lookupd):
    made = LookupdClient.from_url(lookupd.http_address)
    yield made
    made.close()


def test_registry_of_names_is_kept(client, topic):
    client.create_topic(topic)
    client.create_channel(topic, "c")

    assert topic in client.topics()["topics"]
    assert client.channels(topic) == {"channels": ["c"]}
    assert client.lookup(topic) == {"channels": ["c"], "producers": []}

    client.delete_channel(topic, "c")
    assert client.channels(topic) == {"channels": []}
    client.tombstone_topic(topic, "127.0.0.1:4151")
    client.delete_topic(topic)
    with pytest.raises(NSQHttpError, match="<404> TOPIC_NOT_FOUND"):
        client.lookup(topic)


def test_lookupd_client_asks_for_ping_info_and_nodes(client):
    assert client.ping() == b"OK"
    assert "version" in client.info()
    assert isinstance(client.nodes()["producers"], list)


@pytest.mark.parametrize("call", ["lookup", "channels", "create_topic", "delete_topic"])
def test_bad_names_are_refused_before_anything_is_sent(client, call):
    with pytest.raises(ValueError, match="topic name 'bad topic'"):
        getattr(client, call)("bad topic")
