"""Publishing over HTTP has the same outcomes as over TCP."""

import json
import ssl

import gevent
import pytest
from gevent.event import Event
from gevent.ssl import SSLContext

from fakensqd import FakeNsqd
from fakensqd.faults import answer, delay, disconnect, drop, on
from gnsq import NsqdHTTPClient, Producer
from gnsq.errors import (
    NSQBadBody,
    NSQBadMessage,
    NSQBadTopic,
    NSQDPubFailed,
    NSQHttpError,
    NSQInvalid,
    NSQMPubFailed,
    NSQNotSentTimeout,
    NSQPubFailed,
    NSQUnknownClosed,
    NSQUnknownTimeout,
)
from gnsq.producer.http import is_nsqd_response, is_rejected_before_nsqd, refused_error, too_old
from gnsq.producer.publish import PendingPublish
from tests.helpers import bodies, channel_stats, wait_until
from tests.http.peer import JSON, TEXT, http_peer, reply

EXITING = b'{"message":"EXITING"}'


@pytest.fixture
def producer(fakensqd):
    with Producer(nsqd_http_addresses=fakensqd.http_address, reconnect_initial=0.01) as made:
        yield made


# --- confirmed


def test_publish_is_confirmed_and_stored(producer, fakensqd):
    assert producer.publish("t", b"body") == b"OK"

    assert bodies(fakensqd, "t") == [b"body"]


def test_multipublish_stores_all_in_order_whatever_they_hold(producer, fakensqd):
    assert producer.multipublish("t", [b"1\n", b"2\x00"]) == b"OK"

    assert bodies(fakensqd, "t") == [b"1\n", b"2\x00"]


def test_deferred_publish_is_held_back(producer, fakensqd):
    with NsqdHTTPClient.from_url(fakensqd.http_address) as client:
        client.create_topic("t")
        client.create_channel("t", "c")

    assert producer.publish("t", b"body", defer=60_000) == b"OK"

    assert channel_stats(fakensqd, "t", "c")["deferred_count"] == 1


def test_many_at_once_are_all_confirmed(producer, fakensqd):
    results = [producer.publish_async("t", b"%d" % number) for number in range(100)]

    assert [result.get(timeout=10) for result in results] == [b"OK"] * 100
    assert sorted(bodies(fakensqd, "t"), key=int) == [b"%d" % number for number in range(100)]


def test_http_requests_at_once_limits_concurrent_requests():
    under_way, most, proceed = [], [], gevent.event.Event()

    def serve(request, sock):
        under_way.append(request)
        most.append(len(under_way))
        if request.path == "/pub":
            proceed.wait()
        under_way.remove(request)
        return reply()

    with http_peer(serve) as peer, Producer(nsqd_http_addresses=peer.address, http_requests_at_once=3) as producer:
        results = [producer.publish_async("t", b"x") for _ in range(10)]
        wait_until(lambda: len(under_way) == 3)
        stats = producer.stats()
        proceed.set()
        gevent.joinall(results)

    assert max(most) == 3
    assert stats.connections[0].pending == 10


def test_batch_goes_in_one_request(fakensqd):
    with Producer(nsqd_http_addresses=fakensqd.http_address, batch_messages=10, batch_linger=60) as producer:
        results = [producer.publish_async("t", b"%d" % number) for number in range(10)]

        assert [result.get(timeout=5) for result in results] == [b"OK"] * 10
    assert bodies(fakensqd, "t") == [b"%d" % number for number in range(10)]


def test_bad_member_of_a_batch_is_refused_alone(fakensqd):
    options = {"batch_messages": 3, "batch_bytes": 2_000_000, "batch_linger": 60}
    with Producer(nsqd_http_addresses=fakensqd.http_address, **options) as producer:
        results = [producer.publish_async("t", body) for body in (b"1", b"x" * 1_100_000, b"2")]

        assert results[0].get(timeout=5) == results[2].get(timeout=5) == b"OK"
        with pytest.raises(NSQBadMessage, match="MSG_TOO_BIG"):
            results[1].get(timeout=5)
    assert sorted(bodies(fakensqd, "t")) == [b"1", b"2"]


