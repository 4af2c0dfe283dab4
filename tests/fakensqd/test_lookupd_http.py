"""nsqlookupd's HTTP API, called without a socket. What servers were recorded doing is in behaviour/test_recorded."""

import json

import pytest

from fakensqd.lookupd_http import lookupd_application
from fakensqd.options import LookupdOptions
from fakensqd.registry import Registry
from tests.fakensqd.test_http_api import call
from tests.fakensqd.test_registry import peer


class Facts:
    """A server that is not there."""

    def __init__(self):
        self.options = LookupdOptions()
        self.registry = Registry()
        self.errors = []
        self.time = 0.0

    def now(self):
        return self.time

    def wall_ns(self, now):
        return int(now * 1e9)


@pytest.fixture
def server():
    return Facts()


@pytest.fixture
def api(server):
    """Call the API; gives status and document."""
    application = lookupd_application(server)

    def request(method, target):
        path, _, query = target.partition("?")
        status, _, data = call(application, method, path, query)
        assert server.errors == []
        return status, json.loads(data) if data[:1] == b"{" else data.decode()

    return request


@pytest.fixture
def one(server):
    """An nsqd that has topic t with channel c."""
    made = peer(1)
    server.registry.connect(made)
    server.registry.register(made, "t", "c")
    return made


NODE = {
    "remote_address": "127.0.0.1:1",
    "hostname": "h",
    "broadcast_address": "host",
    "tcp_port": 4151,
    "http_port": 5151,
    "version": "1.3.0",
}


@pytest.mark.usefixtures("one")
def test_what_is_known(api):
    assert api("GET", "/ping") == (200, "OK")
    assert api("GET", "/info") == (200, {"version": "1.3.0"})
    assert api("GET", "/topics") == (200, {"topics": ["t"]})
    assert api("GET", "/channels?topic=t") == (200, {"channels": ["c"]})
    assert api("GET", "/lookup?topic=t") == (200, {"channels": ["c"], "producers": [NODE]})
    assert api("GET", "/nodes") == (200, {"producers": [NODE | {"tombstones": [False], "topics": ["t"]}]})
    assert set(api("GET", "/debug")[1]) == {"client::", "topic:t:", "channel:t:c"}


@pytest.mark.parametrize(
    ("method", "target", "status", "text"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a@b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
    ],
)
def test_refusals(api, method, target, status, text):
    assert api(method, target) == (status, {"message": text})


def test_names_without_a_producer(api):
    assert api("POST", "/topic/create?topic=t") == (200, "")
    assert api("POST", "/channel/create?topic=u&channel=c") == (200, "")

    assert api("GET", "/lookup?topic=t") == (200, {"channels": [], "producers": []})
    assert api("GET", "/lookup?topic=u") == (200, {"channels": ["c"], "producers": []})
    assert api("POST", "/channel/delete?topic=u&channel=c") == (200, "")
    assert api("POST", "/topic/delete?topic=*") == (200, "")
    assert api("GET", "/topics") == (200, {"topics": []})


def test_an_inactive_nsqd_is_left_out_until_it_pings(api, server, one):
    server.time = 300.1

    assert api("GET", "/lookup?topic=t")[1]["producers"] == []
    assert api("GET", "/nodes")[1]["producers"] == []

    one.last_update = 300.0
    assert len(api("GET", "/lookup?topic=t")[1]["producers"]) == 1


@pytest.mark.usefixtures("one")
def test_a_tombstone(api, server):
    assert api("POST", "/topic/tombstone?topic=t&node=host:5151") == (200, "")

    assert api("GET", "/lookup?topic=t")[1]["producers"] == []
    assert api("GET", "/nodes")[1]["producers"][0]["tombstones"] == [True]

    server.time = 45.0
    assert len(api("GET", "/lookup?topic=t")[1]["producers"]) == 1
