"""What several nsqlookupds say together."""

import gevent
import pytest
from gevent.event import Event

from gnsq.discovery import lookup_nsqds, parse_lookupds
from gnsq.errors import NSQHttpError
from tests.helpers import wait_until


class Lookupd:
    """Answers lookup() with what it was given, or raises it."""

    address = "http://lookupd/"

    def __init__(self, answer):
        self.answer = answer

    def lookup(self, topic):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def nsqd(host, port=4150):
    return {"broadcast_address": host, "tcp_port": port, "http_port": 4151}


def lookup(*lookupds):
    """What is found, and how many answered."""
    found = []
    answered = lookup_nsqds(lookupds, "t", found.append)
    return set(found), answered


def test_answers_are_united():
    first = Lookupd({"channels": [], "producers": [nsqd("a"), nsqd("b", 1)]})
    second = Lookupd({"channels": [], "producers": [nsqd("b", 1), nsqd("::1")]})

    assert lookup(first, second) == ({"a:4150", "b:1", "[::1]:4150"}, 2)


def test_one_that_fails_does_not_hide_the_others():
    failing = Lookupd(NSQHttpError("no answer"))

    assert lookup(failing, Lookupd({"producers": [nsqd("a")]})) == ({"a:4150"}, 1)


def test_one_that_is_silent_holds_up_nobody():
    class Silent(Lookupd):
        def lookup(self, topic):
            release.wait(10)
            return super().lookup(topic)

    release, found = Event(), []
    asking = gevent.spawn(
        lookup_nsqds, [Silent({"producers": []}), Lookupd({"producers": [nsqd("a")]})], "t", found.append
    )
    wait_until(lambda: found == ["a:4150"])

    assert not asking.ready()
    release.set()
    assert asking.get(timeout=1) == 2


def test_unknown_topic_is_an_answer():
    assert lookup(Lookupd(NSQHttpError("TOPIC_NOT_FOUND", 404))) == (set(), 1)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="no producers"),
        pytest.param({"producers": [{}]}, id="no address"),
        pytest.param({"producers": [{"broadcast_address": "a", "tcp_port": "x"}]}, id="port is no number"),
        pytest.param({"producers": [{"broadcast_address": "a", "tcp_port": 0}]}, id="port 0"),
        pytest.param([], id="no object"),
    ],
)
def test_answer_of_something_else_is_a_failure(answer):
    assert lookup(Lookupd(answer)) == (set(), 0)


def test_old_servers_address_is_understood():
    assert lookup(Lookupd({"producers": [{"address": "old", "tcp_port": 4150}]}))[0] == {"old:4150"}


def test_null_producers_are_none():
    assert lookup(Lookupd({"producers": None})) == (set(), 1)


def test_lookupd_addresses_are_urls_or_hosts():
    clients = parse_lookupds(["http://a:1", "b"])

    assert [client.address for client in clients] == ["http://a:1/", "http://b:4161/"]
    assert len(parse_lookupds("c:2")) == 1


@pytest.mark.parametrize("value", [None, {"a"}, [None], 5])
def test_wrong_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="must be"):
        parse_lookupds(value)