def test_publish_many_goes_in_chunks(producer, fakensqd):
    chunks = producer.publish_many("t", (b"%d" % number for number in range(2500)))

    assert [chunk.messages for chunk in chunks] == [1000, 1000, 500]
    assert fakensqd.depth("t") == 2500


def test_timeout_of_the_client_ends_a_publish_whose_deadline_is_later():
    proceed = gevent.event.Event()

    def serve(request, sock):
        if request.path == "/pub":
            proceed.wait()
        return reply()

    with http_peer(serve) as peer:
        with (
            Producer(nsqd_http_addresses=peer.address, http_options={"timeout": 0.5}) as hasty,
            pytest.raises(NSQUnknownClosed, match=r"no response within 0.5 s; nsqd may have"),
        ):
            hasty.publish("t", b"x")
        proceed.set()


# --- refused


def test_refused_publish_raises_at_once_and_the_next_one_goes(producer, fakensqd):
    with pytest.raises(NSQBadMessage, match=r"E_BAD_MESSAGE POST http://.*: http error <413> MSG_TOO_BIG") as caught:
        producer.publish("t", b"x" * 1_100_000)

    assert isinstance(caught.value.__cause__, NSQHttpError)
    assert producer.publish("t", b"y") == b"OK"
    assert producer.stats().refused == 1


def test_publish_that_an_exiting_nsqd_refuses_is_retried_on_another(fakecluster):
    exiting, other = fakecluster.nsqds
    exiting.add(on.http("/pub").always(), answer(503, EXITING))
    addresses = [exiting.http_address, other.http_address]

    with Producer(nsqd_http_addresses=addresses, strategy="primary") as producer:
        assert producer.publish("t", b"x") == b"OK"
        stats = producer.stats()

    assert bodies(other, "t") == [b"x"]
    assert "EXITING" in stats.failures[exiting.http_address]


def test_only_nsqd_that_exits_refuses_a_publish_twice(producer, fakensqd):
    with fakensqd.add(on.http("/pub").first(2), answer(503, EXITING)), pytest.raises(NSQPubFailed, match="EXITING"):
        producer.publish("t", b"x", timeout=5)


def test_signals_are_sent_for_responses_and_errors(producer):
    got = []
    producer.on_response.connect(lambda sender, response: got.append(response), weak=False)
    producer.on_error.connect(lambda sender, error: got.append(error.code), weak=False)

    producer.publish("t", b"x")
    with pytest.raises(NSQBadMessage):
        producer.publish("t", b"x" * 1_100_000)

    assert got == [b"OK", "E_BAD_MESSAGE"]


# --- unknown


def test_lost_answer_is_unknown_and_not_published_again(producer, fakensqd):
    with (
        fakensqd.add(on.http("/pub", executed=True), disconnect()),
        pytest.raises(NSQUnknownClosed, match="nsqd may have the publish to t"),
    ):
        producer.publish("t", b"x", timeout=5)

    assert producer.publish("t", b"y", timeout=5) == b"OK"
    assert bodies(fakensqd, "t") == [b"x", b"y"]


def test_lost_answer_is_published_again_where_duplicates_are_allowed(fakensqd):
    with Producer(nsqd_http_addresses=fakensqd.http_address, allow_duplicates=True) as producer:
        with fakensqd.add(on.http("/pub", executed=True), disconnect()):
            assert producer.publish("t", b"x", timeout=5) == b"OK"

        assert producer.stats().repeated == 1
    assert bodies(fakensqd, "t") == [b"x", b"x"]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_proxys_error_is_unknown(producer, fakensqd, status):
    with (
        fakensqd.add(on.http("/pub"), answer(status, b"<html>")),
        pytest.raises(NSQUnknownClosed, match=f"http error <{status}>"),
    ):
        producer.publish("t", b"x", timeout=5)


def test_address_with_a_wrong_path_is_not_used(fakensqd):
    wrong = f"{fakensqd.http_address}elsewhere" if fakensqd.http_address.endswith("/") else None
    wrong = wrong or f"{fakensqd.http_address}/elsewhere"
    with Producer(nsqd_http_addresses=[wrong, fakensqd.http_address]) as producer:
        for number in range(10):
            producer.publish("t", b"%d" % number, timeout=10)

    assert sorted(bodies(fakensqd, "t")) == [b"%d" % number for number in range(10)]


