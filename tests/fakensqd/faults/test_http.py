"""Rules that act on HTTP requests, and ``/faults``: rules, toxics and states over HTTP."""

import contextlib
import http.client
import json

import gevent
import pytest
from gevent import socket as gevent_socket

from fakensqd import FakeLookupd, FakeNsqd, on
from fakensqd.faults import answer, corrupt, delay, disconnect, drop, reset
from fakensqd.faults.toxics import stall
from gnsq.errors import NSQSocketError
from gnsq.protocol import commands
from tests.fakensqd.wire import Client, request
from tests.helpers import wait_until

HEARTBEAT = (0, b"_heartbeat_")


@pytest.fixture
def nsqd(clock):
    with FakeNsqd(clock=clock, record=True, faults_over_http=True) as nsqd:
        yield nsqd
    assert nsqd.errors == []


def faults(daemon, method="GET", document=None, query="", path="", *, over="faults_http_address"):
    """Ask ``/faults`` of a daemon, at its port for that; nothing is sent without a document."""
    data = None if document is None else json.dumps(document).encode()
    return request(getattr(daemon, over), method, f"/faults{path}{query}", data)


def state(daemon, name, **arguments):
    return faults(daemon, "POST", arguments, path=f"/{name}")


# --- rules ------------------------------------------------------------------------------------------------------------

RULE = {
    "on": "reply",
    "kind": "PUB",
    "topic": "t",
    "body": "x",
    "times": {"nth": 2, "after": 0},
    "actions": [{"action": "corrupt", "part": "body", "to": "NO"}, {"action": "inject", "frame": "heartbeat"}],
    "optional": True,
}


def test_rule_is_added_listed_and_removed(nsqd):
    assert faults(nsqd, "POST", RULE) == {"id": 1}
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x") * 2)

    assert [client.frame()[1] for _ in range(3)] == [b"OK", b"_heartbeat_", b"NO"]
    (rule,) = faults(nsqd)["rules"]
    assert (rule["id"], rule["fired"], rule["armed"], rule["times"]) == (1, 1, False, "nth(2)")
    assert faults(nsqd, "DELETE", query="?id=1") == {}
    assert faults(nsqd) == {"rules": []}


def test_list_of_rules_is_a_scenario(nsqd):
    drop = {"on": "command", "actions": [{"action": "drop"}], "optional": True}
    faults(nsqd, "POST", [drop | {"kind": "PUB"}, drop | {"kind": "NOP"}])

    assert [(rule["id"], rule["armed"]) for rule in faults(nsqd)["rules"]] == [(1, True), (1, False)]
    assert faults(nsqd, "DELETE") == {}
    assert faults(nsqd)["rules"] == []


DROP = {"on": "reply", "actions": [{"action": "drop"}]}


def act(name, **parameters):
    return {"on": "reply", "actions": [{"action": name, **parameters}]}


