"""One known secret in each argument, also in wrong ones: no text, repr or local variable of a traceback has it."""

import logging
import pprint
import traceback

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fakensqd import FakeAuthServer, FakeCluster, FakeNsqd
from fakensqd.nsqd.auth import Grant
from gnsq import Consumer, LookupdClient, NsqdHTTPClient, NsqdTCPClient, Producer
from gnsq.contrib.prometheus import StatsCollector
from gnsq.errors import NSQException, NSQHttpError
from gnsq.protocol.frames import RESPONSE, encode_frame
from tests.kit import peer, refused_port
from tests.kit.commands import command

SECRET = "pw-8f3a1c"
URL = f"http://user:{SECRET}@127.0.0.1:4161"
ADDRESS = f"user:{SECRET}@127.0.0.1"
QUERY_URL = f"http://127.0.0.1:4161/?token={SECRET}"


def texts_of(error):
    """All that a crash report shows of an error and its causes, with the local variables of all but the test itself."""
    seen, errors = [], [error]
    while errors:
        error = errors.pop()
        if error is None or error in seen:
            continue
        seen.append(error)
        errors.append(error.__cause__ if error.__suppress_context__ else error.__context__)
        yield str(error)
        yield repr(error)
        yield pprint.pformat(vars(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename != __file__:
                for name, value in frame.f_locals.items():
                    yield f"{frame.f_code.co_qualname}: {name} = {value!r}"


def shown_by(call, expected=Exception):
    """Return the texts of an error that a call raises, or the reprs of its result."""
    try:
        made = call()
    except expected as error:
        return list(texts_of(error))
    reprs = [repr(made), str(made)]
    return reprs + [f"{name}: {getattr(made, name)!r}" for name in ("options", "lookupds") if hasattr(made, name)]


HTTP = [
    {"auth": ("user", SECRET)},
    {"auth": SECRET},
    {"auth": f"{SECRET}\n"},
    {"auth": ("user", SECRET.encode())},
    {"headers": {"Authorization": SECRET}},
    {"headers": {"Authorization": f"{SECRET}\n"}},
    {"headers": {"Authorization": SECRET.encode()}},
    {"headers": SECRET},
    {"key_password": SECRET, "cert_file": "missing", "ca_certs": "missing"},
    {"key_password": [SECRET]},
    {"ssl_context": SECRET},
    {"query": f"token={SECRET}"},
    {"query": f"token= {SECRET}"},
    {"query": [SECRET]},
]
CONNECTION = [
    {"auth_secret": SECRET.encode()},
    {"auth_secret": SECRET},
    {"auth_secret": [SECRET]},
    {"auth_secret": f"{SECRET}\ud800"},
    {"tls_v1": True, "tls_options": {"key_password": SECRET, "certfile": "missing"}},
    {"tls_v1": True, "tls_options": {"key_password": [SECRET]}},
    {"tls_v1": True, "tls_options": {"password": SECRET}},
    {"tls_v1": True, "tls_options": SECRET},
    {"tls_v1": True, "tls_options": [("key_password", SECRET)]},
    {"tls_options": {"key_password": SECRET}},
    {"tls_context": SECRET},
    {"unknown": SECRET},
]
ADDRESSES = [
    QUERY_URL,
    f"{QUERY_URL} x",
    f"{QUERY_URL}#x",
    QUERY_URL.replace("4161", "x"),
    *[f"http://user:{start}{SECRET}@host" for start in ("1?", "1#", "1/", "x?", "x#", "x/")],
    f"ftp://user:{SECRET}@host:1",
    f"user:{SECRET}@ho st:1",
    f"{URL}x",
    f"{ADDRESS}:4150",
    [URL],
    {URL: 1},
    URL.encode(),
    [[URL]],
]
# Each of these ends the constructor late or not at all.
BESIDE = [{}, {"timeout": -1}, {"misspelt": 1}]
CONSUMER = [
    *CONNECTION,
    *({"lookupd_options": options} for options in HTTP),
    {"lookupd_options": SECRET},
    {"lookupd_options": [("auth", SECRET)]},
    *({"nsqd_tcp_addresses": addresses} for addresses in ADDRESSES),
    *({"lookupd_http_addresses": addresses} for addresses in ADDRESSES),
]


def consumer(options):
    given = {"topic": "t", "channel": "c", "message_handler": lambda consumer, message: None, **options}
    if "lookupd_http_addresses" not in given:
        given.setdefault("nsqd_tcp_addresses", "127.0.0.1:4150")
    return Consumer(**given)


def producer(options):
    if "lookupd_http_addresses" not in options:
        options = {"nsqd_tcp_addresses": "127.0.0.1:4150", **options}
    return Producer(**options)


CONSTRUCTORS = [
    *((consumer, options) for options in [*CONSUMER, {"channel": ADDRESS}, {"topic": URL}]),
    *((producer, options) for options in CONSUMER),
    *((lambda options: NsqdTCPClient("127.0.0.1", 4150, **options), options) for options in CONNECTION),
    *((lambda address: NsqdTCPClient(address, 4150), address) for address in ADDRESSES),
    *((lambda options: NsqdHTTPClient("127.0.0.1", 4151, **options), options) for options in HTTP),
    *((lambda address: NsqdHTTPClient(address, 4151), address) for address in ADDRESSES),
    *((NsqdHTTPClient.from_url, address) for address in ADDRESSES),
    *((LookupdClient.from_url, address) for address in ADDRESSES),
    *((lambda address: NsqdHTTPClient.from_url(address, auth=("u", "v")), address) for address in ADDRESSES),
    *((lambda address: FakeNsqd(auth_http_addresses=address), address) for address in ADDRESSES),
    *((lambda address: FakeNsqd(auth_http_addresses=address, misspelt=1), address) for address in ADDRESSES),
    *((lambda address: FakeCluster(auth_http_addresses=address, misspelt=1), address) for address in ADDRESSES),
    (lambda address: FakeNsqd(tcp_address=address), ADDRESS),
    *((FakeAuthServer, grants) for grants in [{SECRET: Grant()}, {SECRET: 1}, [SECRET], SECRET]),
]


def test_no_constructor_shows_a_secret():
    leaks = []
    for make, argument in CONSTRUCTORS:
        for beside in BESIDE if isinstance(argument, dict) and make is not FakeNsqd else [{}]:
            given = {**argument, **beside} if isinstance(argument, dict) else argument
            leaks += [text for text in shown_by(lambda: make(given)) if SECRET in text]  # noqa: B023  # called at once

    assert "\n".join(sorted(set(leaks))) == ""


# --- at run time


def refuses_auth(sock):
    """An nsqd that requires AUTH, and ends the connection instead of answering it."""
    sock.recv(4096)
    sock.sendall(encode_frame(RESPONSE, b'{"auth_required": true, "max_rdy_count": 2500}'))
    sock.recv(4096)


@pytest.fixture(params=["refused", "closed"])
def auth_nsqd(request):
    """The address of an nsqd that does not accept the secret."""
    if request.param == "closed":
        with peer(refuses_auth) as address:
            yield address
        return
    with FakeAuthServer() as auth, FakeNsqd(auth_http_addresses=auth.http_address, record=True) as nsqd:
        yield nsqd.tcp_address
        assert "command AUTH ..." in nsqd.transcript.text()
        assert SECRET not in nsqd.transcript.text()


@pytest.fixture
def logged():
    """The whole log, with the tracebacks in it."""
    logger, written = logging.getLogger(), []  # urllib3 logs URLs, too

    class Handler(logging.Handler):
        def emit(self, record):
            written.extend((record.getMessage(), repr(vars(record))))
            if record.exc_info:
                written.extend(texts_of(record.exc_info[1]))

    handler, level = Handler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_refused_auth_shows_no_secret(auth_nsqd, logged):
    host, port = auth_nsqd.split(":")
    options = {"auth_secret": SECRET, "timeout": 1}
    events = []

    def connect():
        client = NsqdTCPClient(host, int(port), **options)
        client.connect()
        client.identify()

    def publish():
        with Producer(auth_nsqd, **options) as client:
            client.on_error.connect(lambda sender, error: events.extend(texts_of(error)), weak=False)
            try:
                client.publish("t", b"1", timeout=0.3)
            finally:
                events.append(repr(client.stats()))
                events.append(generate_latest(_registry(client)).decode())

    def consume():
        with Consumer("t", "c", auth_nsqd, message_handler=lambda consumer, message: None, **options) as client:
            client.on_error.connect(lambda sender, error: events.extend(texts_of(error)), weak=False)
            events.append(repr(client.stats()))
            events.append(generate_latest(_registry(client)).decode())

    texts = [text for call in (connect, publish, consume) for text in shown_by(call, NSQException)]

    assert logged
    assert [text for text in [*texts, *logged, *events] if SECRET in text] == []


def _registry(client):
    registry = CollectorRegistry()
    registry.register(StatsCollector(client))
    return registry


@pytest.mark.parametrize(
    "options", [{"auth": ("user", SECRET)}, {"headers": {"X-Key": SECRET}}, {"query": f"token={SECRET}"}]
)
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 500 no\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1",
        f"HTTP/1.1 301 moved\r\nLocation: http://u:{SECRET}@host/ping?token={SECRET}\r\n\r\n".encode(),
    ],
)
def test_failed_request_shows_no_password(answer, options, logged):
    def reply(sock):
        sock.recv(4096)
        sock.sendall(answer)

    with peer(reply) as address:
        texts = shown_by(lambda: NsqdHTTPClient.from_url(address, retries=0, timeout=1, **options).ping(), NSQHttpError)

    assert texts
    assert [text for text in [*texts, *logged] if SECRET in text] == []


