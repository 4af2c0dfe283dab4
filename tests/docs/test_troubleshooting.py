"""The lines of logs and the output on the page Troubleshooting are what these situations print."""

import inspect
import logging
import re
import socket

import gevent.event
import pytest

from fakensqd import FakeNsqd
from fakensqd.clock import ManualClock
from fakensqd.faults import error, on
from gnsq import Consumer, NsqdHTTPClient, NsqdTCPClient, NSQException, Producer, run
from tests.docs.pages import blocks
from tests.kit import channel_stats, refused_port, run_program, wait_until
from tests.kit.commands import command, gnsq

BLOCKS = [*blocks("troubleshooting.md"), *blocks("troubleshooting-programs.md")]


def ignore(consumer, message):
    pass


def fail(consumer, message):
    raise OSError("the database is away")


def consuming(nsqd, handler=ignore, **options):
    options = {"requeue_delay": 0, "max_backoff_duration": 0, **options}
    return Consumer("orders", "billing", nsqd.tcp_address, message_handler=handler, **options)


def publishing(producer, body=b"1", timeout=None):
    """Publish in vain; returns the error as a traceback shows it."""
    with producer, pytest.raises(NSQException) as caught:
        producer.publish("orders", body, timeout=timeout)
    return f"gnsq.errors.{caught.typename}: {caught.value}"


# Situations: each may return what programs have printed, and the log is read besides.


def nobody_has_published(fakecluster, logged):
    consumer = Consumer("orders", "billing", lookupd_http_addresses=fakecluster.lookupd_http_addresses[:1])
    consumer.on_message.connect(ignore)
    with consumer:
        logged("asking again in 60 s")


def nsqd_is_away(logged):
    with FakeNsqd() as nsqd:
        nsqd.down()
        with consuming(nsqd):
            logged("Connection refused; trying again")
            return gnsq(nsqd, "ping").output


def channel_is_paused(fakensqd):
    fakensqd.publish("orders", b"1", b"2")
    with consuming(fakensqd):
        wait_until(lambda: len(fakensqd.transcript.finished()) == 2)
        gnsq(fakensqd, "channel", "pause", "orders", "billing")
        fakensqd.publish("orders", b"3", b"4")
        return gnsq(fakensqd, "stats", "orders", COLUMNS="200").output


def address_is_unknown_here(fakelookupd, logged):
    with pytest.raises(socket.gaierror) as caught:
        socket.getaddrinfo("nsqd-0.nsqd.invalid", 4150)
    if caught.value.errno == socket.EAI_AGAIN:
        pytest.skip("there is no name server, which would say that the name does not exist")
    options = {"lookupd_tcp_addresses": [fakelookupd.tcp_address], "broadcast_address": "nsqd-0.nsqd.invalid"}
    with FakeNsqd(**options) as nsqd:
        nsqd.publish("orders", b"1")
        nsqd.wait_registered()
        consumer = Consumer("orders", "billing", lookupd_http_addresses=fakelookupd.http_address)
        consumer.on_message.connect(ignore)
        with consumer:
            logged("not tried again until an nsqlookupd names it")
            return command("ping", "--lookupd", fakelookupd.http_address).output


def consumer_was_killed(fakensqd):
    fakensqd.publish("orders", b"1")
    client = NsqdTCPClient(*fakensqd.tcp_address.split(":"))
    client.connect()
    client.identify()
    client.subscribe("orders", "billing")
    client.ready(1)
    wait_until(lambda: fakensqd.depth("orders", "billing") == 0)
    client.close_stream()
    wait_until(lambda: not channel_stats(fakensqd, "orders", "billing")["client_count"])
    return gnsq(fakensqd, "stats", "orders", COLUMNS="200").output


def handler_is_too_slow(logged):
    clock, calls, second = ManualClock(), [], gevent.event.Event()

    def slow(consumer, message):
        calls.append(message)
        if message.attempts == 1:
            second.wait()
        else:
            second.set()

    with FakeNsqd(clock=clock, record=True) as nsqd:
        nsqd.publish("orders", b"1")
        with consuming(nsqd, slow, max_in_flight=2, clock=clock):
            wait_until(lambda: calls)
            clock.advance(61.0)
            wait_until(nsqd.transcript.finished)
            logged("E_FIN_FAILED")
            logged("its handler has run for")
            return gnsq(nsqd, "stats", "orders", COLUMNS="200").output


def message_fails_always(fakensqd, logged):
    fakensqd.publish("orders", b"1")
    with consuming(fakensqd, fail, max_tries=1):
        logged("given up")


def consumer_pauses(fakensqd, logged):
    fakensqd.publish("orders", b"1", b"2")
    with consuming(fakensqd, fail, max_backoff_duration=128, requeue_delay=60_000):
        logged("no messages for")