def test_lost_batch_is_unknown_for_each_member(fakensqd):
    with (
        Producer(nsqd_http_addresses=fakensqd.http_address, batch_messages=2, batch_linger=60) as producer,
        fakensqd.add(on.http("/mpub"), drop()),
    ):
        results = [producer.publish_async("t", b"x", timeout=0.1 * number) for number in (1, 2)]

        for result in results:
            with pytest.raises(NSQUnknownTimeout, match="not answered within 0"):
                result.get(timeout=5)


@pytest.mark.parametrize("body", [b"hello", b'{"a":1}'], ids=["text", "json"])
def test_other_answer_than_ok_is_unknown(body):
    def serve(request, sock):
        return reply(body, content_type=JSON if body.startswith(b"{") else "text/plain")

    with (
        http_peer(serve) as peer,
        Producer(nsqd_http_addresses=peer.address) as producer,
        pytest.raises(NSQUnknownClosed, match="to a publish, expected OK"),
    ):
        producer.publish("t", b"x", timeout=5)


# --- deadlines


def test_publish_to_an_nsqd_that_does_not_read_ends_by_its_deadline(producer, fakensqd):
    producer.publish("t", b"1")
    fakensqd.stop_reading()

    with pytest.raises(NSQUnknownTimeout, match=r"publish not answered within 0.05 s; nsqd may have it"):
        producer.publish("t", b"2", timeout=0.05)

    fakensqd.resume_reading()


def test_publish_without_time_is_not_sent(producer, fakensqd):
    with pytest.raises(NSQNotSentTimeout, match="publish not sent within 0 s"):
        producer.publish("t", b"x", timeout=0)

    assert producer.publish("t", b"y") == b"OK"
    assert bodies(fakensqd, "t") == [b"y"]


def test_publish_that_is_submitted_after_its_deadline_is_not_sent(producer, fakensqd):
    """Where the hub was busy the turn may come before the look at deadlines."""
    dispatcher = producer._lifecycle.runtime.dispatcher
    (link,) = dispatcher.links
    late = PendingPublish("t", b"x", 0.0, 0.0)
    late.owner, late.link = dispatcher, link
    dispatcher.pending += 1

    link.submit(late)
    wait_until(lambda: late.done)

    assert isinstance(late.error, NSQNotSentTimeout)
    assert fakensqd.depth("t") == 0


def test_late_answer_over_http_confirms_no_other_publish():
    second, is_answered = Event(), Event()

    def serve(request, sock):
        if request.body == b"1":
            second.wait()
            is_answered.set()
            return reply()
        if request.body == b"2":
            second.set()
            is_answered.wait()
            return reply(b'{"message":"MSG_TOO_BIG"}', "413 Request Entity Too Large", JSON)
        return reply()

    with http_peer(serve) as peer, Producer(nsqd_http_addresses=peer.address) as producer:
        with pytest.raises(NSQUnknownTimeout):
            producer.publish("t", b"1", timeout=0.05)

        with pytest.raises(NSQBadMessage):
            producer.publish("t", b"2", timeout=5)


def test_publish_that_expires_before_its_request_is_not_sent(fakensqd):
    options = {"http_requests_at_once": 1, "close_timeout": 0.01}
    with Producer(nsqd_http_addresses=fakensqd.http_address, **options) as producer:
        fakensqd.stop_reading()
        first = producer.publish_async("t", b"1", timeout=60)

        with pytest.raises(NSQNotSentTimeout, match=r"publish not sent within 0\.05 s"):
            producer.publish("t", b"2", timeout=0.05)

        assert not first.ready()


def test_publishes_go_to_another_nsqd_if_one_does_not_read(fakecluster):
    silent, other = fakecluster.nsqds
    options = {"strategy": "primary", "stalled_after": 0.05, "http_requests_at_once": 1, "close_timeout": 0.01}
    with Producer(nsqd_http_addresses=[silent.http_address, other.http_address], **options) as producer:
        silent.stop_reading()
        results = [producer.publish_async("t", b"%d" % number) for number in range(10)]

        assert [result.get(timeout=5) for result in results[1:]] == [b"OK"] * 9
        assert not results[0].ready()


