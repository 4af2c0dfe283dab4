"""The public interface as type checkers see it."""

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from fakensqd import FakeNsqd
from gnsq import Consumer, NsqdHTTPClient, NsqdTCPClient, Producer, signals
from gnsq.census import parse_stats
from gnsq.consumer.options import ConsumerOptions, ConsumerOptionsDict
from gnsq.httpclient import HTTPClient, HttpClientOptionsDict, HttpOptions, HttpOptionsDict
from gnsq.nsqd.pool import ReconnectOptions, ReconnectOptionsDict
from gnsq.options import (
    ConnectionOptions,
    ConnectionOptionsDict,
    MoreConnectionOptionsDict,
    parameters_of,
)
from gnsq.producer.options import ProducerOptions, ProducerOptionsDict
from gnsq.stats import NsqdStats
from tests.docs.pages import blocks, hooks, page_names, pages_run_as_a_whole
from tests.kit import run

OPTIONS = [
    pytest.param(ConnectionOptionsDict, [ConnectionOptions], None, id="connection"),
    pytest.param(MoreConnectionOptionsDict, [ConnectionOptions], NsqdTCPClient, id="NsqdTCPClient"),
    pytest.param(ReconnectOptionsDict, [ReconnectOptions], None, id="reconnect"),
    pytest.param(ConsumerOptionsDict, [ConsumerOptions, ReconnectOptions, ConnectionOptions], Consumer, id="Consumer"),
    pytest.param(ProducerOptionsDict, [ProducerOptions, ReconnectOptions, ConnectionOptions], Producer, id="Producer"),
    pytest.param(HttpOptionsDict, [HttpOptions], HTTPClient, id="HTTPClient"),
]
WIDER = {
    # Values of gnsq 1.0 are taken, too: urllib3's objects, numbers of ssl, paths.
    HttpOptionsDict: {"timeout", "retries", "cert_reqs", "ca_certs", "cert_file", "key_file"},
}


def type_of_keyword(field):
    """Return the type of an option's field, with timedelta if it is a duration."""
    is_duration = field.metadata["unit"] in ("s", "ms")
    return re.sub("^(float|int)", r"\1 | timedelta", field.type) if is_duration else field.type


@pytest.mark.parametrize(("keywords", "options", "owner"), OPTIONS)
def test_typed_keywords_are_the_options_with_their_types(keywords, options, owner):
    wider = WIDER.get(keywords, set())
    parameters = () if owner is None else parameters_of(owner)
    fields = {field.name: type_of_keyword(field) for kind in options for field in dataclasses.fields(kind)}
    expected = {name: kind for name, kind in fields.items() if name not in parameters}
    typed = {name: reference.__forward_arg__ for name, reference in keywords.__annotations__.items()}

    assert typed == {name: typed.get(name) if name in wider else kind for name, kind in expected.items()}
    assert keywords.__required_keys__ == frozenset()
    # Each takes what the option itself takes, and more.
    forms = {name: fields[name].replace("tuple[str, ...]", "Sequence[str]").split(" | ") for name in wider}
    assert all(set(forms[name]) < set(typed[name].split(" | ")) for name in wider)


def test_typed_keywords_of_subclasses_of_http_client_are_those_of_its_constructor():
    own = parameters_of(HTTPClient) - {"host", "port"}

    assert set(HttpClientOptionsDict.__annotations__) == {*HttpOptionsDict.__annotations__, *own}


# --- what nsqd answers ------------------------------------------------------------------------------------------------


def keys_of(kind):
    """Return the keys of a TypedDict, and of those in it by name: all keys, and the required ones."""
    hints = get_type_hints(kind, include_extras=True)
    required = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    found = {kind.__name__: (set(hints), required)}
    todo = list(hints.values())
    while todo:
        inner = todo.pop()
        found |= keys_of(inner) if is_typeddict(inner) else {}
        todo += get_args(inner)
    return found


