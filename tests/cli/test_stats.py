"""gnsq stats: sums, rates, order, what fits the terminal, and servers that do not answer."""

import dataclasses
import fcntl
import io
import math
import os
import pty
import select
import shlex
import signal
import struct
import sys
import termios

import gevent
import pytest
from rich.console import Console

from gnsq import NsqdHTTPClient
from gnsq.cli.snapshot import Node, NodeStats, Snapshot, parse_stats, set_rates
from gnsq.cli.table import History, StatsView
from tests.cli.programs import servers_of
from tests.helpers import LIMIT, child, peer, refused_port


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


def test_numbers_are_summed_over_the_nsqds_of_nsqlookupd(cluster, gnsq_json):
    status, document = gnsq_json("stats", "--lookupd", cluster.lookupds[0].http_address)

    archive = channel_of(document, "orders", "archive")
    assert status == 0
    assert (archive["depth"], archive["message_count"], archive["paused"]) == (5, 5, True)
    assert sorted((each["depth"], each["paused"]) for each in archive["nsqds"]) == [(2, True), (3, False)]
    assert document["totals"]["topics"] == {
        "count": 2,
        "depth": 0,
        "backend_depth": 0,
        "message_count": 5,
        "publish_rate": None,
    }
    assert document["totals"]["channels"]["depth"] == 5


def test_document_has_the_keys_of_the_help(cluster, gnsq, gnsq_json):
    _, document = gnsq_json("stats", "--lookupd", cluster.lookupds[0].http_address)

    help_text = gnsq("stats", "--help").stdout
    counts = {"depth", "backend_depth", "message_count", "paused"}
    topic = {*counts, "topic", "publish_rate", "channels", "nsqds"}
    channel = {*counts, "channel", "in_flight_count", "deferred_count", "requeue_count", "timeout_count"}
    channel |= {"client_count", "deliver_rate", "finish_rate", "nsqds"}
    node = {"http_address", "version", "health", "start_time", "error", "same_as"}
    assert set(document) == {"time", "seconds", "topics", "totals", "nsqds", "lookupds"}
    assert set(document["topics"][0]) == topic
    assert set(channel_of(document, "orders", "archive")) == channel
    assert set(document["nsqds"][0]) == node
    assert [key for key in (*topic, *channel, *node, *document) if key not in help_text] == []


def test_rates_come_from_two_polls_if_an_interval_is_given(cluster, gnsq_json):
    lookupd = cluster.lookupds[0].http_address
    _, once = gnsq_json("stats", "--lookupd", lookupd)
    _, twice = gnsq_json("stats", "--lookupd", lookupd, "--interval", 0.1)

    assert once["seconds"] is None
    assert channel_of(once, "orders", "archive")["finish_rate"] is None
    assert twice["seconds"] >= 0.1
    assert channel_of(twice, "orders", "archive")["finish_rate"] == 0


def test_unreachable_nsqd_is_shown_with_its_reason_beside_the_others(fakensqd, gnsq):
    fakensqd.publish("orders", b"1")
    port = refused_port()

    servers = ["--nsqd", fakensqd.tcp_address, "--nsqd-http", fakensqd.http_address, "--nsqd-http", f"127.0.0.1:{port}"]
    result = gnsq("stats", *servers)

    assert result.exit_code == 0
    assert "orders" in result.stdout
    assert f"nsqd 127.0.0.1:{port}: no response: can't connect: Connection refused" in result.stderr
    assert "version 1.3.0  health OK  up since" in result.stdout


def test_error_of_a_guessed_port_names_the_option(gnsq):
    port = refused_port()

    result = gnsq("stats", "--nsqd", f"127.0.0.1:{port}")

    assert result.exit_code == 1
    assert f"nsqd 127.0.0.1:{port + 1}: " in result.stderr
    assert "--nsqd-http" in result.stderr
    assert result.stdout == ""
    assert "no nsqd could be reached" in result.stderr


def test_nsqd_with_two_addresses_is_counted_once(fakensqd, gnsq_json):
    fakensqd.publish("orders", b"1")
    localhost = f"localhost:{fakensqd.http_port}"

    nsqd = ["--nsqd", fakensqd.tcp_address]
    _, document = gnsq_json("stats", *nsqd, "--nsqd-http", fakensqd.http_address, "--nsqd-http", localhost)

    first, second = document["nsqds"]
    assert document["topics"][0]["message_count"] == 1
    assert (first["same_as"], second["same_as"]) == (None, first["http_address"])


