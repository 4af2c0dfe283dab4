"""TopicNodes and AllNodes: the combined answers of several nsqlookupds."""

import itertools
import json
import logging
import time

import gevent
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq import Consumer, Producer
from gnsq.addresses import parse_address
from gnsq.discovery import LOOKUP_TIMEOUT, MAX_NSQDS, AllNodes, TopicNodes, parse_lookupds
from gnsq.errors import NSQHttpError
from gnsq.logs import LogOwner
from tests.kit import LIMIT, wait_until
from tests.kit.http_peer import JSON, http_peer, reply
from tests.strategies import json_values

LOG = logging.getLogger("tests.discovery")
OWNER = LogOwner("", time.monotonic)


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
    """Look a topic up. Returns the addresses found, and the number of nsqlookupds that did not fail."""
    return refresh(TopicNodes(lookupds, "t", OWNER), lookupds)


def nodes(*lookupds, **options):
    """As lookup(), for all nsqds."""
    return refresh(AllNodes(lookupds, owner=OWNER, **options), lookupds)


def refresh(known, lookupds):
    OWNER.kinds = {}
    for number, lookupd in enumerate(lookupds):
        lookupd.address = f"http://{number}.lookupd/"
    found = []
    known.refresh(lambda address, producer=None: found.append(address))
    return set(found), len(lookupds) - len(known.failures)


def ignore(address, producer=None):
    pass


def of(*nsqds):
    """Make an nsqlookupd that knows these nsqds."""
    return Lookupd({"producers": list(nsqds)})


NOT_KNOWN = NSQHttpError("TOPIC_NOT_FOUND", 404, code="TOPIC_NOT_FOUND")
NSQDS_404 = NSQHttpError("NOT_FOUND", 404, code="NOT_FOUND")


both = pytest.mark.parametrize("ask", [lookup, nodes])


@both
def test_answers_are_combined(ask):
    first = Lookupd({"channels": [], "producers": [nsqd("a"), nsqd("b", 1)]})
    second = Lookupd({"channels": [], "producers": [nsqd("b", 1), nsqd("::1")]})

    assert ask(first, second) == ({"a:4150", "b:1", "[::1]:4150"}, 2)


def test_nodes_have_their_http_port_if_asked_for():
    assert nodes(of(nsqd("a", 1), nsqd("::1", 2)), port="http_port") == ({"a:4151", "[::1]:4151"}, 1)


@both
def test_invalid_nsqds_hide_no_others_and_are_one_log_line_with_their_number(ask, caplog):
    invalid = [0, {"broadcast_address": "x" * 1_000_000, "tcp_port": 10**90}, [[[[[[]]]]]]] * 10_000

    assert ask(of(*invalid, nsqd("a"), nsqd("b", 0), nsqd("c"))) == ({"a:4150", "c:4150"}, 0)

    (record,) = caplog.records
    assert "lookupd/: lookup of " in record.getMessage()
    assert "answer is not nsqlookupd's: can't use 30001 of 30003 nsqds, such as 0: it is not " in record.getMessage()
    assert len(record.getMessage()) < 400


NAMES = st.sampled_from(["broadcast_address", "address", "tcp_port", "http_port", "producers"]) | st.text(max_size=3)
NSQDS = st.fixed_dictionaries(
    {},
    optional={
        "broadcast_address": st.sampled_from(["a", "::1", "/tmp/socket", "a b", "\x1b", ""]) | json_values(NAMES),
        "tcp_port": st.integers(-1, 65536) | json_values(NAMES),
    },
)
ANSWERS = st.fixed_dictionaries({"producers": st.lists(NSQDS | json_values(NAMES), max_size=4)}) | json_values(NAMES)


@both
@given(st.lists(ANSWERS, min_size=1, max_size=2))
def test_any_answer_gives_addresses_or_is_a_failure_in_words(ask, answers):
    lookupds = [Lookupd(answer) for answer in answers]
    kind = TopicNodes(lookupds, "t") if ask is lookup else AllNodes(lookupds)
    _, usable = refresh(kind, lookupds)
    found, _ = refresh(kind, lookupds)

    assert len(kind.failures) == len(lookupds) - usable
    assert all(text.isprintable() and len(text) < 1000 for text in kind.failures.values())
    for address in found:
        host, port = parse_address(address)
        assert (0 < port < 65536, host.isprintable(), "/" in host) == (True, True, False)


def test_address_of_old_servers_is_used():
    assert lookup(Lookupd({"producers": [{"address": "old", "tcp_port": 4150}]}))[0] == {"old:4150"}


@both
def test_null_producers_are_an_empty_list(ask):
    assert ask(Lookupd({"producers": None})) == (set(), 1)


