"""Options check types and bounds when they are made."""

import dataclasses
import logging
import math
import ssl
from datetime import timedelta

import pytest

from fakensqd import FakeCluster, FakeLookupd, FakeNsqd
from fakensqd.options import LookupdOptions, NsqdOptions
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, NsqdTCPClient, Producer
from gnsq.consumer import ConsumerOptions
from gnsq.http.options import HttpOptions
from gnsq.logs import LogOwner
from gnsq.nsqd.pool import ReconnectOptions
from gnsq.options import MAX_INTERVAL, ConnectionOptions
from gnsq.producer import ProducerOptions
from gnsq.protocol.handshake import identify_body
from gnsq.tls import client_context
from tests.docs.pages import hooks

ALL = [ConsumerOptions, ProducerOptions, ReconnectOptions, ConnectionOptions, HttpOptions]
FIELDS = [(kind, field) for kind in (*ALL, NsqdOptions, LookupdOptions) for field in dataclasses.fields(kind)]
NUMBERS = [
    (kind, field) for kind, field in FIELDS if kind in ALL and {"int", "float", "Delay"} & {*field.type.split(" | ")}
]


def refused(kind, field, value, error, words):
    with pytest.raises(error, match=f"^{field.name} {words}"):
        kind(**{field.name: value})


def test_each_option_that_is_a_number_has_bounds_that_its_error_names():
    assert len(NUMBERS) > 30
    units = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1)}
    for kind, field in NUMBERS:
        if (unit := units.get(field.metadata["unit"])) is not None:
            assert getattr(kind(**{field.name: 2 * unit}), field.name) == 2
        low, high = field.metadata["minimum"], field.metadata["maximum"]
        assert low is not None, f"{kind.__name__}.{field.name}"
        for value in (low, *([] if high is None else [high]), *field.metadata["special"]):
            assert getattr(kind(**{field.name: value}), field.name) == value
        for value in (-1000, *([] if high is None else [high + 1])):
            refused(kind, field, value, ValueError, f"{value} must be (at least|within) {low}")
        if "int" not in field.type:
            refused(kind, field, math.nan, ValueError, "nan must be ")
            refused(kind, field, math.inf, ValueError, "inf must be (finite|within)")
        for value in ("soon", b"60", True):
            refused(kind, field, value, TypeError, "must be ")


def test_each_option_has_a_row_in_the_reference():
    rows = {row[0]: row for kind in ALL for common in (False, True) for row in hooks.option_rows(kind, common=common)}

    assert rows.keys() == {field.name for kind, field in FIELDS if kind in ALL}


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("heartbeat_interval", 0.5, ValueError, "heartbeat_interval 0.5 must be within 1 to 2147483 or -1 s"),
        ("timeout", timedelta(0), ValueError, r"timeout timedelta\(seconds=0\) must be at least 0.001 s"),
        ("server_hostname", "", ValueError, "server_hostname is empty"),
        ("auth_secret", b"", ValueError, "auth_secret is empty"),
        ("snappy", 1, TypeError, "snappy must be bool, not 1"),
        ("output_buffer_size", 100.5, TypeError, "output_buffer_size must be int, not 100.5"),
        ("client_id", b"x", TypeError, "client_id must be str or None, not bytes"),
        ("tls_options", "x", TypeError, "tls_options must be a dict"),
        ("tls_context", "x", TypeError, "tls_context must be an ssl.SSLContext"),
        ("address_resolver", "x", TypeError, "address_resolver must be callable"),
        ("timeout", "soon", TypeError, r"timeout must be float \(seconds\) or a timedelta, not 'soon'"),
    ],
)
def test_wrong_option_names_subject_value_and_limit(name, value, error, words):
    with pytest.raises(error, match=words):
        ConnectionOptions(**{name: value})


@pytest.mark.parametrize("options", ALL)
def test_none_is_the_default_of_each_option(options):
    names = {field.name for field in dataclasses.fields(options)} - {"max_tries"}

    assert options(**dict.fromkeys(names)) == options()


@pytest.mark.parametrize("options", ALL)
@pytest.mark.parametrize("form", [str, lambda number: f" {number} ", float, lambda number: str(float(number))])
def test_number_may_be_text_or_a_float_without_a_fraction(options, form):
    numbers = {name: value for name, value in vars(options()).items() if type(value) in (int, float)}

    made = options(**{name: form(value) for name, value in numbers.items()})

    assert made == options()
    ints = [
        name for name, value in numbers.items() if type(value) is int and "float" not in options.__annotations__[name]
    ]
    assert all(type(getattr(made, name)) is int for name in ints)