def test_arguments_limit_the_table(cluster, gnsq):
    lookupd = ["--lookupd", cluster.lookupds[0].http_address]

    result = gnsq("stats", "orders", "archive", *lookupd)
    unknown = gnsq("stats", "orders", "other", *lookupd)

    assert "clicks" not in result.stdout
    assert "1 topic, 1 channel, depth 5, in flight 0" in result.stdout
    assert "no nsqd has a topic orders with a channel other" in unknown.stderr


def test_rows_of_each_nsqd_are_shown_on_request(cluster, gnsq):
    result = gnsq("stats", "--by-nsqd", "--lookupd", cluster.lookupds[0].http_address)

    rows = [line.split() for line in result.stdout.splitlines()]
    assert all(["@", nsqd.http_address] in [row[:2] for row in rows] for nsqd in cluster.nsqds)
    assert "1 of 2 paused" in result.stdout


@pytest.mark.fakensqd(release="0.2.21")
def test_old_server_is_understood(fakensqd, gnsq_json):
    fakensqd.publish("orders", b"1")

    nsqd = ["--nsqd", fakensqd.tcp_address, "--nsqd-http", fakensqd.http_address]
    status, document = gnsq_json("stats", *nsqd)

    assert status == 0
    assert document["topics"][0]["message_count"] == 1
    assert document["nsqds"][0]["version"] == "0.2.21"


def test_signal_before_the_end_gives_its_status(gnsq):
    def interrupt(sock):
        os.kill(os.getpid(), signal.SIGINT)
        sock.recv(4096)
        gevent.sleep(60)

    with peer(interrupt) as address:
        result = gnsq("stats", "--nsqd", "127.0.0.1:4150", "--nsqd-http", address, "--once")

    assert result.exit_code == 130
    assert result.stdout == ""


@pytest.mark.subprocess
def test_table_is_live_on_a_terminal_until_a_signal(fakensqd):
    fakensqd.publish("orders", b"1")
    terminal, output = pty.openpty()
    nsqd = ["--nsqd", fakensqd.tcp_address, "--nsqd-http", fakensqd.http_address]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "20"}
    command = [sys.executable, "-m", "gnsq", "stats", *nsqd, "--interval", "0.1"]

    with child(*command, stdout=output, env=environment, limit=20) as process:
        os.close(output)
        seen = b""
        while "▂▂".encode() not in seen:  # two polls; at the end of the limit the terminal is closed
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        status = process.wait(10)

    os.close(terminal)
    assert status == 0
    assert b"orders" in seen


@pytest.fixture
def screen(fakensqd, request):
    """Start the live table on a terminal of 12 rows; press keys, and wait for what is seen."""
    for number in range(30):
        fakensqd.publish(f"t{number:02}", b"1")
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 150, 0, 0))
    command = [sys.executable, "-m", "gnsq", "stats", *servers_of(fakensqd), "--sort", "name", "--interval", "60"]
    # A session's leader gets the first terminal that it opens as its own.
    opening = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(inner)]
    if getattr(request, "param", "") == "shell":
        # With job control, and without one that changes the terminal itself.
        command = ["sh", "-i", "-c", f"set -m; {shlex.join(command)}; echo SHELL; read line; fg; :"]

    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}

    with child(*opening, *command, env={**environment, "TERM": "xterm"}, limit=20) as process:
        yield Screen(terminal, inner, process)
    os.close(terminal)
    os.close(inner)


class Screen:
    def __init__(self, terminal, inner, process):
        self.process = process
        self.before = termios.tcgetattr(inner)
        self._terminal = terminal
        self._inner = inner

    def wait_for(self, *texts):
        """Read until all texts have come."""
        seen = b""
        while not all(text in seen for text in texts):
            assert select.select([self._terminal], [], [], LIMIT)[0], seen
            seen += os.read(self._terminal, 4096)
        return seen

    def after_the_end(self):
        """Wait for the end of the program, and return what it has written after it left its screen."""
        assert self.process.wait(10) == 0
        seen = b""
        while select.select([self._terminal], [], [], 0)[0]:
            seen += os.read(self._terminal, 4096)
        return seen.rpartition(b"\x1b[?1049l")[2]

    def press(self, keys):
        os.write(self._terminal, keys)

    def mode(self):
        return termios.tcgetattr(self._inner)


