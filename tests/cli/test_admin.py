"""gnsq topic and gnsq channel: what changes on which servers, what is said before and after, and what destroys asks."""

import os
import pty
import re
import signal

import pytest

from fakensqd import on
from fakensqd.faults import answer as answer_with
from gnsq import LookupdClient, NsqdHTTPClient
from tests.kit import refused_port, wait_until
from tests.kit.commands import invoke, servers_of, started


@pytest.fixture
def cluster(fakecluster):
    """Two nsqds; one has the topic orders with the channel archive, with 3 messages in it; both have clicks."""
    first = NsqdHTTPClient.from_url(fakecluster.nsqds[0].http_address)
    first.create_topic("orders")
    first.create_channel("orders", "archive")
    fakecluster.nsqds[0].publish("orders", b"1", b"2", b"3")
    for nsqd in fakecluster.nsqds:
        NsqdHTTPClient.from_url(nsqd.http_address).create_topic("clicks")
    wait_until(lambda: set(registry(fakecluster).topics()["topics"]) == {"clicks", "orders"})
    return fakecluster


def registry(cluster):
    return LookupdClient.from_url(cluster.lookupds[0].http_address)


def lookupd(cluster):
    return "--lookupd", cluster.lookupds[0].http_address


def topics(nsqd):
    return sorted(nsqd.broker.topics)


def channels(nsqd, topic):
    return sorted(nsqd.broker.topics[topic].channels)


def short(nsqd):
    return nsqd.http_address.removeprefix("http://")


# --- create


def test_topic_is_created_on_all_nsqds_that_nsqlookupd_names(cluster):
    result = invoke("topic", "create", "new", *lookupd(cluster))

    assert (result.exit_code, result.stdout) == (0, "")
    assert [topics(nsqd) for nsqd in cluster.nsqds] == [["clicks", "new", "orders"], ["clicks", "new"]]
    assert re.fullmatch(r"topic new created at 127.0.0.1:\d+, 127.0.0.1:\d+\n", result.stderr)


def test_channel_is_created_on_the_nsqds_that_have_the_topic_and_at_nsqlookupd(cluster):
    result = invoke("channel", "create", "clicks", "billing", *lookupd(cluster))
    invoke("channel", "create", "orders", "billing", *lookupd(cluster))

    assert result.exit_code == 0
    assert [channels(nsqd, "clicks") for nsqd in cluster.nsqds] == [["billing"], ["billing"]]
    assert [topics(nsqd) for nsqd in cluster.nsqds] == [["clicks", "orders"], ["clicks"]]
    assert registry(cluster).channels("clicks")["channels"] == ["billing"]


# --- delete and empty


def test_deleted_topic_is_said_with_its_depth_and_removed_everywhere(cluster):
    result = invoke("topic", "delete", "orders", "--yes", *lookupd(cluster))

    assert result.exit_code == 0
    first, *_ = map(short, cluster.nsqds)
    address = cluster.lookupds[0].http_address.removeprefix("http://")
    assert result.stderr.splitlines() == [
        "topic orders on 1 nsqd: depth 0; channel archive: depth 3",
        f"topic orders deleted at {first}",
        f"topic orders removed from nsqlookupd {address}",
    ]
    assert [topics(nsqd) for nsqd in cluster.nsqds] == [["clicks"], ["clicks"]]
    assert registry(cluster).topics()["topics"] == ["clicks"]
    # First at nsqlookupd: if a producer creates the topic again at once, its new registration stays.
    servers = (cluster.lookupds[0], cluster.nsqds[0])
    (at_lookupd,), (at_nsqd,) = (server.transcript.select("http", name="POST /topic/delete") for server in servers)
    assert at_lookupd.time < at_nsqd.time