@pytest.mark.parametrize("value", ["5", "5.0", 5.0, None])
def test_clients_take_numbers_as_gnsq_1_0_did(value):
    numbers = {"timeout": value, "deflate_level": value}
    Consumer("t", "c", "a", max_in_flight=value, lookupd_poll_interval=value, requeue_delay=value, **numbers)
    Producer("a", value, **numbers)
    NsqdTCPClient("a", **numbers)
    NsqdHTTPClient("a", timeout=value, maxsize=value)
    LookupdClient("a", retries=value)


def test_secret_may_be_text():
    assert ConnectionOptions(auth_secret="schlüssel").auth_secret == "schlüssel".encode()
    with pytest.raises(ValueError, match=r"auth_secret has characters that UTF-8 can't encode$"):
        ConnectionOptions(auth_secret="hidden\ud800")


MISSPELT = [
    pytest.param(lambda: Consumer("t", "c", "a", max_inflight=1), "Consumer", "max_in_flight", id="Consumer"),
    pytest.param(lambda: Consumer("t", "c", "a", hartbeat_interval=1), "Consumer", "heartbeat_interval", id="TCP"),
    pytest.param(
        lambda: Consumer("t", "c", "a", lookupd_http_address="b"), "Consumer", "lookupd_http_addresses", id="parameter"
    ),
    pytest.param(lambda: Producer("a", batch_mesages=1), "Producer", "batch_messages", id="Producer"),
    pytest.param(lambda: NsqdTCPClient("a", tls=True), "NsqdTCPClient", "tls_v1", id="NsqdTCPClient"),
    pytest.param(lambda: NsqdHTTPClient("a", 1, tmeout=1), "NsqdHTTPClient", "timeout", id="NsqdHTTPClient"),
    pytest.param(lambda: LookupdClient("a", 1, ca_cert="x"), "LookupdClient", "ca_certs", id="LookupdClient"),
    pytest.param(
        lambda: Consumer("t", "c", lookupd_http_addresses="a", lookupd_options={"ca_cert": "x"}),
        "LookupdClient",
        "ca_certs",
        id="lookupd_options",
    ),
    pytest.param(
        lambda: client_context(ConnectionOptions(tls_v1=True, tls_options={"ca_cert": "x"})),
        "tls_options",
        "ca_certs",
        id="tls_options",
    ),
    pytest.param(lambda: FakeNsqd(max_msgsize=1), "FakeNsqd", "max_msg_size", id="FakeNsqd"),
    pytest.param(lambda: FakeLookupd(tcp_adress="x"), "FakeLookupd", "tcp_address", id="FakeLookupd"),
    pytest.param(lambda: FakeCluster(max_msgsize=1), "FakeCluster", "max_msg_size", id="FakeCluster"),
]


@pytest.mark.parametrize(("make", "owner", "meant"), MISSPELT)
def test_misspelt_option_gets_a_similar_one_suggested(make, owner, meant):
    with pytest.raises(TypeError, match=rf"{owner} has no .*; did you mean {meant}\? (options are|it takes) "):
        make()


def raising(count):
    raise ZeroDivisionError(f"for {count}")


@pytest.mark.parametrize(
    "function",
    [raising, *(lambda count, value=value: value for value in (-1, "soon", 10**400))],
    ids=["raises", "negative", "text", "huge"],
)
@pytest.mark.parametrize(
    ("name", "ask", "default"),
    [("requeue_delay", ConsumerOptions.requeue_after, 4000), ("backoff", ConsumerOptions.pause_after, 1.0)],
)
def test_function_that_gives_no_delay_is_logged_once_and_the_default_is_used(name, ask, default, function, caplog):
    options, owner = ConsumerOptions(**{name: function}), LogOwner("t/c", lambda: 0.0)

    assert [ask(options, 2, owner) for _ in range(3)] == [default] * 3
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line == f"t/c: the function of option {name} failed for 2; its default is used"


def test_delay_that_would_overflow_in_nsqd_is_cut():
    options = ConsumerOptions(requeue_delay=lambda attempts: 1000 * 4**attempts)

    assert options.requeue_after(30, LogOwner("", lambda: 0.0)) == 1000 * MAX_INTERVAL


@pytest.mark.parametrize("options", [{"tls_options": {}}, {"server_hostname": "nsqd.example"}])
@pytest.mark.parametrize("said", [{}, {"tls_v1": None}], ids=["not given", "None"])
def test_options_of_tls_never_end_in_clear_text_by_default(options, said):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is given without tls_v1: give tls_v1=True, or tls_v1=False"):
        ConnectionOptions(**options, **said)


def test_context_and_options_of_tls_are_not_both_taken():
    with pytest.raises(ValueError, match="tls_context and tls_options are both given"):
        ConnectionOptions(tls_context=ssl.create_default_context(), tls_options={})


def test_level_of_deflate_is_sent_if_deflate_is_wanted():
    assert identify_body(ConnectionOptions(deflate=True, deflate_level=3))["deflate_level"] == 3
    assert "deflate_level" not in identify_body(ConnectionOptions())