def nsqd_refuses_an_answer(logged, monkeypatch):
    monkeypatch.setattr("gnsq.nsqd.connection.MISCOUNT_LIMIT", 0.1)
    with FakeNsqd() as nsqd, nsqd.add(on.command("FIN"), error("E_FIN_FAILED")):
        nsqd.publish("orders", b"1")
        with consuming(nsqd, heartbeat_interval=1):
            logged("it may count such a message")


def handler_blocks():
    code = """
import logging, sys, time, gevent, gnsq
class Note(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
lines = []
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
def handle(consumer, message):
    time.sleep(4)
def end():
    while not all(any(words in line for line in lines) for words in ("connection lost", "runs again")):
        gevent.sleep(0.05)
    consumer.close()
logging.getLogger().addHandler(Note())
consumer = gnsq.Consumer("orders", "billing", sys.argv[1], message_handler=handle, heartbeat_interval=1)
gevent.spawn(end)
consumer.start()
"""
    with FakeNsqd().in_thread() as nsqd:
        nsqd.publish("orders", b"1")
        return run_program(code, nsqd.tcp_address).stderr


def nsqd_is_away_or_silent(fakensqd):
    refused = publishing(Producer(f"127.0.0.1:{refused_port()}"), timeout=0.1)
    producer = Producer(fakensqd.tcp_address)
    producer.publish("orders", b"1")
    fakensqd.stop_reading()
    silent = publishing(producer, timeout=0.1)
    fakensqd.resume_reading()
    return f"{refused}\n{silent}"


def message_is_too_large(fakensqd):
    return publishing(Producer(fakensqd.tcp_address), b"x" * 2_000_000)


def nobody_consumes(fakensqd):
    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    client.create_topic("orders")
    client.create_channel("orders", "billing")
    client.create_channel("orders", "archive-old")
    fakensqd.publish("orders", *[b"%d" % number for number in range(2500)])
    with consuming(fakensqd, max_in_flight=100):
        wait_until(lambda: len(fakensqd.transcript.finished()) == 2500)
        return gnsq(fakensqd, "stats", "orders", COLUMNS="200").output


def handler_outlives_the_program(fakensqd):
    fakensqd.publish("orders", b"1")

    def long(consumer, message):
        gevent.spawn(consumer.close)
        gevent.sleep(60)

    with pytest.raises(SystemExit):
        run(consuming(fakensqd, long, close_timeout=0.05))


def certificate_is_not_trusted(fakensqd_certificates, logged):
    certificate, key = fakensqd_certificates.server()
    with FakeNsqd(tls_cert=certificate, tls_key=key) as nsqd, Producer(nsqd.tcp_address, tls_v1=True):
        logged("not connected: TLS failed")


# By headings of the page.
SITUATIONS = {
    "The consumer gets nothing": [nobody_has_published, nsqd_is_away, channel_is_paused],
    "It works here, but not from another machine": [address_is_unknown_here],
    "Everything arrives after a minute": [consumer_was_killed],
    "Messages come twice": [handler_is_too_slow],
    "The same message comes again and again": [message_fails_always],
    "Messages disappear": [message_fails_always],
    "After an error nothing comes for a while": [consumer_pauses],
    "The connection is lost again and again": [handler_blocks, nsqd_refuses_an_answer],
    "Publish times out": [nsqd_is_away_or_silent],
    "Publish is refused": [message_is_too_large],
    "TLS fails": [certificate_is_not_trusted],
    "Depth grows": [nobody_consumes],
    "The program does not end, or is killed": [handler_outlives_the_program],
}


@pytest.fixture
def logged(caplog):
    """Wait until the log has a text."""
    return lambda text: wait_until(lambda: text in caplog.text)


@pytest.fixture
def printed_by(request, caplog):
    """Return the lines that situations print and log."""
    caplog.set_level(logging.INFO, "gnsq")
    caplog.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def printed_by(*situations):
        names = [inspect.signature(situation).parameters for situation in situations]
        printed = [
            situation(**{name: request.getfixturevalue(name) for name in each})
            for situation, each in zip(situations, names, strict=True)
        ]
        return "\n".join([*filter(None, printed), caplog.text])

    return printed_by


@pytest.mark.subprocess
@pytest.mark.parametrize("heading", SITUATIONS)
def test_lines_of_the_page_are_printed(heading, printed_by):
    lines = [line for block in BLOCKS if block.heading == heading for line in block.code.splitlines()]

    printed = [" ".join(line.split()) for line in printed_by(*SITUATIONS[heading]).splitlines()]

    assert lines
    assert [line for line in lines if not any(map(pattern(line).fullmatch, printed))] == [], "\n".join(printed)


def pattern(line):
    """Compile a line of the page, in which ``...`` stands for any text and each port for any port."""
    words = re.sub(r"(?<=:)4150|(?<=port )4150", "...", " ".join(line.split()))
    return re.compile(".*".join(map(re.escape, words.split("..."))))


def test_all_blocks_of_the_pages_are_compared():
    assert {block.heading for block in BLOCKS} == {*SITUATIONS}