WRONG = [
    pytest.param("POST", "x", "", "a rule is 'x', not an object", id="no object"),
    pytest.param("POST", {"on": "x"}, "", "on is 'x', not one of command, reply, frame, connect, http", id="on"),
    pytest.param("POST", {"on": "reply", "foo": 1}, "", "on reply has no foo", id="key"),
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
    pytest.param("POST", [], "", "the list is empty; it must have at least one rule", id="no rules"),
    pytest.param("POST", {"on": []}, "", "on is [], not one of command", id="no point"),
    pytest.param("POST", DROP | {"on": "http", "executed": 1}, "", "executed is 1, not true or false", id="executed"),
    pytest.param("POST", DROP | {"kind": 1}, "", "kind is 1, not text", id="kind"),
    pytest.param(
        "POST",
        DROP | {"kind": "FOO"},
        "",
        "on.reply('FOO'), drop(): FakeNsqd has no FOO; it has IDENTIFY",
        id="no command",
    ),
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
    pytest.param("POST", DROP | {"times": {"sometimes": 2}}, "", "a probability is from 0 to 1", id="chance"),
    pytest.param("POST", DROP | {"times": {"always": False}}, "", "times.always is False, not true", id="always"),
    pytest.param("POST", DROP | {"times": "never"}, "", "times is {'never': True}, not one of", id="never"),
    pytest.param("POST", DROP | {"on": "connect", "topic": "t"}, "", "on connect has no topic ('t')", id="matcher"),
    pytest.param("POST", act("delay"), "", "action delay has no seconds, which must be a number", id="missing"),
    pytest.param("POST", act("delay", seconds="x"), "", "delay.seconds is 'x', not a number", id="seconds"),
    pytest.param("POST", act("inject", frame="x"), "", "inject.frame is 'x', not \"heartbeat\"", id="frame"),
    pytest.param("POST", act("corrupt", part="size", to=2**31), "", "a number of 32 bits", id="to"),
    pytest.param("POST", act("corrupt", part="size", to=1.5), "", "corrupt.to is 1.5, not a whole", id="no to"),
    pytest.param(
        "POST", act("answer", status=7) | {"on": "http"}, "", "status 7 must be within 100 to 599", id="status"
    ),
    pytest.param("DELETE", None, "?id=9", "no rule has the id 9", id="no such id"),
    pytest.param("DELETE", None, "?id=x", "id is 'x', not the number of a rule", id="no id"),
    pytest.param("PUT", None, "", "takes GET, POST, DELETE, not PUT", id="method"),
]


@pytest.mark.parametrize(("method", "document", "query", "text"), WRONG)
def test_invalid_rule_is_refused(nsqd, method, document, query, text):
    assert text in faults(nsqd, method, document, query)["message"]


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"\xff"], ids=["too deep", "cut", "no text"])
def test_invalid_json_is_refused(nsqd, body):
    with contextlib.closing(http.client.HTTPConnection(nsqd.http_address)) as connection:
        connection.sock = gevent_socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=10)
        connection.request("POST", "/faults", body)
        answer = connection.getresponse()

        assert answer.status == 400
        assert json.loads(answer.read())["message"].startswith("the body is not JSON: ")


def test_wrong_method_is_answered_with_the_allowed_ones(nsqd):
    with contextlib.closing(http.client.HTTPConnection(nsqd.faults_http_address)) as connection:
        host, _, port = nsqd.faults_http_address.rpartition(":")
        connection.sock = gevent_socket.create_connection((host, int(port)), timeout=10)
        connection.request("HEAD", "/faults/toxics")
        answer = connection.getresponse()

    assert (answer.status, answer.getheader("Allow")) == (405, "DELETE, GET, OPTIONS, POST")


def test_faults_endpoint_is_off_by_default():
    with FakeNsqd(faults_http_address="127.0.0.1:0") as nsqd:
        assert nsqd.faults_http_address == ""
        assert faults(nsqd, over="http_address") == {"message": "NOT_FOUND"}


def test_faults_endpoint_is_on_the_http_port_and_alone_on_its_own(nsqd):
    assert faults(nsqd, over="http_address") == {"rules": []}
    assert request(nsqd.http_address, "GET", "/ping") == "OK"
    assert request(nsqd.faults_http_address, "GET", "/ping")["message"].startswith("there is no /ping; FakeNsqd has /f")


def test_port_of_faults_is_the_same_after_a_second_start():
    nsqd = FakeNsqd(faults_over_http=True)
    with nsqd:
        address = nsqd.faults_http_address
    with pytest.raises(ConnectionRefusedError):
        faults(nsqd)
    with nsqd:
        assert nsqd.faults_http_address == address
        assert faults(nsqd) == {"rules": []}


# --- toxics -----------------------------------------------------------------------------------------------------------