@pytest.mark.parametrize(
    "words",
    [
        "stats --nsqd 127.0.0.1:1 --nsqd-http URLx",
        "stats --lookupd URL",
        "tail t --lookupd URL",
        "tail t --nsqd USER",
        "tail USER --nsqd 127.0.0.1:1",
        "ping --nsqd 127.0.0.1:1 --nsqd-http URL",
        "ping --lookupd URL --json",
        "topic delete t --yes --lookupd URL",
    ],
)
def test_no_command_shows_a_password(words):
    url = f"http://user:{SECRET}@127.0.0.1:{refused_port()}/?token={SECRET}"

    result = command(*words.replace("URL", url).replace("USER", ADDRESS).split(), "-vv")

    assert result.exit_code != 0
    assert SECRET not in result.stdout + result.stderr


def test_error_of_a_client_leaves_the_exception_that_its_caller_handles():
    def rows():
        try:
            row = b"broken"
            int(row, 10)
        except ValueError as error:
            yield error
            yield b"next"

    suspended = rows()
    error = next(suspended)
    try:
        raise error
    except ValueError:
        with pytest.raises(ValueError, match="no address"):
            Consumer("t", "c", auth_secret=SECRET)

    variables = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert variables[-1]["row"] == b"broken"
    assert list(suspended) == [b"next"]  # to clear the frame of a generator ends it