def test_stats_have_the_typed_keys_and_no_others(fakensqd):
    keys = keys_of(NsqdStats)
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=lambda consumer, message: None)
    with Producer(fakensqd.tcp_address) as producer, consumer:
        producer.publish("t", b"x")
        stats = NsqdHTTPClient.from_url(fakensqd.http_address).stats()
        unknown = NsqdHTTPClient.from_url(fakensqd.http_address).stats("unknown", include_mem=False)

    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    (subscriber,), (publisher,) = channel["clients"], stats["producers"]
    # Only of old servers, with AUTH, and of the other kind of client.
    rare = {"name", "authed", "auth_identity", "auth_identity_url", "pub_counts"}
    assert set(stats) == keys["NsqdStats"][0]
    assert set(stats["memory"]) == keys["NsqdMemoryStats"][0]
    assert set(topic) == keys["NsqdTopicStats"][0]
    assert set(channel) == keys["NsqdChannelStats"][0]
    assert set(subscriber) == keys["NsqdClientStats"][0] - rare
    assert set(publisher) == {*subscriber, "pub_counts"}
    assert set(publisher["pub_counts"][0]) == keys["PublishCount"][0]
    assert set(channel["e2e_processing_latency"]) == keys["NsqdLatencies"][0]
    assert (unknown["topics"], unknown["producers"], "memory" in unknown) == (None, None, False)


def test_old_servers_have_the_keys_that_are_required():
    keys = keys_of(NsqdStats)
    with FakeNsqd(release="0.2.21").in_thread() as nsqd:
        consumer = Consumer("t", "c", nsqd.tcp_address, message_handler=lambda consumer, message: None)
        with Producer(nsqd.tcp_address) as producer, consumer:
            producer.publish("t", b"x")
            stats = NsqdHTTPClient.from_url(nsqd.http_address).stats()

    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    (subscriber,) = channel["clients"]
    found = {"NsqdStats": stats, "NsqdTopicStats": topic, "NsqdChannelStats": channel, "NsqdClientStats": subscriber}
    assert {name: keys[name][1] - set(document) for name, document in found.items()} == {name: set() for name in found}
    assert {name: set(document) - keys[name][0] for name, document in found.items()} == {name: set() for name in found}
    assert parse_stats(stats).counts["t", ""]["message_count"] == 1


# --- signals ----------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
CLIENTS = ["gnsq/signals.py", "gnsq/lifecycle.py", "gnsq/consumer/*.py", "gnsq/producer/*.py"]


def typed_and_sent(patterns):
    """Return the arguments of each signal of classes: by its receivers and by the calls that send it."""
    typed, sent = {}, []
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    for node in [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]:
        match node:
            case ast.AnnAssign(
                target=ast.Attribute(attr=signal),
                annotation=ast.Subscript(value=ast.Name(id="TypedSignal"), slice=ast.Name(id=receiver)),
            ):
                call = inspect.signature(getattr(signals, receiver).__call__)
                typed[signal] = [name for name in call.parameters if name not in ("self", "sender")]
            case ast.Call(func=ast.Name(id="notify"), args=[ast.Attribute(attr=signal), _], keywords=keywords):
                sent.append((signal, [keyword.arg for keyword in keywords]))
            case ast.Call(func=ast.Attribute(attr="send", value=ast.Attribute(attr=signal)), keywords=keywords):
                sent.append((signal, [keyword.arg for keyword in keywords]))
    return typed, [(signal, arguments) for signal, arguments in sent if signal.startswith("on_")]


@pytest.mark.parametrize(
    ("owners", "patterns"),
    [
        pytest.param(["Consumer", "Producer"], CLIENTS, id="clients"),
        pytest.param(["NsqdTCPClient"], ["gnsq/nsqd/tcp.py"], id="tcp"),
    ],
)
def test_signals_are_sent_and_documented_with_the_arguments_of_their_types(owners, patterns):
    typed, sent = typed_and_sent(patterns)
    listed = {
        signal.name: [argument for argument, _ in signal.arguments]
        for signal in hooks.signals()
        if signal.owner in owners
    }

    # These two are for handlers, which gnsq.consumer.Handler types.
    handlers = {"on_message": ["message"], "on_giving_up": ["message"]} if "Consumer" in owners else {}
    assert listed == typed | handlers
    assert len(typed) > 3
    assert {signal for signal, _ in sent} >= typed.keys() - {"on_close"}  # gnsq/lifecycle.py sends that one
    assert [(signal, arguments) for signal, arguments in sent if arguments != typed.get(signal)] == []


