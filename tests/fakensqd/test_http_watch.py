"""Faults and records of HTTP, and faults steered over it."""

import contextlib
import http.client
import json
import subprocess
import sys

import gevent
import pytest
from gevent import socket as gevent_socket

from fakensqd import FakeLookupd, FakeNsqd, on
from fakensqd.faults import answer, corrupt, delay, disconnect, drop, reset
from fakensqd.thread import Threaded
from gnsq.errors import NSQSocketError
from gnsq.protocol import commands
from tests.fakensqd.wire import Client, request
from tests.helpers import wait_until


@pytest.fixture
def nsqd(clock):
    with FakeNsqd(clock=clock, record=True, faults_over_http=True) as nsqd:
        yield nsqd
    assert nsqd.errors == []


def publish(nsqd, target="/pub?topic=t", body=b"x"):
    return request(nsqd.http_address, "POST", target, body)


BROKEN_OFF = (http.client.BadStatusLine, http.client.IncompleteRead, ConnectionError, NSQSocketError)


def test_another_answer_instead(nsqd):
    nsqd.add(on.http("/pub", method="POST", topic="t"), answer(503, b'{"message":"NO"}'))

    assert publish(nsqd) == {"message": "NO"}
    assert nsqd.broker.topics == {}
    assert publish(nsqd) == "OK"
    assert [entry.status for entry in nsqd.transcript.select("http")] == [503, 200]


def test_another_answer_afterwards(nsqd):
    nsqd.add(on.http("/pub", body=b"x", executed=True), answer(500))

    assert publish(nsqd) == "OK"
    assert nsqd.transcript.select("http")[0].status == 500
    assert nsqd.transcript.published("t") == [b"x"]


def test_a_spoiled_answer(nsqd):
    nsqd.add(on.http("/ping", executed=True), corrupt("body", b"KO"))

    assert request(nsqd.http_address, "GET", "/ping") == "KO"


LOST = [
    pytest.param(on.http("/pub"), disconnect(), [], id="not executed"),
    pytest.param(on.http("/pub", executed=True), disconnect(), [b"x"], id="executed, answer lost"),
    pytest.param(on.http("/pub", executed=True), corrupt("size"), [b"x"], id="answer cut short"),
    pytest.param(on.http("/pub"), reset(), [], id="reset"),
]


@pytest.mark.parametrize(("match", "action", "published"), LOST)
def test_an_answer_is_lost(nsqd, match, action, published):
    nsqd.add(match, action)

    with pytest.raises(BROKEN_OFF):
        publish(nsqd)

    assert nsqd.transcript.published("t") == published
    assert publish(nsqd, "/pub?topic=u") == "OK"


def test_an_answer_and_then_the_end(nsqd):
    nsqd.add(on.http("/pub"), disconnect(after=True))

    assert publish(nsqd) == "OK"
    assert nsqd.unfired() == []


def test_no_answer_at_all(nsqd):
    nsqd.add(on.http("/ping"), drop())

    asking = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    nsqd.wait_until(lambda nsqd: len(nsqd.transcript.fired()), 1)
    asking.join(0.02)
    assert not asking.ready()
    asking.kill()
    assert request(nsqd.http_address, "GET", "/ping") == "OK"


def test_a_late_answer(nsqd, clock):
    nsqd.add(on.http("/ping"), delay(5.0))
    asked = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    nsqd.wait_until(lambda nsqd: len(nsqd.transcript.fired()), 1)
    assert not asked.ready()
    wait_until(lambda: clock.advance(5.0) or asked.ready())

    assert asked.get() == "OK"


PUBLISHED = [
    pytest.param("/pub?topic=t", b"x", [b"x"], id="pub"),
    pytest.param("/mpub?topic=t", b"a\n\nb\n", [b"a", b"b"], id="lines"),
    pytest.param("/mpub?topic=t&binary=true", commands.multipublish_body([b"a", b"b"]), [b"a", b"b"], id="binary"),
    pytest.param("/mpub?topic=t&binary=true", b"x", [], id="refused"),
    pytest.param("/pub?topic=%zz", b"x", [], id="no query"),
]