@pytest.mark.subprocess
def test_keys_scroll_and_sort_and_q_leaves_the_table_on_the_screen(screen):
    screen.wait_for(b"t00", b"rows 1 to 6 of 30", b"q quit")
    screen.press(b"\x1b[B")
    screen.wait_for(b"rows 2 to 7 of 30: up and down scroll")
    screen.press(b"\x1b[6~")
    screen.wait_for(b"rows 8 to 13 of 30")
    screen.press(b"r")
    screen.wait_for(b"t22", b"rows 8 to 13 of 30")
    screen.press(b"G\x1b[Fq")
    last = screen.after_the_end()

    assert (b"t00" in last, b"rows 25 to 30 of 30" in last, b"q quit" in last) == (True, True, False)
    assert screen.mode() == screen.before


@pytest.mark.subprocess
def test_signal_leaves_the_table_on_the_screen_and_restores_the_terminal(screen):
    screen.wait_for(b"t00", b"q quit")
    was_changed = screen.mode() != screen.before

    screen.press(b"\x03")
    last = screen.after_the_end()

    assert was_changed
    assert b"rows 1 to 6 of 30" in last
    assert screen.mode() == screen.before


@pytest.mark.subprocess
@pytest.mark.parametrize("screen", ["shell"], indirect=True)
def test_stopped_by_ctrl_z_the_shell_gets_the_terminal_and_fg_gives_it_back(screen):
    screen.wait_for(b"q quit")

    screen.press(b"\x1a")
    screen.wait_for(b"\x1b[?1049l", b"SHELL\r\n")
    assert screen.mode() == screen.before

    screen.press(b"\n")
    screen.wait_for(b"\x1b[?1049h", b"q quit")
    assert screen.mode() != screen.before

    screen.press(b"q")
    assert b"rows 1 to 6 of 30" in screen.after_the_end()
    assert screen.mode() == screen.before


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
    pytest.param({"message_count": 10, "depth": 10}, {"message_count": 10}, (0, 5, 5), id="finished"),
    pytest.param(
        {"message_count": 10, "depth": 10}, {"message_count": 10, "in_flight_count": 10}, (0, 5, 0), id="in flight"
    ),
    pytest.param(
        {"message_count": 4, "in_flight_count": 4},
        {"message_count": 4, "depth": 4, "requeue_count": 3, "timeout_count": 1},
        (0, 0, 0),
        id="came back",
    ),
    pytest.param(
        {"message_count": 4, "depth": 4},
        {"message_count": 4, "deferred_count": 4, "requeue_count": 4},
        (0, 2, 0),
        id="delivered and requeued with a delay",
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


# --- the table


def snapshot(*names, depth=0, errors=()):
    """Make a snapshot of topics with one channel c each; their depths rise from depth on."""
    numbers = list(enumerate(names, depth))
    topics = [
        {"topic_name": name, "channels": [{"channel_name": "c", "depth": 10 * number, "clients": []}], "depth": number}
        for number, name in numbers
    ]
    nodes = [Node("http://127.0.0.1:4151/", parse_stats({"version": "1.3.0", "health": "OK", "topics": topics}))]
    nodes += [Node(f"http://10.0.0.{index}:4151/", error=error) for index, error in enumerate(errors)]
    return Snapshot(tuple(nodes), {}, 0.0, None)


def shown(view, width=200, height=None):
    console = Console(width=width, height=height, record=True, force_terminal=True, file=io.StringIO())
    console.print(view)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("sort", "reverse", "expected"),
    [
        pytest.param("name", False, ["a", "b", "z"], id="name"),
        pytest.param("name", True, ["z", "b", "a"], id="name reversed"),
        pytest.param("depth", False, ["a", "z", "b"], id="depth"),
        pytest.param("depth", True, ["b", "z", "a"], id="depth reversed"),
        pytest.param("clients", False, ["a", "b", "z"], id="equal numbers by name"),
    ],
)
def test_topics_are_in_order(sort, reverse, expected):
    lines = shown(StatsView(snapshot("b", "z", "a"), sort=sort, reverse=reverse))

    assert [line.split()[0] for line in lines if line[:1] in ("a", "b", "z")] == expected


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        pytest.param(
            140, "depth in flight deferred requeued timed out published/s delivered/s finished/s clients", id="wide"
        ),
        pytest.param(80, "depth in flight published/s finished/s clients", id="80 columns"),
        pytest.param(45, "depth finished/s", id="45 columns"),
        pytest.param(20, "depth", id="20 columns"),
    ],
)
def test_narrow_terminal_has_fewer_columns_and_says_which_are_left_out(width, titles):
    lines = shown(StatsView(snapshot("a-topic-with-a-long-name"), is_live=True), width, height=40)

    [index] = [index for index, line in enumerate(lines) if line.startswith("topic, c")]
    assert all(len(line) <= width for line in lines)
    assert lines[index].split("  ", 1)[1].split() == titles.split()
    assert lines[index + 2].split()[1] == "0"
    text = " ".join(map(str.strip, lines))
    all_titles = (
        "in flight",
        "deferred",
        "requeued",
        "timed out",
        "published/s",
        "delivered/s",
        "finished/s",
        "clients",
    )
    left_out = text.partition(f"no room in {width} columns for: ")[2]
    assert [title for title in all_titles if title not in titles] == [
        title for title in all_titles if title in left_out
    ]


