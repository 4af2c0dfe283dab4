"""What several nsqlookupds say together."""

import json

import gevent
import pytest
from gevent.event import Event

from gnsq import Consumer, Producer
from gnsq.discovery import LOOKUP_TIMEOUT, KnownNodes, Nodes, TopicNodes, lookup_nodes, lookup_nsqds, parse_lookupds
from gnsq.errors import NSQHttpError
from tests.helpers import wait_until
from tests.http.peer import JSON, http_peer, reply


class Lookupd:
    """Answers lookup() and nodes() with what it was given, or raises it."""

    address = "http://lookupd/"

    def __init__(self, answer):
        self.answer = answer

    def lookup(self, topic):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def nodes(self):
        return self.lookup(None)


def nsqd(host, port=4150):
    return {"broadcast_address": host, "tcp_port": port, "http_port": 4151}


def lookup(*lookupds):
    """What is found, and how many answered."""
    found = []
    answered = lookup_nsqds(lookupds, "t", found.append)
    return set(found), answered


def nodes(*lookupds, **options):
    """The same of all nsqds."""
    found = []
    answered = lookup_nodes(lookupds, found.append, **options)
    return set(found), answered


def of(*nsqds):
    """One that knows these."""
    return Lookupd({"producers": list(nsqds)})


both = pytest.mark.parametrize("ask", [lookup, nodes])


@both
def test_answers_are_united(ask):
    first = Lookupd({"channels": [], "producers": [nsqd("a"), nsqd("b", 1)]})
    second = Lookupd({"channels": [], "producers": [nsqd("b", 1), nsqd("::1")]})

    assert ask(first, second) == ({"a:4150", "b:1", "[::1]:4150"}, 2)


@both
def test_one_that_fails_does_not_hide_the_others(ask):
    failing = Lookupd(NSQHttpError("no answer"))

    assert ask(failing, of(nsqd("a"))) == ({"a:4150"}, 1)


def test_nodes_of_what_does_not_know_them_are_a_failure():
    assert nodes(Lookupd(NSQHttpError("NOT_FOUND", 404))) == (set(), 0)


def test_nodes_can_be_named_by_their_http_port():
    assert nodes(of(nsqd("a", 1), nsqd("::1", 2)), port="http_port") == ({"a:4151", "[::1]:4151"}, 1)


@both
def test_producer_that_makes_no_sense_hides_no_other(ask, caplog):
    assert ask(of(None, nsqd("a"), nsqd("b", 0), nsqd("c"))) == ({"a:4150", "c:4150"}, 0)
    assert "lookupd/: lookup of " in caplog.text
    assert "answer is not nsqlookupd's" in caplog.text


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
        pytest.param({"producers": 0}, id="producers are no list"),
    ],
)
@both
def test_answer_of_something_else_is_a_failure(ask, answer):
    assert ask(Lookupd(answer)) == (set(), 0)


def test_old_servers_address_is_understood():
    assert lookup(Lookupd({"producers": [{"address": "old", "tcp_port": 4150}]}))[0] == {"old:4150"}


@both
def test_null_producers_are_none(ask):
    assert ask(Lookupd({"producers": None})) == (set(), 1)


def test_lookupd_addresses_are_urls_or_hosts():
    clients = parse_lookupds(["http://a:1", "b"])

    assert [client.address for client in clients] == ["http://a:1/", "http://b:4161/"]
    assert len(parse_lookupds("c:2")) == 1


@pytest.mark.parametrize("value", [None, {"a"}, [None], 5])
def test_wrong_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="must be"):
        parse_lookupds(value)


NODES = {"channels": [], "producers": []}


@pytest.mark.parametrize("kind", [Consumer, Producer])
def test_clients_ask_with_the_options_that_they_were_given(kind):
    given = (
        {"message_handler": lambda consumer, message: None, "topic": "t", "channel": "c"} if kind is Consumer else {}
    )

    with http_peer(lambda asked, sock: reply(json.dumps(NODES).encode(), "200 OK", JSON)) as peer:
        client = kind(lookupd_http_addresses=peer.address, lookupd_options={"auth": ("user", "secret")}, **given)
        client.start(**({"block": False} if kind is Consumer else {}))
        client.close()
        client.join()

    assert peer.requests[0].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="
    assert client.lookupds[0].options.timeout == LOOKUP_TIMEOUT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"colour": 1}, "has no option colour", id="unknown"),
        pytest.param(5, "lookupd_options must be a dict, not a int", id="no dict"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, Producer])
def test_bad_options_for_nsqlookupd_are_refused(kind, options, words):
    given = {"topic": "t", "channel": "c"} if kind is Consumer else {}

    with pytest.raises(TypeError, match=words):
        kind(lookupd_http_addresses="host", lookupd_options=options, **given)


# --- nsqds over rounds ------------------------------------------------------------------------------------------------