def test_topic_that_only_nsqlookupd_knows_is_listed_and_deleted(cluster):
    registry(cluster).create_topic("old")
    listed = invoke("topic", "list", *lookupd(cluster))

    deleted = invoke("topic", "delete", "old", "--yes", *lookupd(cluster))
    again = invoke("topic", "delete", "old", "--yes", *lookupd(cluster))

    assert (listed.exit_code, listed.stdout) == (0, "clicks\nold\norders\n")
    assert deleted.exit_code == 0
    assert "topic old: on no nsqd, only registered at nsqlookupd" in deleted.stderr
    assert "old" not in registry(cluster).topics()["topics"]
    assert (again.exit_code, again.stderr) == (1, "Error: no nsqd has a topic old\n")


def test_deleted_channel_is_removed_everywhere_and_the_topic_stays(cluster):
    assert invoke("channel", "list", "orders", *lookupd(cluster)).stdout == "archive\n"

    result = invoke("channel", "delete", "orders", "archive", "--yes", *lookupd(cluster))

    assert result.exit_code == 0
    assert "channel archive of topic orders on 1 nsqd: depth 3\n" in result.stderr
    assert channels(cluster.nsqds[0], "orders") == []
    assert invoke("channel", "list", "orders", *lookupd(cluster)).stdout == ""


def test_tombstone_hides_a_topic_of_one_nsqd_at_nsqlookupd(cluster):
    node, other = map(short, cluster.nsqds)

    done = invoke("topic", "tombstone", "orders", node, *lookupd(cluster))
    again = invoke("topic", "tombstone", "orders", node, *lookupd(cluster))
    unknown = invoke("topic", "tombstone", "orders", other, *lookupd(cluster))

    address = cluster.lookupds[0].http_address.removeprefix("http://")
    assert (done.exit_code, done.stderr) == (0, f"topic orders of {node} hidden at {address}\n")
    assert (again.exit_code, again.stderr) == (0, done.stderr)
    assert registry(cluster).lookup("orders")["producers"] == []
    assert topics(cluster.nsqds[0]) == ["clicks", "orders"]
    assert unknown.exit_code == 1
    assert f"no nsqlookupd knows an nsqd {other} with topic orders: those with it are {node}" in unknown.stderr


def test_emptied_channel_says_also_what_was_in_flight(fakensqd, consume):
    fakensqd.publish("t", b"1", b"2", b"3")
    NsqdHTTPClient.from_url(fakensqd.http_address).create_channel("t", "c")
    consume(lambda consumer, message: message.enable_async(), max_in_flight=1, close_timeout=0.1)
    wait_until(lambda: fakensqd.transcript.delivered("t"))

    result = invoke("channel", "empty", "t", "c", "--yes", *servers_of(fakensqd))

    assert result.exit_code == 0
    assert "channel c of topic t on 1 nsqd: depth 2, 1 in flight\n" in result.stderr
    assert f"channel c of topic t emptied at {short(fakensqd)}\n" in result.stderr
    assert fakensqd.depth("t", "c") == 0


def test_emptied_topic_leaves_the_messages_of_its_channels(cluster):
    cluster.nsqds[0].publish("clicks", b"1")

    result = invoke("topic", "empty", "clicks", "--yes", *lookupd(cluster))
    invoke("topic", "empty", "orders", "--yes", *lookupd(cluster))

    assert "topic clicks on 2 nsqds: depth 1\n" in result.stderr
    assert cluster.nsqds[0].depth("clicks") == 0
    assert cluster.nsqds[0].depth("orders", "archive") == 3


# --- pause


@pytest.mark.parametrize("words", [["topic", "{}", "orders"], ["channel", "{}", "orders", "archive"]], ids=" ".join)
def test_pause_and_unpause(cluster, words):
    topic = cluster.nsqds[0].broker.topics["orders"]
    paused = topic if words[0] == "topic" else topic.channels["archive"]
    first = invoke(*(word.format("pause") for word in words), *lookupd(cluster))
    was_paused = paused.paused

    second = invoke(*(word.format("unpause") for word in words), *lookupd(cluster))

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert (was_paused, paused.paused) == (True, False)
    assert f" paused at {short(cluster.nsqds[0])}\n" in first.stderr