def test_pending_request_goes_on_after_another_one_has_failed():
    waiting = gevent.event.Event()

    def serve(request, sock):
        if request.body == b"slow":
            waiting.wait()
        first_ping = peer.lines == ["GET /ping"]
        return reply() if first_ping or request.body == b"slow" else reply(b"", "502 Bad Gateway")

    with http_peer(serve) as peer, Producer(nsqd_http_addresses=peer.address) as producer:
        slow = producer.publish_async("t", b"slow")
        wait_until(lambda: "POST /pub" in peer.lines)
        with pytest.raises(NSQUnknownClosed, match="502"):
            producer.publish("t", b"bad")
        short = gevent.spawn(producer.flush, 5)
        wait_until(lambda: producer.stats().failures)

        assert not short.ready()
        waiting.set()

        assert short.get(timeout=5)
        assert slow.get(timeout=0) == b"OK"


# --- bugs


class BrokenContext(SSLContext):
    """A context with a bug, which each new connection meets while has_bug is set."""

    has_bug = False

    def wrap_bio(self, *args, **kwargs):
        if self.has_bug:
            raise TypeError("a bug")
        return super().wrap_bio(*args, **kwargs)


@pytest.fixture
def context(fakensqd_certificates):
    context = BrokenContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(fakensqd_certificates.ca)
    return context


@pytest.fixture
def https_producer(fakensqd_certificates, context):
    """A producer whose requests each have a connection of their own."""
    server_context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(*fakensqd_certificates.server())
    served = reply(b"OK", "200 OK", TEXT, "Connection: close")
    with http_peer(lambda asked, sock: served, ssl_context=server_context) as peer:
        yield Producer(
            nsqd_http_addresses=f"https://{peer.address}", http_options={"ssl_context": context}, reconnect_initial=0.01
        )


def test_bug_while_publishing_ends_the_publish_as_unknown(https_producer, context, caplog):
    with https_producer as producer:
        producer.publish("t", b"1")
        context.has_bug = True

        with pytest.raises(NSQUnknownClosed, match="internal error: TypeError"):
            producer.publish("t", b"2", timeout=5)

        context.has_bug = False
        assert producer.publish("t", b"3", timeout=5) == b"OK"
    assert "internal error while publishing" in caplog.text


def test_bug_while_pinging_does_not_end_the_pings(https_producer, context, caplog):
    context.has_bug = True
    with https_producer as producer:
        assert "internal error while connecting: TypeError" in str(producer.stats().failures)
        context.has_bug = False

        assert producer.publish("t", b"x", timeout=5) == b"OK"
    assert "internal error while connecting" in caplog.text


# --- misuse

LOOKUPD = {"lookupd_http_addresses": "host"}
MISUSES = [
    pytest.param({"nsqd_tcp_addresses": "a", "nsqd_http_addresses": "b"}, "has one of the two", id="both"),
    pytest.param({"nsqd_tcp_addresses": "a", "http": True}, "has one of the two", id="tcp, http wanted"),
    pytest.param({"http": True}, "producer has no address", id="no address"),
    pytest.param({"nsqd_http_addresses": []}, "producer has no address", id="none in a list"),
    pytest.param({"nsqd_http_addresses": "ftp://a"}, "scheme must be http or https", id="scheme"),
    pytest.param({"nsqd_http_addresses": "a:0"}, "port 0", id="port"),
    pytest.param({"nsqd_http_addresses": "a", "tls_v1": True}, "tls_v1: of TCP", id="tls of tcp"),
    pytest.param({"nsqd_http_addresses": "a", "connections_per_nsqd": 2}, "connections_per_nsqd: of TCP", id="number"),
    pytest.param({**LOOKUPD, "http_options": {}}, "nor http=True", id="options without http"),
    pytest.param({"nsqd_http_addresses": "a", "http_requests_at_once": 0}, "must be within 1", id="none at once"),
]


@pytest.mark.parametrize(("arguments", "words"), MISUSES)
def test_value_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Producer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"nsqd_http_addresses": 5}, "must be a str, list, tuple or set, not a int", id="addresses"),
        pytest.param({"nsqd_http_addresses": [5]}, "URL must be a str, not 5", id="address"),
        pytest.param({"nsqd_http_addresses": "a", "http_options": 5}, "http_options must be a dict", id="options"),
        pytest.param({**LOOKUPD, "http": {"auth": "x"}}, "options of HTTP are http_options", id="http"),
        pytest.param({"nsqd_http_addresses": "a", "http_options": {"colour": 1}}, "has no option colour", id="option"),
    ],
)
def test_value_of_the_wrong_type_is_refused(arguments, words):
    with pytest.raises(TypeError, match=words):
        Producer(**arguments)