def test_lookupd_addresses_are_urls_or_hosts_and_their_options_have_defaults():
    clients = parse_lookupds(["http://a:1", "b"])
    (other,) = parse_lookupds("c:2", {"timeout": 1, "retries": 0, "max_response_size": 9})

    assert [client.address for client in clients] == ["http://a:1/", "http://b:4161/"]
    assert (clients[0].options.timeout, clients[0].options.max_response_size) == (LOOKUP_TIMEOUT, 16 << 20)
    assert (other.options.timeout, other.options.retries, other.options.max_response_size) == (1, 0, 9)


NODES = {"channels": [], "producers": []}


@pytest.mark.parametrize("kind", [Consumer, Producer])
def test_lookupd_options_are_used_for_lookups(kind):
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


# --- invalid answers --------------------------------------------------------------------------------------------------


def test_other_greenlets_run_while_a_long_answer_is_read():
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


@both
def test_broadcast_address_must_be_a_host_and_port_a_port(ask):
    hosts = ["/tmp/evil.sock", "x" * 256, "a\nERROR forged", "\ud800", "a b", "user:secret@host", "host/path", "[::1]"]
    for host in (*hosts, "", ["a"]):
        assert ask(of(nsqd(host), nsqd("good"))) == ({"good:4150"}, 0)
    for port in (0, 65536, 10**90, True, 1.0, None, "4150"):
        assert ask(of(nsqd("a", port), nsqd("good"))) == ({"good:4150"}, 0)


def many(name, count=MAX_NSQDS):
    return [nsqd(f"{name}{number}") for number in range(count)]


def test_limit_leaves_out_new_nsqds_and_keeps_known_ones(caplog):
    lookupd = of(*many("old", MAX_NSQDS - 2))
    known = TopicNodes([lookupd], "t")
    known.refresh(ignore)
    before = known.addresses

    lookupd.answer["producers"] = many("new", 10_000) + lookupd.answer["producers"]
    found = []
    known.refresh(found.append)

    assert known.addresses == {*before, "new0:4150", "new1:4150"}
    assert set(found) == known.addresses
    (record,) = caplog.records
    assert "left out 9998 of 10998 nsqds: there are 1000 already, the limit" in record.getMessage()


def test_limit_holds_for_all_nsqlookupds_together_and_connected_nsqds_count():
    both, known = TopicNodes([of(*many("a")), of(*many("b"))], "t"), TopicNodes([of(nsqd("a"), nsqd("b"))], "t")

    both.refresh(ignore)
    known.refresh(ignore, connected={f"x:{port}" for port in range(1, MAX_NSQDS)})

    assert len(both.addresses) == MAX_NSQDS
    assert known.addresses == {"a:4150"}


def test_limit_holds_over_rounds_of_all_nodes():
    lookupd = of(*many("a", MAX_NSQDS + 1))
    known = AllNodes([lookupd])
    changes = [known.refresh()]

    lookupd.answer = {"producers": many("x", MAX_NSQDS + 1)}
    changes += [known.refresh() for _ in range(3)]

    old, new = ({f"{name}{number}:4150" for number in range(MAX_NSQDS)} for name in "ax")
    assert changes == [(old, set()), (set(), set()), (set(), old), (new, set())]


# --- servers other than nsqlookupd ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "failing", "wrong"),
    [
        pytest.param({"producers": []}, False, False, id="nsqlookupd"),
        pytest.param(NOT_KNOWN, False, False, id="unknown topic"),
        pytest.param(NSQDS_404, True, True, id="nsqd"),
        pytest.param(NSQHttpError("not JSON", 200), True, True, id="another answer"),
        pytest.param({}, True, True, id="no producers"),
        pytest.param([1], True, True, id="a list"),
        pytest.param({"producers": [0]}, True, False, id="invalid nsqd"),
        pytest.param(NSQHttpError("x", 500), True, False, id="fails"),
        pytest.param(NSQHttpError("no answer"), True, False, id="down"),
    ],
)
def test_another_server_is_wrong_and_a_failing_nsqlookupd_is_not(answer, failing, wrong):
    known = TopicNodes([Lookupd(answer)], "t")

    known.refresh(ignore)

    assert (bool(known.failures), bool(known.wrong)) == (failing, wrong)


def test_address_is_wrong_until_an_nsqlookupd_answers_there_and_then_never_again():
    lookupd = Lookupd(NSQDS_404)
    known = AllNodes([lookupd])
    known.refresh()
    lookupd.answer = NSQHttpError("no answer")
    known.refresh()
    assert known.wrong == {"http://lookupd/"}

    lookupd.answer = {"producers": []}
    known.refresh()
    assert (known.wrong, known.failures) == (set(), {})

    lookupd.answer = NSQHttpError("x", 404, b"<html>")  # a proxy
    known.refresh()

    assert (known.wrong, list(known.failures)) == (set(), ["http://lookupd/"])


