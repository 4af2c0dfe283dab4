"""Rules that act on HTTP requests."""

import http.client

import gevent
import pytest

from fakensqd import on
from fakensqd.faults import answer, corrupt, delay, disconnect, drop, reset
from gnsq.errors import NSQSocketError
from tests.kit import wait_until
from tests.kit.wire import request


def publish(nsqd, target="/pub?topic=t", body=b"x"):
    return request(nsqd.http_address, "POST", target, body)


BROKEN_OFF = (http.client.BadStatusLine, http.client.IncompleteRead, ConnectionError, NSQSocketError)


def test_answer_replaces_the_execution_of_a_request(nsqd):
    nsqd.add(on.http("/pub", method="POST", topic="t"), answer(503, b'{"message":"NO"}'))

    assert publish(nsqd) == {"message": "NO"}
    assert nsqd.broker.topics == {}
    assert publish(nsqd) == "OK"
    assert [entry.status for entry in nsqd.transcript.select("http")] == [503, 200]


def test_answer_replaces_the_response_of_an_executed_request(nsqd):
    nsqd.add(on.http("/pub", body=b"x", executed=True), answer(500))

    assert publish(nsqd) == "OK"
    assert nsqd.transcript.select("http")[0].status == 500
    assert nsqd.messages("t") == [b"x"]


LOST = [
    pytest.param(on.http("/pub"), disconnect(), [], id="not executed"),
    pytest.param(on.http("/pub", executed=True), disconnect(), [b"x"], id="executed, answer lost"),
    pytest.param(on.http("/pub", executed=True), corrupt("size"), [b"x"], id="answer cut short"),
    pytest.param(on.http("/pub"), reset(), [], id="reset"),
]


@pytest.mark.parametrize(("match", "action", "published"), LOST)
def test_lost_response_breaks_the_connection(nsqd, match, action, published):
    nsqd.add(match, action)

    with pytest.raises(BROKEN_OFF):
        publish(nsqd)

    assert nsqd.messages("t") == published
    assert publish(nsqd, "/pub?topic=u") == "OK"


def test_disconnect_after_sends_the_response_first(nsqd):
    nsqd.add(on.http("/pub"), disconnect(after=True))

    assert publish(nsqd) == "OK"
    assert nsqd.unfired() == []


def test_dropped_request_is_never_answered(nsqd):
    nsqd.add(on.http("/ping"), drop())

    asking = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    nsqd.wait_until(lambda nsqd: len(nsqd.transcript.fired()), 1)

    # A later request is answered.
    assert request(nsqd.http_address, "GET", "/ping") == "OK"
    assert not asking.ready()
    asking.kill()


def test_delayed_request_is_answered_later(nsqd, clock):
    nsqd.add(on.http("/ping"), delay(5.0))
    asked = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    nsqd.wait_until(lambda nsqd: len(nsqd.transcript.fired()), 1)
    assert not asked.ready()
    wait_until(lambda: clock.advance(5.0) or asked.ready())

    assert asked.get() == "OK"