TOXICS = [
    pytest.param({"toxic": "latency", "seconds": 0.5}, {"seconds": 0.5, "jitter": 0.0}, id="latency"),
    pytest.param({"toxic": "bandwidth", "bytes_per_second": 9}, {"bytes_per_second": 9.0}, id="bandwidth"),
    pytest.param({"toxic": "slice_bytes"}, {"size": 1, "variation": 0, "delay": 0.0}, id="slice_bytes"),
    pytest.param({"toxic": "stall", "after": 5, "connection": 7}, {"after": 5, "connection": 7}, id="stall"),
    pytest.param({"toxic": "limit_bytes", "count": 0}, {"count": 0}, id="limit_bytes"),
    pytest.param({"toxic": "reset", "upstream": True}, {"after": 0, "upstream": True}, id="reset"),
    pytest.param({"toxic": "corrupt_bytes", "at": [1, 2]}, {"share": 0.0, "at": [1, 2]}, id="corrupt_bytes"),
]


@pytest.mark.parametrize(("document", "shown"), TOXICS)
def test_toxic_is_added_listed_and_removed(nsqd, document, shown):
    assert faults(nsqd, "POST", document, path="/toxics") == {"id": 1}

    assert faults(nsqd, path="/toxics") == {"toxics": [{"id": 1, "toxic": document["toxic"], **shown}]}
    assert faults(nsqd, "DELETE", path="/toxics", query="?id=1") == {}
    assert faults(nsqd, path="/toxics") == {"toxics": []}


def test_delete_without_id_removes_all_toxics(nsqd):
    for _ in range(2):
        faults(nsqd, "POST", {"toxic": "stall"}, path="/toxics")
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x"))

    assert faults(nsqd, "DELETE", path="/toxics") == {}
    assert client.frame() == (0, b"OK")
    assert faults(nsqd, "DELETE", path="/toxics") == {}


class OwnToxic:
    def start(self, rng):
        return stall().start(rng)

    def __repr__(self):
        return "OwnToxic()"


def test_toxic_of_the_user_is_listed_and_that_of_stop_reading_is_not(nsqd):
    nsqd.stop_reading()
    nsqd.link.add(OwnToxic())

    assert faults(nsqd, path="/toxics", over="http_address") == {"toxics": [{"id": 2, "toxic": "OwnToxic()"}]}
    faults(nsqd, "DELETE", path="/toxics")
    assert nsqd.states()["stop_reading"]


WRONG_TOXICS = [
    pytest.param("x", "a toxic is 'x', not one of latency, bandwidth, slice_bytes, stall", id="no object"),
    pytest.param({}, "a toxic is {}, not one of latency", id="no name"),
    pytest.param({"toxic": "lag"}, "a toxic is 'lag', not one of latency", id="name"),
    pytest.param({"toxic": "latency"}, "toxic latency has no seconds, which must be a number", id="missing"),
    pytest.param({"toxic": "latency", "seconds": -1}, "seconds -1.0 must be 0 or more", id="negative"),
    pytest.param(
        {"toxic": "latency", "second": 1},
        "toxic latency has no second (1); did you mean seconds? it has toxic, upstream, connection, seconds, jitter",
        id="misspelt",
    ),
    pytest.param({"toxic": "stall", "upstream": "yes"}, "upstream is 'yes', not true or false", id="upstream"),
    pytest.param({"toxic": "stall", "connection": 0}, "connection is 0, not a whole number from 1", id="connection"),
    pytest.param({"toxic": "stall", "after": 1.5}, "stall.after is 1.5, not a whole number", id="after"),
    pytest.param({"toxic": "bandwidth", "bytes_per_second": 0.5}, "bytes_per_second 0.5 must be 1 or more", id="rate"),
    pytest.param({"toxic": "slice_bytes", "size": 0}, "size 0 must be 1 or more", id="size"),
    pytest.param({"toxic": "slice_bytes", "variation": 1}, "variation 1 must be within 0 to 0", id="variation"),
    pytest.param({"toxic": "corrupt_bytes", "share": 2}, "share 2.0 must be within 0 to 1", id="share"),
    pytest.param({"toxic": "corrupt_bytes", "at": [-1]}, "at -1 must be 0 or more", id="at"),
]


