"""What several nsqlookupds say together."""

import json
import logging

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


NOT_KNOWN = NSQHttpError("TOPIC_NOT_FOUND", 404, b'{"message":"TOPIC_NOT_FOUND"}')
NSQDS_404 = NSQHttpError("NOT_FOUND", 404, b'{"message":"NOT_FOUND"}')


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
    assert lookup(Lookupd(NOT_KNOWN)) == (set(), 1)


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


# --- hostile answers --------------------------------------------------------------------------------------------------


@both
def test_nsqds_that_make_no_sense_are_one_line_with_their_number(ask, caplog):
    producers = [0, {"broadcast_address": "x" * 1_000_000, "tcp_port": 10**90}, [[[[[[]]]]]]] * 10_000

    assert ask(Lookupd({"producers": producers})) == (set(), 0)

    (record,) = caplog.records
    assert "can't use 30000 of 30000 nsqds, such as 0: it is no object" in record.getMessage()
    assert len(record.getMessage()) < 400


def test_nonsense_is_shown_cut_however_deep_it_is(caplog):
    deep = []
    for _ in range(100_000):
        deep = [deep]

    for answer in ({"producers": [deep]}, {"producers": {"a": deep}}, deep):
        assert lookup(Lookupd(answer)) == (set(), 0)

    assert [len(record.getMessage()) < 400 for record in caplog.records] == [True] * 3


def test_others_have_their_turn_while_a_long_answer_is_read():
    turns, end = [], Event()

    def count():
        while not end.is_set():
            turns.append(1)
            gevent.sleep(0)

    counting = gevent.spawn(count)

    lookup(Lookupd({"producers": [0] * 20_000}))

    end.set()
    counting.join()
    assert len(turns) >= 40


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("/tmp/evil.sock", id="unix socket"),
        pytest.param("x" * 256, id="too long"),
        pytest.param("a\nERROR forged", id="line feed"),
        pytest.param("\ud800", id="half of a surrogate pair"),
        pytest.param("a b", id="space"),
        pytest.param("user:secret@host", id="user"),
        pytest.param("host/path", id="path"),
        pytest.param("[::1]", id="brackets"),
        pytest.param("", id="empty"),
        pytest.param(["a"], id="a list"),
    ],
)
@both
def test_broadcast_address_must_be_a_host(ask, host):
    assert ask(of(nsqd(host), nsqd("good"))) == ({"good:4150"}, 0)


def test_unix_socket_is_refused_with_the_reason(caplog):
    lookup(of(nsqd("/run/evil.sock")))

    assert "path of a unix socket, which only configuration may name" in caplog.text


@pytest.mark.parametrize("port", [0, 65536, 10**90, True, 1.0, None, "4150"])
def test_port_must_be_a_port(port):
    assert lookup(of(nsqd("a", port))) == (set(), 0)


def test_no_more_nsqds_than_the_limit_are_known_and_those_that_were_stay(caplog):
    lookupd = of(*[nsqd(f"old{number}") for number in range(8)])
    known = TopicNodes([lookupd], "t", max_nsqds=10)
    known.ask(lambda address: None)
    before = known.known

    lookupd.answer["producers"] = [nsqd(f"new{number}") for number in range(10_000)] + lookupd.answer["producers"]
    found = []
    known.ask(found.append)

    assert known.known == {*before, "new0:4150", "new1:4150"}
    assert set(found) == known.known
    (record,) = caplog.records
    assert "left out 9998 of 10008 nsqds: there are 10 already, the option max_nsqds" in record.getMessage()


def test_nsqds_that_are_still_connected_count_for_the_limit():
    known = TopicNodes([of(nsqd("a"), nsqd("b"))], "t", max_nsqds=3)

    known.ask(lambda address: None, kept={"x:1", "y:1"})

    assert known.known == {"a:4150"}


def test_limit_holds_for_all_nsqlookupds_together():
    known = TopicNodes([of(nsqd("a"), nsqd("b")), of(nsqd("a"), nsqd("c"))], "t", max_nsqds=2)

    known.ask(lambda address: None)

    assert len(known.known) == 2


def test_limit_of_nodes_holds_over_rounds():
    lookupd = of(nsqd("a"), nsqd("b"), nsqd("c"))
    known = Nodes([lookupd], max_nsqds=2)
    told = [known.ask()]

    lookupd.answer = {"producers": [nsqd("x"), nsqd("y"), nsqd("z")]}
    told += [known.ask() for _ in range(3)]

    assert told == [
        ({"a:4150", "b:4150"}, set()),
        (set(), set()),
        (set(), {"a:4150", "b:4150"}),
        ({"x:4150", "y:4150"}, set()),
    ]


