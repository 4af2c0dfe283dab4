"""gnsq bench: what it publishes and receives, its limits, and that nothing is left."""

import json
import signal

import pytest

from fakensqd import on
from fakensqd.faults import answer, drop
from tests.cli.programs import gnsq, servers_of, signalled_when
from tests.helpers import refused_port


def test_all_messages_are_published_and_received_and_the_topic_is_deleted(fakensqd):
    result = gnsq(fakensqd, "bench", "-n", "500", "--size", "30")

    published, received, latency = result.stdout.splitlines()
    (topic,) = {entry.topic for entry in fakensqd.transcript if entry.name == "MPUB"}
    assert (result.exit_code, result.stderr) == (0, "")
    assert published.startswith("published  500 messages of 30 bytes, ")
    assert received.startswith("received   500 messages of 30 bytes, ")
    assert latency.startswith("latency    median ")
    assert {len(body) for body in fakensqd.transcript.published(topic)} == {30}
    assert fakensqd.transcript.finished(topic) == 500
    assert topic.endswith("#ephemeral")
    assert fakensqd.broker.topics == {}


def test_nsqds_of_nsqlookupd_are_all_used(fakecluster, gnsq_json):
    status, document = gnsq_json("bench", "-n", "4000", "--lookupd", fakecluster.lookupds[0].http_address)

    assert (status, document["nsqds"], document["received"]) == (0, 2, 4000)
    assert set(document["latency"]) == {"median", "p99", "max"}
    assert all("MPUB" in nsqd.transcript.commands() for nsqd in fakecluster.nsqds)
    assert [nsqd.broker.topics for nsqd in fakecluster.nsqds] == [{}, {}]


def test_time_limits_the_publishing(fakensqd):
    result = gnsq(fakensqd, "bench", "--time", "0.3", "--rate", "100", "--json")

    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert 0 < document["published"] == document["received"] <= 60


def test_messages_that_do_not_come_are_an_error(fakensqd):
    with fakensqd.add(on.frame("message").every(1), drop()):
        result = gnsq(fakensqd, "bench", "-n", "10", "--timeout", "0.5")

    assert result.exit_code == 1
    assert "Error: 10 messages have not come within 0.5 s" in result.stderr
    assert "received   0 messages" in result.stdout
    assert fakensqd.broker.topics == {}


def test_topic_that_can_not_be_made_on_all_nsqds_stays_on_none(fakecluster, invoke):
    with fakecluster.nsqds[1].add(on.http("/topic/create"), answer(500, b"")):
        result = invoke("bench", *[word for nsqd in fakecluster.nsqds for word in servers_of(nsqd)])

    assert result.exit_code == 1
    assert [nsqd.broker.topics for nsqd in fakecluster.nsqds] == [{}, {}]


def test_signal_ends_it_and_deletes_the_topic(fakensqd):
    with signalled_when(lambda: fakensqd.transcript.select("command", name="FIN"), signal.SIGINT):
        result = gnsq(fakensqd, "bench", "--rate", "20", "--json")

    assert result.exit_code == 130
    assert json.loads(result.stdout)["published"] > 0
    assert fakensqd.broker.topics == {}


FAILURES = [
    pytest.param(["--size", "19"], 2, "--size 19 must be 20 bytes to 16 MiB", id="small"),
    pytest.param(["-n", "0"], 2, "0 is not in the range", id="count"),
    pytest.param(["--nsqd-http", "127.0.0.1:{port}"], 1, "Error: no nsqd could be reached", id="unreachable"),
]


@pytest.mark.parametrize(("options", "status", "text"), FAILURES)
def test_failure(fakensqd, invoke, options, status, text):
    options = [option.format(port=refused_port()) for option in options]
    servers = servers_of(fakensqd)[: 2 if "--nsqd-http" in options else 4]

    result = invoke("bench", *options, *servers)

    assert (result.exit_code, result.stdout) == (status, "")
    assert text in result.stderr
