"""gnsq stats: sums, rates, order, what fits the terminal, and servers that do not answer."""

import dataclasses
import fcntl
import io
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import termios

import gevent
import pytest
from rich.console import Console

from gnsq import Consumer, NsqdHTTPClient
from gnsq.census import Node, parse_stats
from gnsq.cli.sums import Snapshot, set_rates
from gnsq.cli.table import StatsView
from tests.kit import LIMIT, child, peer, refused_port
from tests.kit.commands import invoke, invoke_json, servers_of, signalled_when


def channel_of(document, topic, channel):
    (topic_found,) = [each for each in document["topics"] if each["topic"] == topic]
    (found,) = [each for each in topic_found["channels"] if each["channel"] == channel]
    return found


# --- the command


@pytest.fixture
def cluster(fakecluster):
    """Two nsqds with the channel orders/archive: 3 messages on one nsqd, 2 on the other, where it is paused."""
    for nsqd, bodies in zip(fakecluster.nsqds, ([b"1", b"2", b"3"], [b"4", b"5"]), strict=True):
        client = NsqdHTTPClient.from_url(nsqd.http_address)
        client.create_topic("orders")
        client.create_channel("orders", "archive")
        nsqd.publish("orders", *bodies)
    client.pause_channel("orders", "archive")
    client.create_topic("clicks")
    return fakecluster


def test_numbers_are_summed_over_the_nsqds_of_nsqlookupd(cluster):
    status, document = invoke_json("stats", "--lookupd", cluster.lookupds[0].http_address)

    archive = channel_of(document, "orders", "archive")
    assert status == 0
    assert (archive["depth"], archive["message_count"], archive["paused"]) == (5, 5, True)
    assert sorted((each["depth"], each["paused"]) for each in archive["nsqds"]) == [(2, True), (3, False)]
    zeros = {"depth": 0, "backend_depth": 0}
    assert document["totals"]["topics"] == {"count": 2, **zeros, "message_count": 5, "publish_rate": None}
    assert document["totals"]["channels"]["depth"] == 5


def test_document_has_the_keys_of_the_help(cluster):
    _, document = invoke_json("stats", "--lookupd", cluster.lookupds[0].http_address)

    help_text = invoke("stats", "--help").stdout
    counts = {"depth", "backend_depth", "message_count", "paused"}
    topic = {*counts, "topic", "publish_rate", "channels", "nsqds"}
    channel = {*counts, "channel", "in_flight_count", "deferred_count", "requeue_count", "timeout_count"}
    channel |= {"client_count", "deliver_rate", "finish_rate", "nsqds"}
    node = {"http_address", "version", "health", "start_time", "error", "same_as"}
    assert set(document) == {"time", "seconds", "topics", "totals", "clients", "nsqds", "lookupds"}
    assert set(document["topics"][0]) == topic
    assert set(channel_of(document, "orders", "archive")) == channel
    assert set(document["nsqds"][0]) == node
    assert [key for key in (*topic, *channel, *node, *document) if key not in help_text] == []


def test_rates_of_json_come_from_two_polls_if_a_time_is_given(cluster):
    lookupd = cluster.lookupds[0].http_address
    _, once = invoke_json("stats", "--lookupd", lookupd)
    _, twice = invoke_json("stats", "--lookupd", lookupd, "--watch", 0.1)

    assert once["seconds"] is None
    assert channel_of(once, "orders", "archive")["finish_rate"] is None
    assert twice["seconds"] >= 0.1
    assert channel_of(twice, "orders", "archive")["finish_rate"] == 0


def test_unreachable_nsqd_is_shown_with_its_reason_beside_the_others(fakensqd):
    fakensqd.publish("orders", b"1")
    port = refused_port()

    result = invoke("stats", *servers_of(fakensqd), "--nsqd-http", f"127.0.0.1:{port}")

    assert result.exit_code == 1
    assert "orders" in result.stdout
    assert f"nsqd 127.0.0.1:{port}: no response: can't connect: Connection refused" in result.stderr
    assert result.stderr.endswith("Error: the sums are without 1 nsqd that has not answered\n")
    assert "version 1.3.0  health OK  up since" in result.stdout


def test_error_of_a_guessed_port_names_the_option():
    port = refused_port()

    result = invoke("stats", "--nsqd", f"127.0.0.1:{port}")

    assert result.exit_code == 1
    assert f"nsqd 127.0.0.1:{port + 1}: " in result.stderr
    assert "--nsqd-http" in result.stderr
    assert result.stdout == ""
    assert "no nsqd could be reached" in result.stderr