@pytest.mark.parametrize(
    ("answers", "topic", "line"),
    [
        pytest.param([NOT_KNOWN], "t", "topic t: the nsqlookupd knows no nsqd with it yet", id="one"),
        pytest.param(
            [NOT_KNOWN, NSQDS_404],
            "t",
            "topic t: none of 2 nsqlookupds (1 failed) knows an nsqd with it yet",
            id="failed",
        ),
        pytest.param([{"producers": []}] * 2, "", "none of 2 nsqlookupds knows an nsqd yet", id="no topic"),
    ],
)
def test_rounds_without_an_nsqd_are_logged_and_from_the_third_on_as_a_warning(answers, topic, line, caplog):
    caplog.set_level(logging.INFO)
    minutes = itertools.count(0.0, 60.0)
    lookupds = [Lookupd(answer) for answer in answers]
    for number, lookupd in enumerate(lookupds):
        lookupd.address = f"http://lookupd{number}/"
    owner = LogOwner("t/c", lambda: next(minutes))
    known = TopicNodes(lookupds, topic, owner) if topic else AllNodes(lookupds, owner=owner)
    for _ in range(4):
        known.refresh(ignore)
        known.log_empty_round(LOG, 60.0)

    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOG.name]
    text = f"t/c: {line}; asking again in 60 s"
    assert lines == [("INFO", text)] * 2 + [("WARNING", text)] * 2


@pytest.mark.parametrize("answer", [{"producers": [nsqd("a")]}, NSQHttpError("no answer")], ids=["known", "no answer"])
def test_rounds_are_not_empty_while_an_nsqd_is_known_or_no_nsqlookupd_answers(answer, caplog):
    caplog.set_level(logging.INFO)
    known = TopicNodes([Lookupd(answer)], "t")
    known.refresh(ignore)

    known.log_empty_round(LOG, 60.0)

    assert [record for record in caplog.records if record.name == LOG.name] == []


# --- nsqds over rounds ------------------------------------------------------------------------------------------------

# Per round: the nsqds that were named and whether all nsqlookupds answered; then the nsqds that each round forgot.
ROUNDS = [
    pytest.param([("a", True), ("", True), ("", True)], ["", "", "a"], id="missed twice"),
    pytest.param([("a", True), ("", True), ("a", True), ("", True)], ["", "", "", ""], id="named in between"),
    pytest.param([("a", True), ("", False), ("", False)], ["", "", ""], id="one failed"),
    pytest.param([("a", True), ("", True), ("", False), ("", True)], ["", "", "", ""], id="failed in between"),
    pytest.param([("a", True), ("", False), ("", True), ("", True)], ["", "", "", "a"], id="missed after a failure"),
    pytest.param([("ab", True), ("b", True), ("", True), ("", True)], ["", "", "a", "b"], id="one after the other"),
]


@pytest.mark.parametrize(("rounds", "gone"), ROUNDS)
def test_nsqd_is_gone_when_no_nsqlookupd_names_it_in_two_complete_rounds_in_a_row(rounds, gone):
    first, second = of(), of()
    known, forgotten = AllNodes([first, second]), []
    for names, complete in rounds:
        first.answer = {"producers": [nsqd(name) for name in names]}
        second.answer = {"producers": []} if complete else NSQHttpError("no answer")
        forgotten.append(known.refresh()[1])

    assert forgotten == [{f"{name}:4150" for name in names} for names in gone]


@pytest.mark.parametrize("make", [lambda lookupds: TopicNodes(lookupds, "t"), AllNodes], ids=["topic", "all"])
def test_silent_nsqlookupd_does_not_delay_the_others(make):
    class Silent(Lookupd):
        def lookup(self, topic):
            release.wait(LIMIT)
            return super().lookup(topic)

    release, found = Event(), []
    known = make([Silent({"producers": [nsqd("b")]}), of(nsqd("a"))])
    asking = gevent.spawn(known.refresh, lambda address, producer=None: found.append(address))
    wait_until(lambda: found == ["a:4150"])

    assert not asking.ready()
    release.set()
    assert asking.get(timeout=LIMIT)
    assert sorted(found) == ["a:4150", "b:4150"]


def test_known_nsqds_of_a_failing_nsqlookupd_are_found_without_waiting_for_the_others():
    silent, slow = of(nsqd("a")), of(nsqd("b"))
    known = TopicNodes([silent, slow], "t")
    known.refresh(ignore)
    silent.answer, answered = NSQHttpError("no answer"), Event()
    lookup = slow.lookup
    slow.lookup = lambda topic: answered.wait(LIMIT) and lookup(topic)

    assert known.refresh(lambda address: answered.set() if address == "a:4150" else None)
