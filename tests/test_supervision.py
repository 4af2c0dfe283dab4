"""Greenlets: an unexpected exception in any of them is told, and its owner goes on or ends with it."""

import gc
import os
import re
import signal
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

import fakensqd as fakensqd_package
import gnsq as gnsq_package
from fakensqd import FakeLookupd, FakeNsqd
from fakensqd.faults import delay, on
from fakensqd.faults.relay import Relay
from fakensqd.faults.toxics import latency
from gnsq import Consumer, NsqdTCPClient, Producer
from gnsq.contrib.batch import BatchHandler
from tests.kit import silent_nsqd, wait_until
from tests.kit.commands import background, gnsq

pytestmark = pytest.mark.slow

SOURCES = [
    path
    for package in (gnsq_package, fakensqd_package)
    for path in sorted(Path(package.__file__).parent.rglob("*.py"))
    if path.name != "greenlets.py"
]
NAME = re.compile(r'\bspawn\(\s*f?"([a-z-]*[a-z])')
LOOP = re.compile(r'run_loop\("([a-z]+)"')
CONNECTED = ("gnsq-read", "gnsq-write", "gnsq-liveness", "gnsq-reconnect")
QUICK = {"reconnect_initial": 0.05, "lookupd_poll_interval": 0.05}


class Bug(Exception):
    """What nobody expects."""


# What must be slow so that a greenlet lives for a while.
SLOWED = {"gnsq-change": on.http("/topic/pause"), "gnsq-inbox-close": on.command("CLS")}
# Greenlets without a row below, and why.
WITHOUT_ROW = {
    "call": "logs by itself what a function raises",
    "disconnect": "the receiver ends after it in any case",
    "output": "waits for a pipe only; each write notices its end, too",
}


def test_greenlets_are_started_in_one_place():
    """A greenlet that gevent.spawn() or Group.spawn() starts has nobody who learns that it has died."""
    started = re.compile(r"gevent\.(spawn|spawn_later|Greenlet)\(|[gG]roup\(?\)?\.spawn\(")

    assert [path for path in SOURCES if started.search(path.read_text())] == []