@pytest.mark.parametrize(("document", "text"), WRONG_TOXICS)
def test_invalid_toxic_is_refused(nsqd, document, text):
    assert text in faults(nsqd, "POST", document, path="/toxics")["message"]
    assert faults(nsqd, path="/toxics") == {"toxics": []}


# --- states -----------------------------------------------------------------------------------------------------------

USUAL = {"down": False, "stop_reading": False, "processing_delay": 0.0, "pause_heartbeats": False}


def test_daemon_that_is_down_is_controlled_on_the_port_of_faults(nsqd):
    client = Client(nsqd.tcp_address)
    addresses = nsqd.tcp_address, nsqd.http_address

    assert state(nsqd, "down") == USUAL | {"down": True}
    assert client.ended()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            request(address, "GET", "/ping")
    assert faults(nsqd, path="/state")["down"]
    assert faults(nsqd) == {"rules": []}

    assert state(nsqd, "up") == USUAL
    assert (nsqd.tcp_address, nsqd.http_address) == addresses
    assert request(nsqd.http_address, "GET", "/ping") == "OK"


@pytest.mark.parametrize(("arguments", "depth"), [({}, 1), ({"keep_messages": False}, 0)], ids=["kept", "lost"])
def test_restart_over_http(nsqd, arguments, depth):
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x"))
    client.frame()

    assert state(nsqd, "restart", **arguments) == USUAL
    assert client.ended()
    assert nsqd.depth("t") == depth


def test_reset_over_http_tells_of_rules_that_never_acted(nsqd):
    rule = {"on": "command", "kind": "PUB", "actions": [{"action": "drop"}]}
    faults(nsqd, "POST", rule)

    assert state(nsqd, "reset") == {
        "message": "rule never acted: on.command('PUB'), drop(): nothing of that kind happened"
    }
    assert faults(nsqd) == {"rules": []}
    assert nsqd.errors == []


@pytest.mark.parametrize("over", ["http_address", "faults_http_address"])
def test_daemon_that_does_not_read_is_controlled_on_both_ports(nsqd, over):
    assert faults(nsqd, "POST", path="/stop_reading", over=over) == USUAL | {"stop_reading": True}
    client = Client(nsqd.tcp_address)
    client.send(commands.publish("t", b"x"))
    pinging = gevent.spawn(request, nsqd.http_address, "GET", "/ping")
    wait_until(lambda: nsqd._resumed.linkcount())

    assert faults(nsqd, "POST", path="/resume_reading", over=over) == USUAL
    assert (client.frame(), pinging.get(timeout=10)) == ((0, b"OK"), "OK")


def test_nsqlookupd_has_no_heartbeat_states():
    with FakeLookupd(faults_over_http=True) as lookupd:
        assert state(lookupd, "down") == {"down": True, "stop_reading": False, "processing_delay": 0.0}
        assert state(lookupd, "restart") == {"down": False, "stop_reading": False, "processing_delay": 0.0}
        text = state(lookupd, "pause_heartbeats")["message"]

    assert text.startswith(
        "there is no /faults/pause_heartbeats; FakeLookupd has /faults, /faults/toxics, /faults/state"
    )
    assert "heartbeats" not in text.partition(";")[2]


