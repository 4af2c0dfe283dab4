"""The examples for the client run, in README.md and in the pages."""

import json

import pytest

from gnsq import NsqdHTTPClient
from tests.docs.pages import example, run
from tests.kit import channel_stats, wait_until


def test_publish_example_publishes_and_shows_the_refusal(fakensqd, capsys):
    run(example("README.md", "Publish"), fakensqd)

    assert (
        ": E_BAD_MESSAGE PUB message too big 2000000 > 1048576 (the limit is nsqd's --max-msg-size)"
        in capsys.readouterr().out
    )
    stats = NsqdHTTPClient.from_url(fakensqd.http_address).stats("clicks")
    assert stats["topics"][0]["message_count"] == 3


def test_tuned_producer_example_publishes(fakensqd):
    code = example("reference/api/producer.md", "Several nsqds, batches and limits")

    producer = run(code.replace("10.0.0.1:4150", fakensqd.tcp_address), fakensqd)["producer"]

    assert producer.publish("clicks", b"1") == b"OK"
    assert producer.close() == []


def test_consume_example_consumes_until_it_closes(fakensqd, capsys):
    run(example("README.md", "Publish"), fakensqd)
    capsys.readouterr()

    run(example("README.md", "Consume"), fakensqd)

    assert "1 b'/a'" in capsys.readouterr().out
    assert channel_stats(fakensqd, "clicks", "log")["in_flight_count"] == 0


@pytest.mark.slow
def test_batch_example_inserts_and_logs_what_it_gives_up(fakensqd, capsys):
    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    client.multipublish("clicks", [b'{"page": "/"}', b"no JSON"])

    consumer = run(example("reference/api/contrib.md", "Ready handlers"), fakensqd)["consumer"]
    wait_until(lambda: consumer.stats().counts.finished == 2)
    consumer.close()
    consumer.join(10)

    lines = capsys.readouterr().out.splitlines()
    assert "insert [{'page': '/'}]" in lines
    assert [json.loads(line)["body"] for line in lines if line.startswith("{")] == ["no JSON"]
    assert channel_stats(fakensqd, "clicks", "table")["depth"] == 0


def test_signals_example_connects_receivers(fakensqd, capsys):
    names = run(example("reference/api/signals.md", "Signals"), fakensqd)

    with names["consumer"] as consumer:
        consumer.on_backoff.send(consumer, phase="start", failures=1, duration=1.0)
        consumer.on_exception.send(consumer, message=None, error=ValueError("no"))

    assert capsys.readouterr().out == "start 1 1.0\nfailed: no\n"
