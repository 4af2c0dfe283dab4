"""``gnsq stats`` and ``gnsq ping`` with real servers."""

import json
import sys

import gevent
import pytest

from gnsq import NsqdHTTPClient, Producer
from integration.servers import needs_programs, running
from tests.kit import LIMIT, bodies, run

pytestmark = pytest.mark.subprocess
COUNTS = ("depth", "backend_depth", "message_count", "paused")
CHANNEL_COUNTS = (*COUNTS, "in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")


def gnsq_json(*arguments):
    """Run a command of gnsq; returns its exit status and its document."""
    result = run(sys.executable, "-m", "gnsq", *arguments, "--json", limit=LIMIT + 5)
    return result.returncode, json.loads(result.stdout)


def options_of(server):
    return ["--nsqd", server.tcp_address, "--nsqd-http", server.http_address]


def test_stats_are_those_of_nsqd(nsqd, topic):
    client = NsqdHTTPClient.from_url(nsqd.http_address)
    with Producer(nsqd.tcp_address) as producer:
        producer.multipublish(topic, [b"1", b"2", b"3"])
        assert bodies(nsqd, topic, "read") == [b"1", b"2", b"3"]
        producer.publish(topic, b"deferred", 60_000)
        producer.publish(topic, b"waiting")
    client.pause_channel(topic, "read")
    with gevent.Timeout(LIMIT):
        while client.stats(topic)["topics"][0]["channels"][0]["depth"] != 1:
            gevent.sleep(0.01)

    status, document = gnsq_json("stats", topic, *options_of(nsqd))

    (expected,) = client.stats(topic)["topics"]
    (expected_channel,) = expected["channels"]
    (found,) = document["topics"]
    (channel,) = found["channels"]
    assert status == 0
    assert {key: found[key] for key in COUNTS} == {key: expected[key] for key in COUNTS}
    assert {key: channel[key] for key in CHANNEL_COUNTS} == {key: expected_channel[key] for key in CHANNEL_COUNTS}
    assert (channel["message_count"], channel["depth"], channel["deferred_count"]) == (5, 1, 1)
    assert document["nsqds"][0]["version"] == client.info()["version"]


@needs_programs
def test_stats_find_nsqds_through_nsqlookupd(nsqlookupd, topic):
    with running("nsqd", f"--lookupd-tcp-address={nsqlookupd.tcp_address}") as nsqd:
        client = NsqdHTTPClient.from_url(nsqd.http_address)
        client.create_topic(topic)
        with gevent.Timeout(LIMIT):
            while not gnsq_json("stats", topic, "--lookupd", nsqlookupd.http_address)[1]["topics"]:
                gevent.sleep(0.01)

        status, document = gnsq_json("ping", "--lookupd", nsqlookupd.http_address)

    assert status == 0
    assert [each["address"] for each in document["checks"] if each["step"] == "receive"] == [nsqd.tcp_address]


def test_ping_passes_and_leaves_no_topic(nsqd):
    status, document = gnsq_json("ping", *options_of(nsqd))

    topics = [each["topic_name"] for each in NsqdHTTPClient.from_url(nsqd.http_address).stats()["topics"]]
    assert status == 0
    assert document["checks"][-1]["step"] == "delete topic"
    assert [name for name in topics if name.startswith("gnsq-ping-")] == []


@needs_programs
def test_ping_with_tls_needs_the_ca(fakensqd_certificates):
    certificate, key = fakensqd_certificates.server()
    with running("nsqd", f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required=tcp-https") as nsqd:
        without, plain = gnsq_json("ping", *options_of(nsqd))
        unknown, refused = gnsq_json("ping", "--tls", *options_of(nsqd))
        right, passed = gnsq_json("ping", "--tls-ca", fakensqd_certificates.ca, *options_of(nsqd))

    failed = [
        (each["step"], each["text"].partition(" (")[0])
        for document in (plain, refused, passed)
        for each in document["checks"]
        if each["status"] == "failed"
    ]
    assert (without, unknown, right) == (1, 1, 0)
    assert failed == [
        ("subscribe", "nsqd requires TLS"),
        ("publish", "nsqd requires TLS"),
        ("TLS", "nsqd's certificate is signed by a CA that this machine does not know"),
    ]