def test_each_greenlet_has_a_row():
    """Also in Spark's part, whose tests are the receiver's and the source's."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    started = {name for path in SOURCES for name in NAME.findall(path.read_text())}
    started |= {f"gnsq-{name}" for path in SOURCES for name in LOOP.findall(path.read_text())}

    assert {name for name in started if f'"{name}' not in tests} == {f"gnsq-{name}" for name in WITHOUT_ROW}


def greenlets(name):
    """The greenlets of this hub that have begun, and whose names begin so."""
    hub = gevent.get_hub()
    return [
        each
        for each in gc.get_objects()
        if issubclass(type(each), gevent.Greenlet)
        and each.parent is hub
        and each.name.startswith(name)
        and each.gr_frame
    ]


def throw(name):
    """Throw a Bug into the greenlets of a kind, as an unexpected error in the middle of their work."""
    wait_until(lambda: greenlets(name))
    for greenlet in greenlets(name):
        gevent.get_hub().loop.run_callback(greenlet.throw, Bug("unexpected"))


def is_told(caplog):
    return any(record.exc_info and isinstance(record.exc_info[1], Bug) for record in caplog.records)


@pytest.fixture
def nsqd():
    with FakeLookupd() as lookupd, FakeNsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as made:
        made.lookupd = lookupd
        made.publish("t", b"first")
        yield made


@pytest.fixture
def consumer(nsqd):
    """A consumer whose handler keeps each message with touching() for a moment."""
    bodies, held = [], Event()

    def handle(consumer, message):
        bodies.append(message.body)
        if message.body == b"held":
            with message.touching(interval=0.01):
                held.wait()

    made = Consumer("t", "c", nsqd.tcp_address, nsqd.lookupd.http_address, message_handler=handle, **QUICK)
    made.bodies, made.held = bodies, held
    made.start(block=False)
    yield made
    held.set()
    made.close()
    made.join()


@pytest.mark.parametrize(
    "name",
    [*CONNECTED, "gnsq-rdy", "gnsq-overdue", "gnsq-lookup", "gnsq-worker"],
)
def test_consumer_tells_of_a_dead_greenlet_and_goes_on(consumer, nsqd, caplog, name):
    wait_until(lambda: consumer.bodies == [b"first"] and consumer.total_in_flight == 0)

    throw(name)
    wait_until(lambda: is_told(caplog))
    nsqd.publish("t", b"second")

    wait_until(lambda: consumer.bodies == [b"first", b"second"] and consumer.total_in_flight == 0)
    assert consumer.is_running


def test_dead_greenlet_that_touches_is_told_and_the_handler_goes_on(consumer, nsqd, caplog):
    nsqd.publish("t", b"held")

    throw("gnsq-touch")
    wait_until(lambda: is_told(caplog))
    consumer.held.set()

    wait_until(lambda: consumer.stats().counts.finished == 2)


@pytest.mark.parametrize("name", ["gnsq-close", "gnsq-drain"])
def test_consumer_closes_though_a_greenlet_of_its_close_dies(consumer, nsqd, caplog, name):
    nsqd.publish("t", b"held")
    wait_until(lambda: b"held" in consumer.bodies)

    closing = gevent.spawn(consumer.close, timeout=5)
    throw(name)
    closing.join()

    assert consumer.stats().state == "closed"
    assert is_told(caplog)


@pytest.mark.parametrize(
    "name",
    [*CONNECTED, "gnsq-deadlines", "gnsq-batches", "gnsq-lookup"],
)
def test_producer_tells_of_a_dead_greenlet_and_goes_on(nsqd, caplog, name):
    with Producer(
        nsqd.tcp_address, lookupd_http_addresses=nsqd.lookupd.http_address, batch_messages=10, **QUICK
    ) as producer:
        producer.publish("u", b"1")

        throw(name)
        wait_until(lambda: is_told(caplog))

        assert producer.publish("u", b"2") == b"OK"


def test_dead_greenlet_that_waits_for_a_publish_is_told_and_replaced(nsqd, caplog):
    called = Event()
    nsqd.link.add(latency(0.2))

    with Producer(nsqd.tcp_address, threaded=True) as producer:
        producer.publish_async("u", b"1").rawlink(lambda result: called.set())
        throw("gnsq-link")
        wait_until(lambda: is_told(caplog))

        wait_until(called.is_set)


def test_next_message_replaces_the_dead_watcher_of_a_batch_handler(nsqd, caplog):
    handler = BatchHandler(10, handle_batch=lambda batch: None)
    with Consumer("t", "c", nsqd.tcp_address, message_handler=handler, max_in_flight=20) as consumer:
        wait_until(lambda: consumer.total_in_flight == 1)
        throw("gnsq-batch")
        wait_until(lambda: is_told(caplog))

        nsqd.publish("t", b"2")
        wait_until(lambda: greenlets("gnsq-batch"))

    assert consumer.stats().counts.finished == 2


@pytest.mark.parametrize(
    "name", ["fakensqd-writer", "fakensqd-link-up", "fakensqd-link-down", "fakensqd-serve", "fakensqd-relay"]
)
def test_emulator_tells_of_a_dead_greenlet_ends_its_connection_and_serves_others(nsqd, caplog, name):
    nsqd.link.add(latency(0.001))
    with Relay(nsqd.tcp_address) as relay:
        lost = NsqdTCPClient(*relay.address.split(":"))
        lost.connect()
        lost.identify()

        throw(name)

        with pytest.raises(Exception, match=r"closed|reset"):
            lost.read_response()
    assert is_told(caplog)
    with Producer(nsqd.tcp_address) as producer:
        assert producer.publish("u", b"1") == b"OK"


@pytest.mark.parametrize(
    ("arguments", "silent_nsqds", "name"),
    [
        pytest.param(("copy", "t", "u"), 0, "gnsq-handle", id="copy"),
        # The start of a consumer waits for the silent nsqd.
        pytest.param(("tail", "t", "--channel", "c"), 1, "gnsq-until-signal", id="tail"),
        pytest.param(("to-file", "t"), 0, "gnsq-to-file-rotate", id="to-file"),
        pytest.param(("tail", "t", "--channel", "c"), 0, "gnsq-watch", id="tail, watching"),
        pytest.param(("tail", "t", "--channel", "c"), 1, "gnsq-start", id="tail, starting"),
        pytest.param(("to-file", "--topic-pattern", "t"), 0, "gnsq-topics", id="to-file, topics"),
        pytest.param(("tail", "new", "--timeout", "500ms"), 1, "gnsq-connect", id="tail, nothing known"),
        pytest.param(("ping",), 1, "gnsq-ping", id="ping"),
        pytest.param(("stats",), 1, "gnsq-poll", id="stats"),
        pytest.param(("topic", "pause", "t"), 1, "gnsq-poll", id="topic"),
        pytest.param(("topic", "pause", "t"), 0, "gnsq-change", id="topic, pausing"),
        pytest.param(("tail", "t", "--channel", "c", "-n", "1"), 0, "gnsq-inbox-close", id="tail, ending"),
    ],
)
def test_command_ends_with_the_error_of_a_dead_greenlet(nsqd, monkeypatch, tmp_path, arguments, silent_nsqds, name):
    monkeypatch.chdir(tmp_path)
    if name in SLOWED:
        nsqd.add(SLOWED[name], delay(0.5))

    with silent_nsqd() as silent, background(lambda: throw(name)):
        try:
            text = gnsq(nsqd, *arguments, *["--nsqd", silent, "--nsqd-http", silent] * silent_nsqds).stderr
        except Bug as bug:
            text = f"Error: {bug}"

    assert "unexpected" in text[text.index("Error: ") :]


@pytest.mark.parametrize("name", ["gnsq-run-start", "gnsq-run-ready", "gnsq-run-drain", "gnsq-run-close"])
def test_error_of_a_dead_greenlet_of_run_is_raised_by_it(nsqd, name):
    """Whether it is a start, which waits for an nsqd that is silent, or an end, which waits for a handler."""
    held = Event()
    is_start = name in ("gnsq-run-start", "gnsq-run-ready")

    def handle(consumer, message):
        os.kill(os.getpid(), signal.SIGTERM)
        held.wait()

    def throw_and_release():
        throw(name)
        gevent.sleep(0)
        held.set()

    with silent_nsqd() as silent:
        consumer = Consumer("t", "c", silent if is_start else nsqd.tcp_address, message_handler=handle)
        with background(throw_and_release), pytest.raises(Bug):
            gnsq_package.run(consumer, on_ready=lambda: None)


def test_dead_query_of_an_nsqlookupd_is_told_and_others_are_asked(nsqd, caplog):
    with silent_nsqd() as silent:
        lookupds = [silent, nsqd.lookupd.http_address]
        with Consumer(
            "t", "c", lookupd_http_addresses=lookupds, message_handler=lambda _, message: None, **QUICK
        ) as consumer:
            throw("gnsq-query")
            wait_until(lambda: is_told(caplog))

            wait_until(lambda: consumer.is_ready)


def test_emulator_records_that_it_does_not_register_any_more(nsqd, caplog):
    throw("fakensqd-run")
    wait_until(lambda: is_told(caplog))

    assert [type(error) for error in nsqd.errors] == [Bug]
    nsqd.errors.clear()
