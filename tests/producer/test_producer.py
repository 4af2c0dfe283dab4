"""Producer: every publish ends with nsqd's response or an exception."""

import inspect
from datetime import timedelta

import pytest

from gnsq import NsqdTCPClient, Producer
from gnsq.addresses import parse_address
from gnsq.errors import (
    NSQNoConnections,
)
from tests.kit import bodies, refused_port


@pytest.fixture
def producer(fakensqd):
    with Producer(fakensqd.tcp_address) as made:
        yield made


# The methods of a Producer with their parameters, and valid values of those that have no default.
METHODS = {
    name: inspect.signature(getattr(Producer, name)).parameters.keys() - {"self"}
    for name in (
        "publish",
        "publish_async",
        "multipublish",
        "publish_many",
        "flush",
        "close",
        "join",
        "connect_to_nsqd",
        "set_nsqds",
    )
}
VALID = {"topic": "t", "data": b"x", "messages": [b"x"], "address": "127.0.0.1", "port": 4150}
VALID["nsqd_tcp_addresses"] = "127.0.0.1"
MISUSES = [
    ("nsqd_tcp_addresses", 5, TypeError, "nsqd_tcp_addresses must be 'host:port'"),
    ("nsqd_tcp_addresses", (), ValueError, "nsqd_tcp_addresses is empty"),
    ("topic", "bad topic", ValueError, "topic name 'bad topic'"),
    ("topic", ["t"], ValueError, "topic name must be a str, not list"),
    ("data", b"", ValueError, "message body is empty"),
    ("data", "text", TypeError, "message body must be bytes, not str: give its encode[(][)]"),
    ("messages", b"xy", TypeError, "messages must be an iterable of bytes, not bytes"),
    ("messages", 5, TypeError, "messages must be an iterable of bytes, not int"),
    ("defer", -5, ValueError, "defer -5 must be at least 0 milliseconds"),
    ("defer", 0.5, TypeError, r"defer must be an int of milliseconds, not 0\.5"),
    ("defer", True, TypeError, "defer must be an int of milliseconds, not True"),
    ("block", 5, TypeError, "block must be True or False, not 5"),
    ("raise_error", "no", TypeError, "raise_error must be True or False, not 'no'"),
    ("timeout", "5", TypeError, "timeout must be a number of seconds, not '5'"),
    ("timeout", True, TypeError, "timeout must be a number of seconds, not True"),
    ("timeout", timedelta(seconds=-5), ValueError, r"timeout -5\.0 must be at least 0"),
    ("timeout", float("nan"), ValueError, "timeout nan must be at least 0 and less than 1e"),
    ("address", 5, TypeError, "host of an address must be a str, not 5"),
    ("port", "x", ValueError, "port 'x' of address '127.0.0.1:x' is not a number"),
]


def test_every_parameter_has_a_misuse():
    assert set().union(*METHODS.values()) == {name for name, *_ in MISUSES}


@pytest.mark.parametrize("method", METHODS)
def test_misuse_is_refused_before_anything_is_sent(producer, fakensqd, method):
    arguments = {name: VALID[name] for name in VALID.keys() & METHODS[method]}
    misuses = [misuse for misuse in MISUSES if misuse[0] in METHODS[method]]
    assert misuses
    for name, value, error, words in misuses:
        with pytest.raises(error, match=words):
            getattr(producer, method)(**arguments | {name: value})

    assert producer.publish("t", b"after") == b"OK"
    assert bodies(fakensqd, "t") == [b"after"]


def test_wrong_argument_of_a_result_is_refused(producer):
    result = producer.publish_async("t", b"x")

    for call in (result.get, result.wait, result.result):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, not '5'"):
            call(timeout="5")
    with pytest.raises(TypeError, match="callback must be a function, not 5"):
        result.add_done_callback(5)
    assert result.get() == b"OK"


# defer=0: at once, which is a PUB for nsqd and for the rules of an emulator.
DEFERRED = [
    pytest.param(lambda p, c, defer: p.publish("t", b"x", defer=defer), id="publish"),
    pytest.param(lambda p, c, defer: p.publish_async("t", b"x", defer=defer).get(), id="publish_async"),
    pytest.param(lambda p, c, defer: (c.publish("t", b"x", defer=defer), c.check_ok()), id="NsqdTCPClient"),
]


@pytest.mark.parametrize(("defer", "command"), [(0, "PUB"), (None, "PUB"), (5, "DPUB"), (timedelta(seconds=1), "DPUB")])
@pytest.mark.parametrize("publish", DEFERRED)
def test_command_of_a_deferred_publish(producer, fakensqd, publish, defer, command):
    client = NsqdTCPClient(*parse_address(fakensqd.tcp_address))
    client.connect()

    publish(producer, client, defer)
    client.close_stream()

    assert [entry.name for entry in fakensqd.transcript.select("command", topic="t")] == [command]


@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(lambda p: p.publish("t", b"x" * 11), id="publish"),
        pytest.param(lambda p: p.multipublish("t", [b"x", b"x" * 11]), id="multipublish"),
    ],
)
def test_configured_max_msg_size_is_checked_here(fakensqd, publish):
    with (
        Producer(fakensqd.tcp_address, max_msg_size=10) as producer,
        pytest.raises(ValueError, match="body of 11 bytes exceeds max_msg_size 10"),
    ):
        publish(producer)


def test_unreachable_nsqd_is_named_in_the_error():
    port = refused_port()
    with (
        Producer(f"127.0.0.1:{port}") as producer,
        pytest.raises(NSQNoConnections, match=rf"within 0.05 s; tried 127.0.0.1:{port}: .*Connection refused"),
    ):
        producer.publish("t", b"x", timeout=0.05)


def test_producer_without_an_address_is_refused():
    with pytest.raises(ValueError, match="producer has no address"):
        Producer([])