# --- failures


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_server_that_fails_is_named_and_the_command_can_be_repeated(cluster, kind):
    failing = cluster.nsqds[1] if kind == "nsqd" else cluster.lookupds[0]
    words = "topic", "delete", "clicks", "--yes", *lookupd(cluster)
    with failing.add(on.http("/topic/delete"), answer_with(500, b'{"message": "INTERNAL_ERROR"}')):
        result = invoke(*words)

    assert result.exit_code == 1
    assert re.search(f"topic clicks deleted at .*{short(cluster.nsqds[0])}", result.stderr)  # in any order
    assert f"Error: not deleted at {kind} {short(failing)}: http error <500> INTERNAL_ERROR\n" in result.stderr
    assert invoke(*words).exit_code == 0
    assert topics(cluster.nsqds[1]) == []
    assert registry(cluster).topics()["topics"] == ["orders"]


def test_nsqlookupd_keeps_a_topic_while_an_nsqd_does_not_answer(cluster):
    with cluster.nsqds[1].add(on.http("/stats"), answer_with(500, b"")):
        result = invoke("topic", "delete", "orders", "--yes", *lookupd(cluster))

    assert result.exit_code == 1
    assert f"Error: not deleted at nsqd {short(cluster.nsqds[1])}: " in result.stderr
    assert "orders" in registry(cluster).topics()["topics"]
    assert topics(cluster.nsqds[0]) == ["clicks"]


def test_nsqlookupd_that_does_not_answer_is_an_error_that_hides_its_secret(cluster):
    url = f"http://user:s3cret@127.0.0.1:{refused_port()}"

    result = invoke("topic", "pause", "orders", *lookupd(cluster), "--lookupd", url)

    assert result.exit_code == 1
    assert f"topic orders paused at {short(cluster.nsqds[0])}\n" in result.stderr
    assert "; nsqds that only it knows were left out\n" in result.stderr
    assert result.stderr.endswith("To do the rest, repeat the command.\n")
    assert "s3cret" not in result.stderr


FAILURES = [
    pytest.param(["topic", "pause", "nothing"], 1, "Error: no nsqd has a topic nothing\n", id="no topic"),
    pytest.param(["channel", "pause", "t", "c"], 1, "Error: no nsqd has a channel c of topic t\n", id="no channel"),
    pytest.param(["channel", "list", "nothing"], 1, "nothing; gnsq topic list shows all\n", id="channels of no topic"),
    pytest.param(["channel", "create", "new", "c"], 1, "first, with gnsq topic create new\n", id="new channel of none"),
    pytest.param(["topic", "pause", "a/b"], 2, "a/b", id="name"),
    pytest.param(
        ["topic", "tombstone", "t", "h:4151"], 2, "nsqlookupd keeps tombstones: give --lookupd", id="tombstone"
    ),
    pytest.param(["topic", "delete", "t"], 2, "this deletes messages: give --yes, or run it on a terminal", id="yes"),
]


@pytest.mark.parametrize(("words", "status", "text"), FAILURES)
def test_failure(fakensqd, words, status, text):
    fakensqd.publish("t", b"1")

    result = invoke(*words, *servers_of(fakensqd))

    assert (result.exit_code, result.stdout) == (status, "")
    assert text in result.stderr
    assert fakensqd.messages("t") == [b"1"]


# --- on a terminal


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("answer", "status", "left"),
    [
        pytest.param(lambda terminal, _: os.write(terminal, b"y\n"), 0, [], id="yes"),
        pytest.param(lambda _, process: process.send_signal(signal.SIGINT), 130, ["t"], id="signal"),
    ],
)
def test_terminal_is_asked(fakensqd, answer, status, left):
    fakensqd.publish("t", b"1")
    terminal, inner = pty.openpty()
    seen = b""
    with started(fakensqd, "topic", "delete", "t", stdin=inner, stdout=inner, stderr=inner) as process:
        while b"[y/N]" not in seen:
            seen += os.read(terminal, 4096)
        answer(terminal, process)

        assert process.wait() == status
    os.close(terminal)
    os.close(inner)
    assert b"topic t on 1 nsqd: depth 1\r\n" in seen
    assert topics(fakensqd) == left