# --- what mypy says ---------------------------------------------------------------------------------------------------

SNIPPET = """
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Unpack, assert_type

from gnsq import Consumer, LookupdClient, Message, NsqdHTTPClient, NsqdTCPClient, Producer, PublishResult
from gnsq.consumer import ConsumerOptionsDict, Handler
from gnsq.contrib.batch import BatchHandler
from gnsq.contrib.giveup import NsqdGiveupHandler
from gnsq.contrib.queue import ChannelHandler, QueueHandler
from gnsq.dead_letter import DeadLetter
from gnsq.lookupd import Lookupd
from gnsq.nsqd import Nsqd
from gnsq.producer import Chunk, ProducerOptionsDict, Unconfirmed

async def coroutine(consumer: Consumer, message: Message) -> None: ...
def generator(consumer: Consumer, message: Message) -> Iterator[None]: yield
def false(consumer: Consumer, message: Message) -> bool: return False
def renamed(c: Consumer, m: Message) -> None: ...
def message_only(message: Message) -> None: ...

def plain(consumer: Consumer, message: Message) -> None: ...
def keyword_only(consumer: Consumer, /, *, message: Message, more: int = 0) -> None: ...
def anything(*arguments: object, **keywords: object) -> None: ...
def unannotated(consumer, message): ...  # type: ignore[no-untyped-def]
def failed(consumer: Consumer, message: Message, error: BaseException) -> None: ...
class Object:
    def __call__(self, consumer: Consumer, message: Message) -> None: ...
    def method(self, consumer: Consumer, message: Message) -> None: ...

def give(handler: Handler) -> None:
    consumer = Consumer("t", "c", "nsqd", message_handler=handler)
    consumer.on_message.connect(handler)
    consumer.on_giving_up.connect(handler, weak=False)

def consume(**options: Unpack[ConsumerOptionsDict]) -> Consumer:
    return Consumer("t", "c", "nsqd", **options)

def produce(**options: Unpack[ProducerOptionsDict]) -> Producer:
    return Producer("nsqd", **options)

producer = Producer("nsqd")
result = producer.publish_async("t", b"x")
http = NsqdHTTPClient()
flag = bool(input())
"""
HANDLERS = {
    "wrong": ["coroutine", "generator", "false", "renamed", "message_only"],
    "right": [
        *("plain", "keyword_only", "anything", "unannotated", "Object()", "Object().method", "partial(plain)"),
        *("lambda _, message: message.finish()", "BatchHandler(1, print)", "QueueHandler()", "ChannelHandler()"),
        "NsqdGiveupHandler('t')",
    ],
}
USES = [
    "give({0})",
    "Consumer('t', 'c', message_handler={0})",
    "Consumer('t', 'c').on_message.connect({0})",
]
RIGHT = [
    "assert_type(producer.publish('t', b'x'), bytes)",
    "assert_type(producer.publish('t', b'x', raise_error=False), PublishResult)",
    "assert_type(producer.publish('t', b'x', raise_error=flag), bytes | PublishResult)",
    "assert_type(producer.multipublish('t', [b'x']), bytes)",
    "assert_type(producer.publish_many('t', [b'x']), list[Chunk])",
    "assert_type(producer.close(), list[Unconfirmed])",
    "Consumer('t', 'c', give_up_on=ValueError, retry_on=(OSError, KeyError), max_age=timedelta(days=1))",
    "assert_type(Consumer('t', 'c', dead_letter_topic='d').dead_letter(Message(0, 1, b'', b'')), DeadLetter)",
    "assert_type(result.get(timeout=1.0), bytes)",
    "assert_type(result.wait(1), bytes | None)",
    "assert_type(result.as_future(), Future[bytes])",
    "result.add_done_callback(lambda result: print(result.get()))",
    "assert_type(QueueHandler().get(timeout=1), Message)",
    "assert_type(ChannelHandler().get(), Message)",
    "assert_type(http.stats(text=True), bytes)",
    "[channel['depth'] for topic in http.stats('t')['topics'] or [] for channel in topic['channels']]",
    "Consumer('t', 'c', lookupd_poll_interval=timedelta(minutes=1), close_timeout=timedelta(seconds=5))",
    "Consumer('t', 'c', requeue_delay=lambda attempts: timedelta(seconds=attempts), backoff=2.5)",
    "Nsqd('nsqd'), Lookupd('lookupd')",
    "Consumer('t', 'c', lookupd_http_addresses='l', lookupd_options={'auth': ('user', 'password')})",
    "Producer('nsqd', strategy='round_robin', batch_messages=10, tls_options={'ca_certs': 'ca.pem'}, threaded=True)",
    "NsqdTCPClient('nsqd', 4150, tls_v1=True, tls_options={'cert_reqs': 0}, msg_timeout=5)",
    "NsqdHTTPClient('nsqd', 4151, timeout=5, scheme='https')",
    "LookupdClient.from_url('https://lookupd', timeout=2.0, ca_certs='ca.pem')",
    "consume(concurrency=2), produce(publish_timeout=5)",
    "producer.on_error.connect(lambda sender, error: print(error.fatal), weak=False)",
    "Consumer('t', 'c').on_exception.connect(failed)",
]
WRONG = [
    "producer.publish('t', 'text')",
    "Producer('nsqd', strategy='rnd')",
    "producer.publish('t', b'x').get()",
    "producer.publish_async('t', b'x', dleay=1)",
    "result.add_done_callback(lambda: None)",
    "QueueHandler().get().bdoy",
    "http.stats()['topcis']",
    "http.stats('t')['topics'][0]",
    "Producer('nsqd', stratgy='round_robin')",
    "Producer('nsqd', tls_options={'ca_cert': 'ca.pem'})",
    "Consumer('t', 'c', 'nsqd', concurency=2)",
    "Consumer('t', 'c', 'nsqd', lookupd_options={'paswd': 5})",
    "NsqdTCPClient('nsqd', 4150, tls=True)",
    "NsqdHTTPClient('nsqd', 4151, timeuot=5)",
    "LookupdClient.from_url('lookupd', prot=5)",
    "consume(concurency=2)",
    "producer.on_error.connect(lambda sender, response: None)",
    "Consumer('t', 'c').on_backoff.connect(lambda sender, phase: None)",
]