WRONG_STATES = [
    pytest.param(
        "POST",
        "/set_processing_delay",
        None,
        "set_processing_delay has no seconds, which must be a number",
        id="missing",
    ),
    pytest.param(
        "POST",
        "/set_processing_delay",
        {"seconds": "2"},
        "set_processing_delay.seconds is '2', not a number",
        id="seconds",
    ),
    pytest.param(
        "POST",
        "/set_processing_delay",
        [2],
        "the arguments of set_processing_delay are [2], not an object",
        id="no object",
    ),
    pytest.param(
        "POST",
        "/set_processing_delay?seconds=2",
        None,
        "query has no seconds; it is empty: arguments are JSON",
        id="query",
    ),
    pytest.param("POST", "/down", {"for": 2}, "down has no for (2); it has no arguments", id="no arguments"),
    pytest.param("POST", "/restart", {"keep_messages": 1}, "restart.keep_messages is 1, not true or false", id="flag"),
    pytest.param("GET", "/down", None, "/faults/down takes POST, not GET", id="method"),
    pytest.param("POST", "/state", {"down": True}, "/faults/state takes GET, not POST", id="state"),
    pytest.param("POST", "/dwon", None, "there is no /faults/dwon; FakeNsqd has /faults, ", id="path"),
    pytest.param("DELETE", "/toxics?ID=1", None, "the query has no ID; it has an id at most", id="misspelt id"),
    pytest.param("DELETE", "/toxics?id=7", None, "no toxic has the id 7", id="no such toxic"),
    pytest.param("DELETE", "/toxics?id=-1", None, "id is '-1', not the number of a toxic", id="no number"),
]


@pytest.mark.parametrize(("method", "path", "document", "text"), WRONG_STATES)
def test_invalid_state_is_refused(nsqd, method, path, document, text):
    assert text in faults(nsqd, method, document, path=path)["message"]
    assert nsqd.states() == USUAL


@pytest.mark.parametrize("name", ["down", "restart"])
def test_down_is_refused_on_the_http_port_that_it_would_close(nsqd, name):
    text = faults(nsqd, "POST", path=f"/{name}", over="http_address")["message"]

    where = f"http://{nsqd.faults_http_address}/faults/{name}"
    assert text == f"{name} would end this connection, too; POST it to {where}, which stays up"
    assert nsqd.states() == USUAL


def test_faults_endpoint_works_without_a_port_of_its_own():
    with FakeNsqd(faults_over_http=True, faults_http_address="") as nsqd:
        assert nsqd.faults_http_address == ""
        assert faults(nsqd, "POST", path="/stop_reading", over="http_address")["stop_reading"]
        text = faults(nsqd, "POST", path="/down", over="http_address")["message"]

    assert text == "down would end this connection, too; POST it to the port of faults_http_address, which stays up"


def test_up_names_a_port_that_is_in_use(nsqd):
    state(nsqd, "down")
    for port in nsqd._ports:
        port.stop()
    with contextlib.closing(gevent_socket.create_server(("127.0.0.1", nsqd.tcp_port))):
        assert state(nsqd, "up")["message"].startswith("[Errno 98] Address already in use: ")

    assert state(nsqd, "up") == USUAL


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
    assert nsqd.transcript.published("t") == [b"x"]


def test_corrupt_changes_the_body_of_a_response(nsqd):
    nsqd.add(on.http("/ping", executed=True), corrupt("body", b"KO"))

    assert request(nsqd.http_address, "GET", "/ping") == "KO"


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

    assert nsqd.transcript.published("t") == published
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


PUBLISHED = [
    pytest.param("/pub?topic=t", b"x", [b"x"], id="pub"),
    pytest.param("/mpub?topic=t", b"a\n\nb\n", [b"a", b"b"], id="lines"),
    pytest.param("/mpub?topic=t&binary=true", commands.multipublish_body([b"a", b"b"]), [b"a", b"b"], id="binary"),
    pytest.param("/mpub?topic=t&binary=true", b"x", [], id="refused"),
    pytest.param("/pub?topic=%zz", b"x", [], id="no query"),
]


@pytest.mark.parametrize(("target", "body", "bodies"), PUBLISHED)
def test_bodies_published_over_http_are_recorded(nsqd, target, body, bodies):
    publish(nsqd, target, body)

    assert nsqd.transcript.published("t") == bodies