def test_addresses_of_a_set_are_sorted_and_each_is_used_once():
    producer = Producer(nsqd_http_addresses={"b", "a", "http://a:4151"})

    assert producer.addresses == ["a:4151", "b:4151"]


# --- old servers


def old_nsqd(version):
    """Answers as nsqd of this version does to what a Producer asks over HTTP."""

    def serve(request, sock):
        if request.path == "/info":
            info = {"status_code": 200, "status_txt": "OK", "data": {"version": version}}
            return reply(json.dumps(info).encode(), content_type=JSON)
        if request.path in ("/pub", "/mpub") and version == "0.2.21":
            return reply(b"404 page not found\n", "404 Not Found")
        return reply()

    return http_peer(serve)


@pytest.mark.parametrize("version", ["0.2.21", "0.2.22"])
def test_multipublish_to_an_nsqd_without_binary_mpub_is_refused_at_once_and_says_why(version, caplog):
    with old_nsqd(version) as peer, Producer(nsqd_http_addresses=peer.address) as producer:
        for _ in range(2):
            with pytest.raises(
                NSQInvalid, match=rf"nsqd {version} is too old: binary /mpub came with 0\.2\.23; publish"
            ):
                producer.multipublish("t", [b"1\n", b"2"])
        assert producer.publish("t", b"x") == b"OK"

        assert producer.stats().refused == 4
    assert [line for line in peer.lines if "mpub" in line] == []
    assert peer.lines.count("GET /info") == 1
    assert caplog.text == ""


def test_batches_to_an_nsqd_without_binary_mpub_are_published_one_by_one():
    with old_nsqd("0.2.22") as peer, Producer(nsqd_http_addresses=peer.address, batch_messages=2) as producer:
        results = [producer.publish_async("t", b"x") for _ in range(2)]

        assert [result.get(timeout=10) for result in results] == [b"OK"] * 2
    assert peer.lines.count("POST /pub") == 2
    assert "POST /mpub" not in peer.lines


def test_deferred_publish_to_an_nsqd_that_would_ignore_that_is_refused():
    with (
        old_nsqd("0.3.5") as peer,
        Producer(nsqd_http_addresses=peer.address) as producer,
        pytest.raises(NSQInvalid, match=r"nsqd 0\.3\.5 is too old: deferred messages came with 0\.3\.6"),
    ):
        producer.publish("t", b"x", defer=1000)

    assert "POST /pub" not in peer.lines


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(reply(b"", "403 Forbidden"), id="proxy"),
        pytest.param(reply(b'{"version":"tip"}', "200 OK", JSON), id="no numbers"),
        pytest.param(reply(b'{"version":["0.2.21"]}', "200 OK", JSON), id="no text"),
        pytest.param(reply(b'{"version":"0.2.23"}', "200 OK", JSON), id="new enough"),
        pytest.param(reply(b"OK"), id="something else"),
        pytest.param(None, id="no answer"),
    ],
)
def test_multipublish_goes_to_an_nsqd_that_is_new_enough_or_does_not_tell(info):
    def serve(request, sock):
        return info if request.path == "/info" else reply()

    with http_peer(serve) as peer, Producer(nsqd_http_addresses=peer.address) as producer:
        assert producer.multipublish("t", [b"1", b"2"]) == b"OK"


def test_nsqd_that_does_not_tell_its_version_in_time_is_published_to():
    with FakeNsqd() as nsqd, Producer(nsqd_http_addresses=nsqd.http_address, publish_timeout=1.0) as producer:
        nsqd.add(on.http("/info").always(), delay(5.0))
        nsqd.add(on.http("/mpub").always(), delay(0.1))

        assert producer.multipublish("t", [b"1", b"2"]) == b"OK"
        assert producer.stats().unknown == 0