def test_table_without_rates_has_no_columns_for_them():
    assert "/s" not in "".join(shown(StatsView(snapshot("t")), 140))


def test_low_screen_counts_the_rows_that_it_hides():
    view = StatsView(snapshot(*(f"t{number}" for number in range(20))), is_live=True)

    lines = shown(view, height=12)

    rows = [line for line in lines if line.startswith(("t1", "  c", "t2", "t3"))]
    assert len(lines) <= 12
    assert f"rows 1 to {len(rows)} of 40: the screen is too low" in [line.strip() for line in lines]


def test_scrolled_screen_shows_other_rows_and_is_always_filled():
    view = StatsView(snapshot(*(f"t{number:02}" for number in range(20))), "name", is_live=True)
    first = shown(view, height=12)

    view.first = 10
    second = shown(view, height=12)
    view.first = 1000
    last = shown(view, height=12)

    assert (first[2][:3], second[2][:3]) == ("t00", "t05")
    assert f"rows {41 - view.page} to 40 of 40: the screen is too low" in [line.strip() for line in last]
    assert len(first) == len(second) == len(last)


def test_keys_are_shown_below_the_servers():
    view = StatsView(snapshot("orders"), "rate", is_live=True, has_keys=True)

    assert shown(view, height=20)[-1].startswith("q quit, r reverse, sort by: n name, d depth, ")
    assert len(shown(dataclasses.replace(view, snapshot=snapshot(*map(str, range(50)))), height=20)) == 20


def test_reasons_of_many_servers_leave_room_for_rows():
    view = StatsView(snapshot("orders", errors=["timed out"] * 30), is_live=True)

    lines = [line.strip() for line in shown(view, height=20)]

    assert len(lines) <= 20
    assert lines[2].startswith("orders")
    assert any(line.endswith("more servers: the screen is too low") for line in lines)


def test_sparkline_shows_the_last_depths():
    history = History()
    for depth in (0, 4, 8):
        history.add(snapshot("orders", depth=depth))

    assert history.sparkline(("orders", "")) == "▁▄█"
    assert history.sparkline(("gone", "")) == ""
    assert any("▁▄█" in line for line in shown(StatsView(snapshot("orders"), history=history)))


@pytest.mark.parametrize(("depth", "bars"), [(-(2**63), "▁▁"), (0, "▁▁"), (1, "▂▂"), (7, "██"), (2**63 - 1, "██")])
def test_bar_stands_for_one_message_or_more(depth, bars):
    history = History()
    counts = parse_stats({"topics": [{"topic_name": "t", "depth": depth}]})
    for _ in range(2):
        history.add(Snapshot((Node("http://127.0.0.1:4151/", counts),), {}, 0.0, None))

    assert history.sparkline(("t", "")) == bars


def test_ascii_terminal_gets_only_ascii():
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(width=40, force_terminal=True, color_system=None, file=output)
    history = History()
    history.add(snapshot("a-topic-with-a-long-name"))
    history.add(snapshot("a-topic-with-a-long-name"))

    console.print(StatsView(snapshot("a-topic-with-a-long-name"), history=history))

    output.flush()
    assert output.buffer.getvalue().decode("ascii").splitlines()[3].split() == ["a-topic-with-a-long-", "0"]


def test_escape_sequences_of_a_server_are_not_shown():
    stats = NodeStats("1\x1b[2J", "OK", None, {})
    view = StatsView(Snapshot((Node("http://127.0.0.1:4151/", stats),), {}, 0.0, None))

    assert any("version 1 [2J" in line for line in shown(view))