@pytest.mark.parametrize(
    ("words", "down", "text"),
    [
        (["none", "--json"], [], "no nsqd has a topic none"),
        (
            ["orders", "other"],
            ["--nsqd-http", f"127.0.0.1:{refused_port()}"],
            "no nsqd that has answered has a topic orders with a channel other",
        ),
    ],
    ids=["topic", "channel, and one down"],
)
def test_topic_that_is_not_there_is_an_error(fakensqd, words, down, text):
    fakensqd.publish("orders", b"1")

    result = invoke("stats", *words, *servers_of(fakensqd), *down)

    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: {text}; gnsq topic list shows all topics\n")


def test_clients_of_a_channel_are_shown_with_host_and_version(cluster):
    nsqd = cluster.nsqds[0]
    servers = ("--lookupd", cluster.lookupds[0].http_address)
    with Consumer(
        "orders",
        "archive",
        nsqd.tcp_address,
        message_handler=lambda consumer, message: None,
        hostname="web-3",
        client_id="mailer",
        max_in_flight=7,
    ):
        nsqd.wait_until(lambda nsqd: nsqd.transcript.commands("RDY"))
        shown = invoke("stats", "orders", "archive", *servers).stdout
        _, document = invoke_json("stats", "orders", "archive", *servers)
        _, others = invoke_json("stats", "orders", *servers)

    (client,) = document["clients"]
    assert "1 topic, 1 channel, depth " in shown
    assert re.search(r"client mailer on web-3  gnsq/\S+  from 127.0.0.1:\d+ at nsqd 127.0.0.1:\d+  RDY 7  ", shown)
    assert (client["hostname"], client["http_address"]) == ("web-3", f"http://{nsqd.http_address}/")
    assert others["clients"] == []


def test_rows_of_each_nsqd_are_shown_on_request(cluster):
    result = invoke("stats", "--by-nsqd", "--lookupd", cluster.lookupds[0].http_address)

    rows = [line.split() for line in result.stdout.splitlines()]
    assert all(["@", nsqd.http_address] in [row[:2] for row in rows] for nsqd in cluster.nsqds)
    assert "1 of 2 paused" in result.stdout


def test_signal_before_the_end_gives_its_status():
    def interrupt(sock):
        os.kill(os.getpid(), signal.SIGINT)
        sock.recv(4096)
        gevent.sleep(60)

    with peer(interrupt) as address:
        result = invoke("stats", "--nsqd", "127.0.0.1:4150", "--nsqd-http", address)

    assert result.exit_code == 130
    assert result.stdout == ""


def test_watched_table_is_printed_again_with_rates_until_a_signal(fakensqd):
    fakensqd.publish("orders", b"1")
    port = refused_port()

    with signalled_when(lambda: len(fakensqd.transcript.select("http", name="GET /stats")) > 2, signal.SIGINT):
        result = invoke("stats", *servers_of(fakensqd), "--nsqd-http", f"127.0.0.1:{port}", "--watch", "0.1")

    first, second, *_ = result.stdout.split("1 topic, ")[1:]
    assert result.exit_code == 0
    assert ("published/s" in first, "published/s" in second) == (False, True)
    assert f"nsqd 127.0.0.1:{port}: no response: can't connect: Connection refused" in second


@pytest.mark.subprocess
def test_ctrl_z_gives_the_shell_the_terminal_and_after_the_end_the_whole_table_stays(fakensqd):
    for number in range(30):
        fakensqd.publish(f"t{number:02}", b"1")
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 150, 0, 0))  # rows and columns
    table = [sys.executable, "-m", "gnsq", "stats", *servers_of(fakensqd), "--sort", "name", "--watch", "0.1"]
    # A session's leader gets the first terminal that it opens as its own.
    opening = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(inner)]
    # With job control, and without a shell that changes the terminal itself.
    command = ["sh", "-i", "-c", f"set -m; {shlex.join(table)}; echo SHELL; read line; fg; echo STATUS $?"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}

    def wait_for(*texts):
        seen = b""
        while not all(text in seen for text in texts):
            assert select.select([terminal], [], [], LIMIT)[0], seen
            seen += os.read(terminal, 4096)
        return seen

    with child(*opening, *command, env={**environment, "TERM": "xterm"}):
        first = wait_for(b"published/s", b"...")
        os.write(terminal, b"\x1a")
        wait_for(b"t29", b"\x1b[?25h", b"SHELL\r\n")  # the cursor is shown again
        os.write(terminal, b"\n")
        wait_for(b"\x1b[?25l", b"...")
        os.write(terminal, b"\x03")
        wait_for(b"t29", b"\x1b[?25h", b"STATUS 0\r\n")
    os.close(terminal)
    os.close(inner)

    assert b"t00" in first
    assert b"t29" not in first