# --- what is no nsqlookupd --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "failing", "wrong"),
    [
        pytest.param({"producers": []}, False, False, id="nsqlookupd"),
        pytest.param(NOT_KNOWN, False, False, id="unknown topic"),
        pytest.param(NSQDS_404, True, True, id="nsqd"),
        pytest.param(NSQHttpError("x", 404, b"404 page not found"), True, True, id="old nsqd"),
        pytest.param(NSQHttpError("x", 405), True, True, id="method not allowed"),
        pytest.param(NSQHttpError("not JSON", 200), True, True, id="something with another answer"),
        pytest.param({}, True, True, id="no producers"),
        pytest.param([1], True, True, id="a list"),
        pytest.param({"producers": [0]}, True, False, id="nsqd that makes no sense"),
        pytest.param(NSQHttpError("x", 500), True, False, id="fails"),
        pytest.param(NSQHttpError("x", 401), True, False, id="login"),
        pytest.param(NSQHttpError("no answer"), True, False, id="down"),
    ],
)
def test_address_of_something_else_is_told_from_an_nsqlookupd_that_fails(answer, failing, wrong):
    known = TopicNodes([Lookupd(answer)], "t")

    known.ask(lambda address: None)

    assert (bool(known.report.failures), bool(known.report.wrong)) == (failing, wrong)


def test_address_stands_once_in_the_log_and_not_in_the_text_of_a_failure(caplog):
    with http_peer(lambda asked, sock: reply(b"404 page not found", "404 Not Found")) as peer:
        (lookupd,) = parse_lookupds(peer.address)
        known = TopicNodes([lookupd], "t")
        known.ask(lambda address: None)
        lookupd.close()

    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"http://{peer.address}/: lookup of topic t failed: http error <404> 404 page"
    )
    assert record.getMessage().count(peer.address) == 1
    assert known.report.failures[f"http://{peer.address}/"].startswith("http error <404> 404 page not found")


def test_nsqlookupd_that_answered_once_is_only_failing_while_a_proxy_answers_for_it():
    lookupd = of()
    known = TopicNodes([lookupd], "t")
    known.ask(lambda address: None)

    lookupd.answer = NSQHttpError("x", 404, b"<html>")
    known.ask(lambda address: None)

    assert list(known.report.failures) == ["http://lookupd/"]
    assert known.report.wrong == set()


def test_address_is_not_wrong_any_more_once_an_nsqlookupd_answers_there():
    lookupd = Lookupd(NSQDS_404)
    known = Nodes([lookupd])
    known.ask()
    lookupd.answer = NSQHttpError("no answer")
    known.ask()
    assert known.report.wrong == {"http://lookupd/"}

    lookupd.answer = {"producers": []}
    known.ask()

    assert (known.report.wrong, known.report.failures) == (set(), {})


@pytest.mark.parametrize(
    ("answers", "topic", "line"),
    [
        pytest.param([NOT_KNOWN], "t", "topic t: the nsqlookupd knows no nsqd with it yet", id="one"),
        pytest.param([NOT_KNOWN] * 2, "t", "topic t: none of 2 nsqlookupds knows an nsqd with it yet", id="two"),
        pytest.param(
            [NOT_KNOWN, NSQDS_404],
            "t",
            "topic t: none of 2 nsqlookupds (1 failed) knows an nsqd with it yet",
            id="failed",
        ),
        pytest.param([NOT_KNOWN] * 2, "", "none of 2 nsqlookupds knows an nsqd yet", id="no topic"),
    ],
)
def test_rounds_without_any_nsqd_are_told_and_from_the_third_on_as_a_warning(answers, topic, line):
    lookupds = [Lookupd(answer) for answer in answers]
    for number, lookupd in enumerate(lookupds):
        lookupd.address = f"http://lookupd{number}/"
    known = TopicNodes(lookupds, "t")
    lines = []
    for _ in range(4):
        known.ask(lambda address: None)
        lines.append(known.report.empty_line(lookupds, topic, 60.0))

    text = f"{line}; asking again in 60 s"
    assert lines == [(logging.INFO, text)] * 2 + [(logging.WARNING, text)] * 2


@pytest.mark.parametrize("answer", [{"producers": [nsqd("a")]}, NSQHttpError("no answer")], ids=["known", "no answer"])
def test_no_such_line_while_an_nsqd_is_known_or_nobody_answers(answer):
    known = TopicNodes([Lookupd(answer)], "t")
    known.ask(lambda address: None)

    assert known.report.empty_line([Lookupd(answer)], "t", 60.0) is None


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