# As in the tests of another project.
TEST_OF_A_USER = """
from typing import assert_type

from fakensqd import FakeAuthServer, FakeCluster, FakeNsqd, Grant, Relay, Transcript, on
from fakensqd.faults import disconnect, error
from fakensqd.server import ServerThread


def test_fixture(fakensqd: FakeNsqd) -> None:
    assert_type(fakensqd.messages("orders"), list[bytes])
    assert_type(fakensqd.wait_until(lambda nsqd: nsqd.depth("orders"), 3, timeout=1.0), int)
    assert_type(fakensqd.transcript, Transcript)
    fakensqd.publish("orders", b"42", b"43", delay=1.5)
    fakensqd.assert_published("orders", lambda body: body.startswith(b"4"), json={"id": 42})
    assert_type(fakensqd.transcript.finished("orders"), list[bytes])
    with fakensqd.add(on.reply("PUB", topic="orders").nth(2), disconnect()) as added:
        assert_type(added.fired, int)


def test_threads() -> None:
    with FakeAuthServer({"secret": [Grant()]}).in_thread() as auth, Relay(auth.http_address).in_thread() as relay:
        assert_type(relay.address, str)
    with FakeCluster(nsqds=1, msg_timeout=1.0).in_thread() as cluster:
        assert_type(cluster, FakeCluster)
    thread = ServerThread(FakeNsqd())
    with thread as running:
        assert_type(running, FakeNsqd)
        assert_type(thread.call(max, 1, 2), int)
"""
# Each with the code of its error.
WRONG_IN_A_TEST = [
    ("fakensqd.publish('orders', '42')", "arg-type"),
    ("fakensqd.publish('orders', b'42', defer=1)", "call-arg"),
    ("fakensqd.assert_published('orders', '42')", "arg-type"),
    ("fakensqd.wait_until(lambda nsqd: nsqd.no_such_thing)", "attr-defined"),
    ("FakeNsqd().in_thread().start().no_such_thing", "attr-defined"),
    ("FakeAuthServer(thread=True)", "call-arg"),
    ("fakecluster.messages(1)", "arg-type"),
    ("on.frame('pong')", "arg-type"),
    ("on.reply('PUBB')", "arg-type"),
    ("error('E_NOPE')", "arg-type"),
]