@pytest.mark.parametrize(("target", "body", "bodies"), PUBLISHED)
def test_what_was_published_over_http(nsqd, target, body, bodies):
    publish(nsqd, target, body)

    assert nsqd.transcript.published("t") == bodies


def test_lookupd_answers_with_an_error():
    with FakeLookupd(record=True) as lookupd:
        lookupd.add(on.http("/lookup", topic="t"), answer(500, b'{"message":"INTERNAL_ERROR"}'))

        assert request(lookupd.http_address, "GET", "/lookup?topic=u") == {"message": "TOPIC_NOT_FOUND"}
        assert request(lookupd.http_address, "GET", "/lookup?topic=t") == {"message": "INTERNAL_ERROR"}
        assert lookupd.unfired() == []


# --- steering ---------------------------------------------------------------------------------------------------------


def faults(nsqd, method="GET", document=None, query=""):
    data = None if document is None else json.dumps(document).encode()
    return request(nsqd.http_address, method, f"/faults{query}", data)


RULE = {
    "on": "reply",
    "kind": "PUB",
    "topic": "t",
    "body": "x",
    "times": {"nth": 2, "after": 0},
    "actions": [{"action": "corrupt", "part": "body", "to": "NO"}, {"action": "inject", "frame": "heartbeat"}],
    "optional": True,
}


def test_a_rule_is_added_listed_and_removed(nsqd):
    assert faults(nsqd, "POST", RULE) == {"id": 1}
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x") * 2)

    assert [client.frame()[1] for _ in range(3)] == [b"OK", b"_heartbeat_", b"NO"]
    (rule,) = faults(nsqd)["rules"]
    assert (rule["id"], rule["fired"], rule["armed"], rule["times"]) == (1, 1, False, "nth(2)")
    assert faults(nsqd, "DELETE", query="?id=1") == {}
    assert faults(nsqd) == {"rules": []}


def test_a_list_is_a_scenario(nsqd):
    drops = [{"on": "command", "kind": kind, "actions": [{"action": "drop"}]} for kind in ("PUB", "NOP")]
    faults(nsqd, "POST", drops)

    assert [(rule["id"], rule["armed"]) for rule in faults(nsqd)["rules"]] == [(1, True), (1, False)]
    assert faults(nsqd, "DELETE") == {}
    assert faults(nsqd)["rules"] == []


DROP = {"on": "reply", "actions": [{"action": "drop"}]}


def act(name, **parameters):
    return {"on": "reply", "actions": [{"action": name, **parameters}]}


