"""Each error of nsqd, in response to each command: Producer and Consumer do what the table in the guide says."""

import re

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeNsqd, Grant
from fakensqd.faults import error, on
from gnsq import Consumer, Producer
from gnsq.errors import ERROR_CODES, NSQException, NSQNotSent, NSQUnauthorized, NSQUnknown
from tests.docs.pages import table
from tests.kit import LIMIT, first_of

# Codes that answer FIN, REQ and TOUCH, under their names of all times.
OF_MESSAGES = {code for code, kind in ERROR_CODES.items() if not kind.fatal}
CODES = sorted(code.decode() for code in ERROR_CODES if code not in OF_MESSAGES)
TTL = 60


@pytest.fixture
def auth():
    with FakeAuthServer({"s": [Grant()]}, ttl=TTL) as made:
        yield made


@pytest.fixture
def nsqd(clock, auth):
    with FakeNsqd(clock=clock, record=True, auth_http_addresses=auth.http_address) as made:
        yield made


@pytest.fixture
def producer(clock, nsqd):
    made = Producer(nsqd.tcp_address, clock=clock, auth_secret=b"s")
    yield made
    closing = gevent.spawn(made.close, 0)
    clock.advance(3.0)
    closing.get(timeout=LIMIT)


def outcome(producer, clock, *, method="publish", body=b"1", seconds=5.0, topic="t"):
    """Publish with a timeout of 4 s; returns b"OK", or the error."""

    def publish():
        try:
            return getattr(producer, method)(topic, body, timeout=4.0)
        except NSQException as raised:
            return raised

    job = gevent.spawn(publish)
    clock.advance(seconds)
    return job.get(timeout=LIMIT)


def rows():
    """Rows of the table: the code, the text of nsqd or "", and the cells of the other columns."""
    found = []
    for answer, *cells in table("guides/producing.md", "Errors of nsqd", "nsqd responds with"):
        named = re.findall(r'(E_\w+)(?: "([^"]*)")?', answer)
        known = {code for code, *_ in found}
        found += [(code, text, *cells) for code, text in named or [(code, "") for code in CODES if code not in known]]
    return found


ROWS = rows()


def column(number, only=""):
    return [pytest.param(row[0], row[1], row[number], id=" ".join(row[:2])) for row in ROWS if only in row[number]]


def test_table_has_all_codes():
    assert {code for code, *_ in ROWS} == set(CODES)


@pytest.mark.parametrize("command", ["IDENTIFY", "AUTH"])
@pytest.mark.parametrize(("code", "text", "cell"), column(2))
def test_error_at_connecting(producer, nsqd, clock, command, code, text, cell):
    nsqd.add(on.command(command).first(2), error(code, text))

    assert (outcome(producer, clock), cell) == (b"OK", "connects again")


@pytest.mark.parametrize(("code", "text", "cell"), column(3))
def test_error_at_sub(nsqd, clock, code, text, cell):
    nsqd.add(on.command("SUB").first(2), error(code, text))
    nsqd.broker.ensure_topic("t").publish([b"1"], nsqd.now())
    bodies = []
    consumer = Consumer(
        *("t", "c", nsqd.tcp_address),
        message_handler=lambda consumer, message: bodies.append(message.body),
        clock=clock,
        auth_secret=b"s",
        reconnect_initial=1,
    )
    consumer.start(block=False)
    clock.advance(10.0)

    assert (bodies, cell) == ([b"1"], "connects again")
    consumer.close()
    clock.advance(1.0)


METHODS = {"PUB": ("publish", b"1"), "MPUB": ("multipublish", [b"1", b"2"])}


def methods(codes):
    """Add the commands that get each error."""
    return [
        pytest.param(command, *case.values, id=f"{case.id} {command}")
        for case in codes
        for command in METHODS
        if case.values[0] != "E_MPUB_FAILED" or command == "MPUB"
    ]


@pytest.mark.parametrize(("command", "code", "text", "cell"), methods(column(4)))
def test_error_at_a_publish_that_happens_once(producer, nsqd, clock, command, code, text, cell):
    nsqd.add(on.command(command).first(1), error(code, text))
    method, body = METHODS[command]

    got = outcome(producer, clock, method=method, body=body)

    sent = len(nsqd.transcript.select("command", name=command))
    if "published again" in cell:
        assert (got, sent) == (b"OK", 2)
    else:
        assert cell in ("refused", "unknown")
        assert isinstance(got, NSQUnknown if cell == "unknown" else ERROR_CODES[code.encode()])
        assert sent == 1


@pytest.mark.parametrize(("command", "code", "text", "cell"), methods(column(4, "published again")))
def test_error_at_a_publish_that_stays(producer, nsqd, clock, command, code, text, cell):
    nsqd.add(on.command(command).always(), error(code, text))
    method, body = METHODS[command]

    got = outcome(producer, clock, method=method, body=body)

    sent = len(nsqd.transcript.select("command", name=command))
    if "until the deadline" in cell:
        assert isinstance(got, NSQNotSent)
        assert sent > 2
    else:
        assert isinstance(got, ERROR_CODES[code.encode()])
        assert sent == 2


# --- a grant that expires during a connection


def test_auth_server_that_is_away_when_a_grant_expires_fails_no_publish(producer, nsqd, auth, clock):
    assert outcome(producer, clock) == b"OK"
    clock.advance(TTL)
    auth.stop()
    gevent.spawn(clock.call_later, 1.5, auth.start)

    assert outcome(producer, clock, body=b"2") == b"OK"

    assert nsqd.messages("t") == [b"1", b"2"]


def test_auth_server_that_stays_away_leaves_a_publish_not_sent(producer, nsqd, auth, clock):
    assert outcome(producer, clock) == b"OK"
    clock.advance(TTL)
    auth.stop()

    got = outcome(producer, clock, body=b"2")

    assert isinstance(got, NSQNotSent)
    assert "E_AUTH_FAILED" in str(got)
    assert nsqd.messages("t") == [b"1"]


def test_auth_server_that_takes_a_grant_away_refuses_a_publish(producer, nsqd, auth, clock):
    assert outcome(producer, clock) == b"OK"
    clock.advance(TTL)
    auth.set_grants("s", [Grant(topic="^other$")])

    assert isinstance(outcome(producer, clock, body=b"2"), NSQUnauthorized)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_refused_publish_tells_whose_secret_it_is(producer, auth, clock, method):
    auth.set_grants("s", [Grant(topic="^other$"), Grant(topic="^another$")])

    got = outcome(producer, clock, method=method[0], body=method[1])

    assert isinstance(got, NSQUnauthorized)
    assert "(the secret has identity s, 2 permissions; the auth server has the list, nsqd does not tell it)" in str(got)


def test_other_nsqd_takes_what_an_expired_grant_has_refused(nsqd, auth, clock):
    with FakeNsqd(clock=clock, record=True) as other:
        addresses, strategy = [nsqd.tcp_address, other.tcp_address], first_of([nsqd, other])
        producer = Producer(addresses, clock=clock, auth_secret=b"s", strategy=strategy)
        assert outcome(producer, clock) == b"OK"
        clock.advance(TTL)
        auth.stop()

        assert outcome(producer, clock, body=b"2") == b"OK"

        assert b"2" in other.messages("t")
        closing = gevent.spawn(producer.close, 0)
        clock.advance(3.0)
        closing.get(timeout=LIMIT)