@pytest.fixture(scope="module")
def mypy(tmp_path_factory, mypy_cache):
    """Run mypy --strict once over the uses and all Python blocks of the pages; returns what it says."""
    pytest.importorskip("mypy")
    path = tmp_path_factory.mktemp("mypy")
    uses = {kind: [use.format(name) for name in names for use in USES] for kind, names in HANDLERS.items()}
    right = [*RIGHT, *uses["right"]]
    wrong = [*WRONG, *uses["wrong"]]
    (path / "uses.py").write_text("\n".join([SNIPPET.strip(), *right, *wrong, ""]))
    signature = "def test_wrong(fakensqd: FakeNsqd, fakecluster: FakeCluster) -> None:"
    wrong_in_a_test = [signature, *(f"    {line}" for line, _ in WRONG_IN_A_TEST)]
    (path / "test_orders.py").write_text("\n".join([*TEST_OF_A_USER.splitlines(), *wrong_in_a_test, ""]))
    # Blocks of pages that run as a whole may use names of earlier blocks.
    pages = sorted({*page_names()} - pages_run_as_a_whole())
    for block in (block for page in pages for block in blocks(page) if block.language == "python"):
        name = re.sub(r"\W", "_", block.page.removesuffix(".md"))
        (path / f"page_{name}_{block.line}.py").write_text(block.code)
    # These have neither types nor a mark that says so.
    untyped = "[mypy-gevent.*,asyncnsq.*,nsq.*,pyarrow.*]\nignore_missing_imports = true\n"
    settings = f"[mypy]\nstrict = true\nfollow_imports = silent\n{untyped}"
    (path / "mypy.ini").write_text(settings)

    options = [f"--config-file={path / 'mypy.ini'}", f"--cache-dir={mypy_cache('mypy-strict')}", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, sorted(path.glob("*.py")))]
    # A limit of its processor time: how long that takes depends on what else the machine does.
    done = run("sh", "-c", 'ulimit -t 110; exec "$@"', "sh", *command, limit=600)
    assert (done.stderr, done.returncode) == ("", 1), "mypy has not ended by itself with errors"
    # mypy repeats errors from its cache with the folder of an earlier run.
    return right, wrong, re.sub(r"^\S*/(?=\w+\.py:)", "", done.stdout, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_types_refuse_the_wrong_uses_and_take_the_right_ones(mypy):
    right, wrong, said = mypy
    first = len(SNIPPET.strip().splitlines()) + 1
    found = {int(number) - first for number in re.findall(r"uses\.py:(\d+): error", said)}

    all_uses = [*right, *wrong]
    assert [all_uses[number] if number >= 0 else number for number in sorted(found)] == wrong, said


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_wrong_uses_in_a_test_of_a_user_are_errors_and_the_examples_of_the_pages_are_not(mypy):
    _, _, said = mypy
    assert [line for line in said.splitlines() if line.startswith("page_")] == []
    found = re.findall(r"^test_orders\.py:(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE)
    first = len(TEST_OF_A_USER.splitlines()) + 2

    assert found == [(str(first + index), code) for index, (_, code) in enumerate(WRONG_IN_A_TEST)]