# What the nsqlookupds named together, and whether all answered, from round to round; what each says is gone.
ROUNDS = [
    pytest.param([("a", True), ("", True), ("", True)], ["", "", "a"], id="missed twice"),
    pytest.param([("a", True), ("", True), ("a", True), ("", True)], ["", "", "", ""], id="named in between"),
    pytest.param([("a", True), ("", False), ("", False)], ["", "", ""], id="somebody failed"),
    pytest.param([("a", True), ("", True), ("", False), ("", True)], ["", "", "", ""], id="failed in between"),
    pytest.param([("a", True), ("", False), ("", True)], ["", "", ""], id="back from a failure and empty"),
    pytest.param([("a", True), ("", False), ("", True), ("", True)], ["", "", "", "a"], id="missed after a failure"),
    pytest.param([("a", False), ("", True), ("", True)], ["", "", "a"], id="named while somebody failed"),
    pytest.param([("ab", True), ("b", True), ("", True), ("", True)], ["", "", "a", "b"], id="one after the other"),
    pytest.param([("a", True), ("", True), ("", True), ("", True)], ["", "", "a", ""], id="gone once only"),
]


@pytest.mark.parametrize(("rounds", "gone"), ROUNDS)
def test_nsqd_is_gone_when_nobody_names_it_in_two_complete_rounds_in_a_row(rounds, gone):
    known = KnownNodes()

    told = [known.learn(set(named), complete=complete)[1] for named, complete in rounds]

    assert told == [set(each) for each in gone]


def test_nsqd_is_new_once_and_again_when_it_comes_back():
    known = KnownNodes()

    told = [known.learn(set(named), complete=True)[0] for named in ["a", "ab", "b", "", "a", "ab"]]

    assert told == [{"a"}, {"b"}, set(), set(), {"a"}, {"b"}]


def test_nsqds_of_a_topic_stay_known_while_an_nsqlookupd_does_not_answer():
    first, second = of(nsqd("a")), of(nsqd("b"))
    known = TopicNodes([first, second], "t")
    rounds = []

    def ask():
        found = []
        rounds.append((known.ask(found.append), set(found)))
        assert set(found) == known.known

    ask()
    second.answer = NSQHttpError("no answer")
    ask()
    first.answer = {"producers": [nsqd("c")]}
    ask()
    first.answer = NSQHttpError("no answer")
    ask()
    first.answer = second.answer = {"producers": [nsqd("c")]}
    ask()

    assert rounds == [
        (True, {"a:4150", "b:4150"}),
        (True, {"a:4150", "b:4150"}),
        (True, {"b:4150", "c:4150"}),
        (False, {"b:4150", "c:4150"}),
        (True, {"c:4150"}),
    ]


def test_nsqds_that_were_replaced_are_forgotten_though_another_nsqlookupd_stays_silent():
    living, dead = of(nsqd("a")), of()
    dead.answer = NSQHttpError("no answer")
    known = TopicNodes([living, dead], "t")

    for name in ("a", "b", "c"):
        living.answer = {"producers": [nsqd(name)]}
        known.ask(lambda address: None)

    assert known.known == {"c:4150"}


def test_nsqds_of_a_silent_nsqlookupd_are_told_without_waiting_for_the_others():
    silent, slow = of(nsqd("a")), of(nsqd("b"))
    known = TopicNodes([silent, slow], "t")
    known.ask(lambda address: None)
    silent.answer, answered = NSQHttpError("no answer"), Event()
    lookup = slow.lookup
    slow.lookup = lambda topic: answered.wait(10) and lookup(topic)

    assert known.ask(lambda address: answered.set() if address == "a:4150" else None)


def test_rounds_of_nodes_tell_what_comes_and_goes():
    first, second = of(nsqd("a")), of(nsqd("a"), nsqd("b"))
    known = Nodes([first, second])
    told = [known.ask()]

    second.answer = {"producers": [nsqd("c")]}
    told += [known.ask(), known.ask()]

    assert told == [({"a:4150", "b:4150"}, set()), ({"c:4150"}, set()), (set(), {"b:4150"})]


def test_rounds_of_nodes_drop_nothing_while_one_fails():
    first, second = of(nsqd("a")), of(nsqd("b"))
    known = Nodes([first, second])
    known.ask()

    first.answer = NSQHttpError("no answer")
    second.answer = {"producers": []}

    assert [known.ask() for _ in range(5)] == [(set(), set())] * 5


def test_rounds_of_nodes_go_by_the_port_asked_for():
    assert Nodes([of(nsqd("a", 1))], port="http_port").ask() == ({"a:4151"}, set())


def test_rounds_of_nodes_tell_at_once_who_was_named_though_one_is_silent():
    class Silent(Lookupd):
        def nodes(self):
            release.wait(10)
            return super().nodes()

    release, found = Event(), []
    asking = gevent.spawn(Nodes([Silent({"producers": [nsqd("b")]}), of(nsqd("a"))]).ask, found.append)
    wait_until(lambda: found == ["a:4150"])

    assert not asking.ready()
    release.set()
    assert asking.get(timeout=1) == ({"a:4150", "b:4150"}, set())


def test_emulator_names_its_nodes(fakecluster):
    lookupds = parse_lookupds([lookupd.http_address for lookupd in fakecluster.lookupds])

    tcp, http = Nodes(lookupds).ask(), Nodes(lookupds, port="http_port").ask()

    for lookupd in lookupds:
        lookupd.close()
    assert tcp == ({f"127.0.0.1:{nsqd.tcp_port}" for nsqd in fakecluster.nsqds}, set())
    assert http == ({f"127.0.0.1:{nsqd.http_port}" for nsqd in fakecluster.nsqds}, set())
