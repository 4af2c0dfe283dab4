"""The examples for the client and for fakensqd run, and fakensqd's tables agree with the code."""

import ast
import inspect
import json
import re

import pytest

from fakensqd import FakeCluster, FakeNsqd
from fakensqd.faults import actions, toxics
from gnsq import NsqdHTTPClient
from tests.docs.pages import example, run, table
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


@pytest.mark.parametrize("server", [FakeNsqd, FakeCluster])
def test_methods_of_the_table_for_tests_take_its_arguments(server):
    rows = table("reference/api/fakensqd.md", "Fixtures", "method")
    calls = [ast.parse(code, mode="eval").body for row in rows for code in re.findall(r"`(\w+\(.*?\))`", row[0])]

    for call in calls:
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        inspect.signature(getattr(server, call.func.id)).bind(server, *call.args, **arguments)
    assert {call.func.id for call in calls} == {"publish", "messages", "assert_published", "depth", "in_flight"}


def test_faults_example_passes(fakensqd):
    names = run(example("fakensqd/faults.md", "Rules"), fakensqd)

    names["test_a_rule_can_be_asked_whether_it_acted"](fakensqd)


@pytest.mark.parametrize(
    ("heading", "column", "functions"),
    [
        ("Actions", "action", actions.__all__),
        ("Toxics", "toxic", [name for name in toxics.__all__ if name.islower()]),
    ],
)
def test_tables_of_faults_have_every_function(heading, column, functions):
    cells = [row[0] for row in table("fakensqd/faults.md", heading, column)]

    assert {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)} == set(functions)


def test_readme_example_passes(fakensqd):
    names = run(example("README.md", "Test"), fakensqd)

    names["test_order_is_published_again_if_the_reply_is_lost"](fakensqd)
