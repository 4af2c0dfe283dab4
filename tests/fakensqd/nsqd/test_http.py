"""nsqd's HTTP API, as far as recorded sessions do not have it."""

import io
import json

import pytest

from fakensqd import FakeNsqd
from fakensqd.nsqd.broker import Broker
from fakensqd.nsqd.http import nsqd_application
from fakensqd.options import NsqdOptions
from fakensqd.router import Request
from gnsq.protocol.commands import multipublish_body
from tests.kit.wire import call, environ


class Facts:
    """Facts about a server."""

    hostname = "h"
    tcp_port = 4150
    http_port = 4151
    https_port = 4152
    start_time = 1_577_836_800
    sessions = ()

    def __init__(self):
        self.options = NsqdOptions(max_msg_size=10, max_body_size=30)
        self.broker = Broker(self.options)
        self.errors = []
        self.lookupd_tcp_addresses = ("a:1",)
        self.log_level = "info"

    def now(self):
        return 0.0

    def set_lookupd_tcp_addresses(self, addresses):
        self.lookupd_tcp_addresses = addresses


@pytest.fixture
def server():
    return Facts()


@pytest.fixture
def api(server):
    """Call the API; returns status and text."""
    application = nsqd_application(server)

    def request(method, target, body=b""):
        path, _, query = target.partition("?")
        status, _, data = call(application, method, path, query, body)
        assert server.errors == []
        text = data.decode()
        return status, json.loads(text)["message"] if status >= 400 else text

    return request


def bodies(server, topic="t"):
    channel = server.broker.topics[topic].ensure_channel("bodies", 0.0)
    return [message.body for message in channel.deliver(None, 100, 0.0, 60.0)]


def test_body_without_content_length_is_limited(server):
    for path, body in (("/pub", b"x" * 11), ("/mpub", b"x" * 31)):
        request = Request(environ("POST", path, "topic=t", body) | {"CONTENT_LENGTH": ""})
        assert nsqd_application(server)(request).status == 413


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "0"),
        ("log_level", "2"),
        ("nsqlookupd_tcp_addresses", '["a:1"]'),
        ("tls_required", "0"),
        ("tls_min_version", "769"),
        ("auth_http_addresses", "[]"),
        ("http_client_connect_timeout", "2000000000"),
        ("broadcast_tcp_port", "4150"),
        ("statsd_prefix", "nsq.127_0_0_1_4151."),
        ("e2e_processing_latency_percentiles", "[]"),
    ],
)
def test_config_has_the_options_of_nsqd(api, name, value):
    assert api("GET", f"/config/{name}") == (200, value)


def test_config_changes_nsqlookupds_and_refuses_bad_values(api, server):
    assert api("PUT", "/config/nsqlookupd_tcp_addresses", b'["b:2"]') == (200, '["b:2"]')
    assert server.lookupd_tcp_addresses == ("b:2",)
    assert api("PUT", "/config/nsqlookupd_tcp_addresses", b"null") == (200, "[]")
    assert api("PUT", "/config/nsqlookupd_tcp_addresses", b"[1]") == (400, "INVALID_VALUE")
    assert api("PUT", "/config/log_level", b"warning") == (400, "INVALID_VALUE")
    assert api("PUT", "/config/log_level", b"x" * 11) == (413, "INVALID_VALUE")


def test_exception_of_a_handler_is_recorded_and_answered_by_500(server):
    server.broker = None

    status, _, data = call(nsqd_application(server), "POST", "/topic/create", "topic=t")

    assert (status, data) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert [type(error) for error in server.errors] == [AttributeError]


def test_bytes_after_binary_messages_are_not_read(server):
    source = io.BytesIO(multipublish_body([b"a", b"b"]) + b"x" * 1_000_000)
    request = environ("POST", "/mpub", "topic=t&binary=true") | {"wsgi.input": source, "CONTENT_LENGTH": ""}
    nsqd_application(server)(Request(request))

    assert bodies(server) == [b"a", b"b"]
    assert source.tell() < 100_000


def test_log_level_that_nsqd_does_not_have_is_refused():
    with pytest.raises(ValueError, match="log_level 'loud' must be one of debug, info, warn, error, fatal"):
        FakeNsqd(log_level="loud")
