"""Census: which nsqds there are, what each has, and who does not answer."""

import json
import math

import gevent
import pytest

from fakensqd.faults import answer, on
from gnsq import NsqdHTTPClient
from gnsq.census import Census, parse_stats
from tests.kit import refused_port, wait_until


@pytest.fixture
def census():
    made = []

    def make(nsqds=(), lookupds=()):
        made.append(Census(nsqds, lookupds, {"timeout": 5.0}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def node_of(nsqd, topics, **more):
    """What an nsqlookupd says about an nsqd."""
    host, port = nsqd.http_address.split(":")
    return {"broadcast_address": host, "http_port": int(port), "topics": topics, **more}


def says(lookupd, *nodes):
    lookupd.add(on.http("/nodes", executed=True), answer(200, json.dumps({"producers": nodes}).encode()))


def test_nsqd_that_is_given_and_named_is_reached_once(fakecluster, census):
    first, second = fakecluster.nsqds
    first.publish("t", b"1")
    lookupds = fakecluster.lookupd_http_addresses

    both = census([f"localhost:{first.http_port}"], lookupds)

    wait_until(lambda: len(both.poll().nodes) == 3)
    reached = both.poll().reached
    assert {node.address for node in reached} == {
        f"http://localhost:{first.http_port}/",
        f"http://{second.http_address}/",
    }
    assert [key for node in reached for key in node.counts] == [("t", "")]


def test_nsqd_is_asked_only_if_its_topics_are_wanted_and_no_tombstone_hides_them(fakecluster, fakelookupd, census):
    first, second = fakecluster.nsqds
    says(
        fakelookupd,
        node_of(first, ["t", "u"], tombstones=[False, True]),
        node_of(second, ["t", "u"], tombstones=[True, False]),
    )

    found = census((), [fakelookupd.http_address]).poll(is_wanted=lambda topics: "t" in topics)

    assert {node.address: set(node.registered) for node in found.nodes} == {
        f"http://{first.http_address}/": {"t"},
        f"http://{second.http_address}/": {"u"},
    }
    assert [node.address for node in found.reached] == [f"http://{first.http_address}/"]
    assert found.failures == []


def test_nsqd_with_capital_letters_in_its_address_is_asked_once_and_forgotten(fakensqd, fakelookupd, census):
    fakensqd.publish("t", b"1")
    says(fakelookupd, {**node_of(fakensqd, ["t"]), "broadcast_address": "LocalHost"})  # once
    asked = census((), [fakelookupd.http_address])

    polls = [asked.poll() for _ in range(3)]

    address = f"http://localhost:{fakensqd.http_port}/"
    assert [[(node.address, node.is_named) for node in each.reached] for each in polls] == [
        [(address, True)],
        [(address, False)],
        [],
    ]
    assert polls[2].nodes == ()


@pytest.mark.parametrize("more", [{"topics": ["x y"]}, {"topics": {}}, {"tombstones": [False]}])
def test_topics_that_can_not_be_are_a_failure_of_the_nsqlookupd(fakensqd, fakelookupd, census, more):
    says(fakelookupd, {**node_of(fakensqd, ["t", "u"]), **more})

    found = census((), [fakelookupd.http_address]).poll()

    assert (found.nodes, len(found.failures)) == ((), 1)
    assert f"nsqlookupd {fakelookupd.http_address}: answer is not nsqlookupd's: can't use 1 of 1" in found.failures[0]


def test_polls_at_the_same_time_do_not_disturb_each_other(fakensqd, census):
    NsqdHTTPClient.from_url(fakensqd.http_address).create_topic("t")
    asked = census([fakensqd.http_address, f"127.0.0.1:{refused_port()}"])

    polls = [gevent.spawn(asked.poll, "t") for _ in range(5)]
    gevent.joinall(polls, timeout=10)

    assert [(len(poll.value.reached), len(poll.value.unreached)) for poll in polls] == [(1, 1)] * 5


# --- /stats


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="list"),
        pytest.param({}, id="no topics"),
        pytest.param({"topics": 3}, id="topics are no list"),
        pytest.param({"topics": [{"topic_name": "t", "depth": "1"}]}, id="depth is no number"),
        pytest.param({"topics": [{"channels": []}]}, id="topic without a name"),
        *(
            pytest.param({"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", name: number}]}]})
            for name in ("depth", "message_count", "timeout_count", "client_count")
            for number in (10**400, 2**63, 1.5, math.nan, math.inf, "1", None, [], True)
        ),
        pytest.param({"topics": [], "start_time": 10**400}, id="start in 10^393 years"),
        pytest.param({"topics": [], "version": [[1]]}, id="version is no text"),
    ],
)
def test_answer_of_another_server_is_refused(answer):
    with pytest.raises(ValueError, match="answer is not nsqd's"):
        parse_stats(answer)


def test_clients_are_counted_if_the_server_has_no_count():
    channel = {"channel_name": "c", "clients": [{}, {}]}
    stats = parse_stats(
        {"topics": [{"topic_name": "t", "channels": [channel, {"channel_name": "d", "clients": None}]}]}
    )

    assert [stats.counts["t", channel]["client_count"] for channel in "cd"] == [2, None]