def test_version_is_asked_for_again_after_the_nsqd_has_failed():
    version, exiting = ["0.2.21"], []

    def serve(request, sock):
        if request.path == "/info":
            return reply(json.dumps({"version": version[0]}).encode(), content_type=JSON)
        return reply(EXITING, "503 Service Unavailable", JSON) if request.path == "/pub" and exiting else reply()

    with http_peer(serve) as peer, Producer(nsqd_http_addresses=peer.address, reconnect_initial=0.01) as producer:
        with pytest.raises(NSQInvalid):
            producer.multipublish("t", [b"1"])
        exiting.append(True)
        with pytest.raises(NSQPubFailed):
            producer.publish("t", b"x")
        version[0] = "1.3.0"

        assert producer.multipublish("t", [b"1"]) == b"OK"


# --- the meaning of answers

REFUSALS = [
    pytest.param(413, "MSG_TOO_BIG", NSQBadMessage, id="message"),
    pytest.param(400, "MSG_EMPTY", NSQBadMessage, id="empty"),
    pytest.param(413, "BAD_MESSAGE", NSQBadMessage, id="message of many"),
    pytest.param(413, "BODY_TOO_BIG", NSQBadBody, id="body"),
    pytest.param(413, "BAD_BODY", NSQBadBody, id="broken body"),
    pytest.param(400, "INVALID_TOPIC", NSQBadTopic, id="topic"),
    pytest.param(500, "INVALID_TOPIC", NSQBadTopic, id="topic, old server"),
    pytest.param(400, "INVALID_DEFER", NSQInvalid, id="defer"),
    pytest.param(403, "TLS_REQUIRED", NSQInvalid, id="tls"),
    pytest.param(503, "EXITING", NSQPubFailed, id="exiting"),
]


@pytest.mark.parametrize(("status", "words", "kind"), REFUSALS)
def test_http_error_becomes_the_error_that_tcp_has(status, words, kind):
    error = NSQHttpError(f"http error <{status}> {words}", status, b'{"message":"%s"}' % words.encode())

    refused = refused_error(error)

    assert type(refused) is kind
    assert refused.__cause__ is error
    assert words in str(refused)


def test_exiting_is_named_by_the_kind_of_the_publish():
    error = NSQHttpError("EXITING", 503, EXITING)

    assert type(refused_error(error, multi=True)) is NSQMPubFailed
    assert type(refused_error(error, deferred=True)) is NSQDPubFailed


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405, 407, 429])
def test_rejection_by_a_proxy_is_not_an_error_of_nsqd(status):
    error = NSQHttpError("http error", status, b"<html>no</html>")

    assert is_rejected_before_nsqd(error)
    assert not is_rejected_before_nsqd(NSQHttpError("http error", status, b'{"message":"INVALID_TOPIC"}'))


@pytest.mark.parametrize("status", [400, 411, 413])
def test_http_error_without_nsqds_text_is_named_by_its_status(status):
    error = NSQHttpError("http error", status, b"<html>no</html>")

    assert not is_rejected_before_nsqd(error)
    assert refused_error(error).code == f"HTTP_{status}"


@pytest.mark.parametrize(
    ("status", "body", "up"),
    [(None, b"", False), (502, b"", False), (500, b"NOK - disk", True), (500, b"", False), (404, b"", False)],
)
def test_nok_of_nsqd_answers_a_ping_and_other_errors_do_not(status, body, up):
    assert is_nsqd_response(NSQHttpError("x", status, body)) is up


@pytest.mark.parametrize(
    ("version", "multi", "deferred", "words"),
    [
        pytest.param((0, 2, 22), True, False, "binary /mpub came with 0.2.23", id="no binary mpub"),
        pytest.param((0, 2, 23), True, False, "", id="first binary mpub"),
        pytest.param((0, 3, 5), False, True, "deferred messages came with 0.3.6", id="no defer"),
        pytest.param((0, 3, 6), False, True, "", id="first defer"),
        pytest.param((0, 2, 16), False, False, "", id="plain publish"),
        pytest.param((), True, True, "", id="unknown"),
    ],
)
def test_too_old_names_the_version_that_a_publish_needs(version, multi, deferred, words):
    found = too_old(version, multi=multi, deferred=deferred)

    assert found.startswith(words)
    assert bool(found) is bool(words)