WRONG = [
    pytest.param("POST", "x", "", "a rule is 'x', not an object", id="no object"),
    pytest.param("POST", {"on": "x"}, "", "on is 'x', not one of command, reply, frame, connect, http", id="on"),
    pytest.param("POST", {"on": "reply", "foo": 1}, "", "a rule has no foo", id="key"),
    pytest.param("POST", {"on": "reply"}, "", "actions is None, not a list of one action at least", id="no action"),
    pytest.param("POST", {"on": "reply", "times": {"foo": 1}}, "", "times is {'foo': 1}, not one of nth", id="times"),
    pytest.param(
        "POST",
        {"on": "reply", "actions": [{"action": "x"}]},
        "",
        "an action is 'x', not one of error, drop",
        id="action",
    ),
    pytest.param("POST", act("drop", x=1), "", "action drop has no x (1)", id="argument"),
    pytest.param("POST", [], "", "the list is empty; it must have one rule at least", id="no rules"),
    pytest.param("POST", {"on": []}, "", "on is [], not one of command", id="no point"),
    pytest.param("POST", DROP | {"on": "http", "executed": 1}, "", "executed is 1, not true or false", id="executed"),
    pytest.param("POST", DROP | {"kind": 1}, "", "kind is 1, not text", id="kind"),
    pytest.param("POST", DROP | {"kind": "FOO"}, "", "kind is 'FOO', not one of IDENTIFY", id="no command"),
    pytest.param("POST", DROP | {"on": "http", "kind": "x"}, "", "kind is 'x', not a path", id="no path"),
    pytest.param("POST", DROP | {"connection": "1"}, "", "connection is '1', not a whole number", id="connection"),
    pytest.param("POST", DROP | {"connection": True}, "", "connection is True, not a whole", id="no number"),
    pytest.param("POST", DROP | {"body": {"base64": 1}}, "", "body is {'base64': 1}, not text, or", id="body"),
    pytest.param("POST", DROP | {"body": {"x": 1}}, "", "body is {'x': 1}, not text, or", id="no base64"),
    pytest.param("POST", DROP | {"optional": 1}, "", "optional is 1, not true or false", id="optional"),
    pytest.param("POST", DROP | {"name": 1}, "", "name is 1, not text", id="name"),
    pytest.param("POST", DROP | {"actions": {}}, "", "actions is {}, not a list", id="actions"),
    pytest.param("POST", DROP | {"actions": [1]}, "", "an action is 1, not one of error", id="no object as action"),
    pytest.param("POST", DROP | {"times": {"nth": "3"}}, "", "times.nth is '3', not a whole number", id="nth"),
    pytest.param("POST", DROP | {"times": {"sometimes": 2}}, "", "a chance is from 0 to 1", id="chance"),
    pytest.param("POST", DROP | {"times": "never"}, "", "times is {'never': True}, not one of", id="never"),
    pytest.param("POST", DROP | {"on": "connect", "topic": "t"}, "", "on connect has no topic ('t')", id="matcher"),
    pytest.param("POST", act("delay"), "", "action delay has no seconds, which must be a number", id="missing"),
    pytest.param("POST", act("delay", seconds="x"), "", "delay.seconds is 'x', not a number", id="seconds"),
    pytest.param("POST", act("inject", frame="x"), "", "inject.frame is 'x', not \"heartbeat\"", id="frame"),
    pytest.param("POST", act("corrupt", part="size", to=2**31), "", "a number of 32 bits", id="to"),
    pytest.param("POST", act("corrupt", part="size", to=1.5), "", "corrupt.to is 1.5, not a whole", id="no to"),
    pytest.param("POST", act("answer", status=7) | {"on": "http"}, "", "answer.status is 7, not", id="status"),
    pytest.param("DELETE", None, "?id=9", "no rule has the id 9", id="no such id"),
    pytest.param("DELETE", None, "?id=x", "id is 'x', not the number of a rule", id="no id"),
    pytest.param("PUT", None, "", "GET, POST or DELETE", id="method"),
]


@pytest.mark.parametrize(("method", "document", "query", "text"), WRONG)
def test_what_cannot_be_steered_is_told(nsqd, method, document, query, text):
    assert text in faults(nsqd, method, document, query)["message"]


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"\xff"], ids=["too deep", "cut", "no text"])
def test_what_is_no_json_is_told(nsqd, body):
    with contextlib.closing(http.client.HTTPConnection(nsqd.http_address)) as connection:
        connection.sock = gevent_socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=10)
        connection.request("POST", "/faults", body)
        answer = connection.getresponse()

        assert answer.status == 400
        assert json.loads(answer.read())["message"].startswith("the body is no JSON: ")


def test_it_is_off_unless_wanted():
    with FakeNsqd() as nsqd:
        assert faults(nsqd) == {"message": "NOT_FOUND"}


def test_another_process_steers():
    code = (
        "import json, sys, urllib.request\n"
        "rule = {'on': 'command', 'kind': 'PUB', 'actions': [{'action': 'error', 'code': 'E_PUB_FAILED'}]}\n"
        "url = 'http://%s/faults' % sys.argv[1]\n"
        "print(json.load(urllib.request.urlopen(url, json.dumps(rule).encode(), timeout=10)))\n"
    )
    with Threaded(FakeNsqd(faults_over_http=True)) as nsqd:
        done = subprocess.run(
            [sys.executable, "-c", code, nsqd.http_address], capture_output=True, text=True, check=True, timeout=30
        )
        client = Client(nsqd.tcp_address)
        client.send(commands.publish("t", b"x"))

        assert done.stdout == "{'id': 1}\n"
        assert client.frame()[1] == b"E_PUB_FAILED PUB failed exiting"