# --- rates


def stats_of(*, start_time=1, **counts):
    channel = {"channel_name": "c", "depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": 0}
    topic = {"topic_name": "t", "depth": 0, "message_count": counts.pop("topic_count", 0)}
    return parse_stats({"start_time": start_time, "topics": [{**topic, "channels": [{**channel, **counts}]}]})


def rates(before, now, seconds=2.0):
    found = set_rates(now, before, seconds)
    topic, channel = found.counts["t", ""], found.counts["t", "c"]
    return topic["publish_rate"], channel["deliver_rate"], channel["finish_rate"]


RATES = [
    pytest.param({}, {"topic_count": 10, "message_count": 10, "depth": 10}, (5, 0, 0), id="published only"),
    pytest.param(
        {"message_count": 10, "depth": 10}, {"message_count": 10, "in_flight_count": 10}, (0, 5, 0), id="in flight"
    ),
    pytest.param(
        {"message_count": 4, "in_flight_count": 4},
        {"message_count": 4, "depth": 4, "requeue_count": 3, "timeout_count": 1},
        (0, 0, 0),
        id="came back",
    ),
    pytest.param({"depth": 10}, {"message_count": 2, "depth": 2}, (0, 5, 5), id="messages of an earlier start"),
    pytest.param(
        {"topic_count": 9, "message_count": 9},
        {"topic_count": 2, "message_count": 2},
        (None, None, None),
        id="made again",
    ),
    pytest.param(
        {"message_count": 1},
        {"start_time": 2, "topic_count": 9, "message_count": 9},
        (None, None, None),
        id="restarted",
    ),
    pytest.param({}, {"message_count": 1, "depth": 2}, (0, 0, 0), id="numbers that were read at two times"),
]


@pytest.mark.parametrize(("before", "now", "expected"), RATES)
def test_rates_are_never_negative_and_unknown_after_a_restart(before, now, expected):
    assert rates(stats_of(**before), stats_of(**now)) == expected


# --- the table


def snapshot(*names):
    """Make a snapshot of topics with one channel c each; their depths rise from 0 on."""
    topics = [
        {"topic_name": name, "channels": [{"channel_name": "c", "depth": 10 * number, "clients": []}], "depth": number}
        for number, name in enumerate(names)
    ]
    node = Node("http://127.0.0.1:4151/", parse_stats({"version": "1.3.0", "health": "OK", "topics": topics}))
    return Snapshot((node,), {}, 0.0, None)


def shown(view, width=200):
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    console.print(view)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("sort", "reverse", "expected"),
    [
        pytest.param("name", True, ["z", "b", "a"], id="name reversed"),
        pytest.param("depth", False, ["a", "z", "b"], id="depth"),
        pytest.param("clients", False, ["a", "b", "z"], id="equal numbers by name"),
    ],
)
def test_topics_are_in_order(sort, reverse, expected):
    lines = shown(StatsView(snapshot("b", "z", "a"), sort=sort, reverse=reverse))

    assert [line.split()[0] for line in lines if line[:1] in ("a", "b", "z")] == expected


TITLES = [
    "depth",
    "in flight",
    "deferred",
    "requeued",
    "timed out",
    "published/s",
    "delivered/s",
    "finished/s",
    "clients",
]


@pytest.mark.parametrize(
    ("width", "titles"),
    [(140, " ".join(TITLES)), (80, "depth in flight published/s finished/s clients"), (20, "depth")],
)
def test_narrow_terminal_has_fewer_columns_and_says_which_are_left_out(width, titles):
    with_rates = dataclasses.replace(snapshot("a-topic-with-a-long-name"), seconds=1.0)
    lines = shown(StatsView(with_rates), width)

    [index] = [index for index, line in enumerate(lines) if line.startswith("topic, c")]
    assert all(len(line) <= width for line in lines)
    assert lines[index].split("  ", 1)[1].split() == titles.split()
    assert lines[index + 2].split()[1] == "0"
    text = " ".join(map(str.strip, lines))
    left_out = text.partition(f"no room in {width} columns for: ")[2]
    assert all((title in titles) != (title in left_out) for title in TITLES)


def test_ascii_terminal_gets_only_ascii():
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(width=40, force_terminal=True, color_system=None, file=output)

    console.print(StatsView(snapshot("a-topic-with-a-long-name")))

    output.flush()
    assert output.buffer.getvalue().decode("ascii").splitlines()[3].split() == ["a-topic-with-a-long-", "0"]
