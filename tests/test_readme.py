"""The README's examples run, and its tables agree with the code."""

import ast
import importlib
import inspect
import json
import re
import shlex
import signal
import sys
import urllib.request
from pathlib import Path

import prometheus_client
import pytest

from fakensqd import Certificates, FakeAuthServer, FakeCluster, FakeNsqd, Grant
from fakensqd.faults.actions import ACTIONS
from fakensqd.faults.http import STATE_METHODS
from fakensqd.faults.toxics import TOXICS
from gnsq import NsqdHTTPClient
from tests.helpers import bodies, channel_stats, child, option_rows, wait_until

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()
TABLES = re.findall(r"<!-- options ([\w.]+) -->\n(.*?)(?=\n\n[^|]|\n\n\Z)", TEXT, re.DOTALL)


def example(heading, number=0, language="python"):
    """Return a block of code of a section."""
    section = re.split(rf"\n###? {re.escape(heading)}\n", TEXT)[1]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)[number]


def run(code, nsqd):
    names = {}
    exec(compile(code.replace("127.0.0.1:4150", nsqd.tcp_address), str(README), "exec"), names)
    return names


def test_publish_example_publishes_and_shows_the_refusal(fakensqd, capsys):
    run(example("Publish"), fakensqd)

    assert "nsqd has refused it: E_BAD_MESSAGE PUB message too big 2000000 > 1048576" in capsys.readouterr().out
    stats = NsqdHTTPClient.from_url(fakensqd.http_address).stats("clicks")
    assert stats["topics"][0]["message_count"] == 4


def test_tuned_producer_example_publishes(fakensqd):
    section = TEXT.split("\n## Publish\n")[1]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[1]

    producer = run(code.replace("10.0.0.1:4150", fakensqd.tcp_address), fakensqd)["producer"]

    assert producer.publish("clicks", b"1") == b"OK"
    assert producer.close() == []


def test_threaded_producer_example_publishes(fakensqd, capsys):
    section = TEXT.split("\n## Publish\n")[1]

    run(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[2], fakensqd)

    assert capsys.readouterr().out == "nsqd says b'OK'\n"
    assert bodies(fakensqd, "clicks") == [b'{"page": "/"}', b'{"page": "/a"}']


def test_consume_example_consumes_until_it_closes(fakensqd, capsys):
    run(example("Publish"), fakensqd)
    capsys.readouterr()

    run(example("Consume"), fakensqd)

    assert '1 b\'{"page": "/b"}\'' in capsys.readouterr().out
    assert channel_stats(fakensqd, "clicks", "archive")["in_flight_count"] == 0


@pytest.mark.slow
def test_batch_example_inserts_and_keeps_what_it_gives_up(fakensqd, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = NsqdHTTPClient.from_url(fakensqd.http_address)
    client.multipublish("clicks", [b'{"page": "/"}', b"no JSON"])

    consumer = run(example("Ready handlers"), fakensqd)["consumer"]
    wait_until(lambda: list(tmp_path.glob("given-up/*.json")))
    consumer.close()
    consumer.join(10)

    assert "insert [{'page': '/'}]" in capsys.readouterr().out
    (path,) = tmp_path.glob("given-up/*.json")
    assert json.loads(path.read_text())["body"] == "no JSON"
    assert channel_stats(fakensqd, "clicks", "table")["depth"] == 0


@pytest.mark.subprocess
def test_sigterm_example_ends_in_order(fakensqd):
    code = TEXT.split("On SIGTERM a program ends in order with:\n")[1]
    code = re.search(r"```python\n(.*?)```", code, re.DOTALL)[1].replace("127.0.0.1:4150", fakensqd.tcp_address)
    with child(sys.executable, "-c", code) as program:
        wait_until(lambda: "RDY" in fakensqd.transcript.commands())
        program.send_signal(signal.SIGTERM)

        assert program.wait(20) == 0
    assert "CLS" in fakensqd.transcript.commands()


def test_metrics_example_shows_metrics(fakensqd, capsys, monkeypatch):
    ports = []
    monkeypatch.setattr(prometheus_client, "start_http_server", ports.append)
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    NsqdHTTPClient.from_url(fakensqd.http_address).publish("clicks", b"1")
    code = TEXT.split("Metrics and spans:\n")[1]

    with run(re.search(r"```python\n(.*?)```", code, re.DOTALL)[1], fakensqd)["consumer"] as consumer:
        wait_until(lambda: consumer.stats().counts.finished)
        shown = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()

    assert ports == [9100]
    assert "b'1'" in capsys.readouterr().out
    labels = f'channel="shown",nsqd="{fakensqd.tcp_address}",topic="clicks"'
    assert f"gnsq_consumer_messages_finished_total{{{labels}}} 1.0" in shown


def test_layers_example_publishes(tmp_path):
    certificates = Certificates(tmp_path)
    certificate, key = certificates.server()
    code = example("TLS, compression, AUTH").replace("/etc/nsq/ca.pem", certificates.ca)
    grants = {"of the billing service": [Grant(topic="^invoices$")]}

    with FakeAuthServer(grants, threaded=True) as auth:
        options = {"tls_cert": certificate, "tls_key": key, "auth_http_addresses": (auth.http_address,)}
        with FakeNsqd(**options, threaded=True) as running:
            run(code, running)
            (topic,) = NsqdHTTPClient.from_url(running.http_address).stats("invoices")["topics"]

    assert topic["message_count"] == 1


@pytest.mark.parametrize("name", ["test_order_is_announced", "test_order_is_billed"])
def test_fixture_example_passes(fakensqd, name):
    run(example("Test your code with fakensqd"), fakensqd)[name](fakensqd)


@pytest.mark.parametrize("server", [FakeNsqd, FakeCluster])
def test_methods_of_the_table_for_tests_take_its_arguments(server):
    section = TEXT.split("\n## Test your code with fakensqd\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| (`\w+\(.*) \|.*\|$", section, re.MULTILINE)
    calls = [ast.parse(code, mode="eval").body for row in rows for code in re.findall(r"`(\w+\(.*?\))`", row)]

    for call in calls:
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        inspect.signature(getattr(server, call.func.id)).bind(server, *call.args, **arguments)
    assert {call.func.id for call in calls} == {"publish", "messages", "assert_published", "depth", "in_flight"}


def test_faults_example_passes(fakensqd):
    code = TEXT.split("### Faults on demand\n")[1]
    names = run(re.search(r"```python\n(.*?)```", code, re.DOTALL)[1], fakensqd)

    names["test_an_order_is_published_again_when_its_reply_is_lost"](fakensqd)


def test_links_example_runs():
    code = TEXT.split("### Slow links, broken daemons, a clock that tests set\n")[1]
    exec(re.search(r"```python\n(.*?)```", code, re.DOTALL)[1], {})


@pytest.mark.parametrize(("heading", "functions"), [("action | does", ACTIONS), ("toxic | what it does", TOXICS)])
def test_tables_of_faults_have_every_function(heading, functions):
    rows = re.search(rf"^\| {re.escape(heading)} \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)[1]
    first_cells = [row.split(" | ")[0] for row in rows.splitlines()]

    assert {name for cell in first_cells for name in re.findall(r"`(\w+)\(", cell)} == set(functions)


CURL = re.compile(r"^curl .*$", re.MULTILINE)
FAULTS = TEXT.split("### Faults for tests in other languages\n")[1].split("\n## ")[0]


def curl(line, address):
    """Send the request of a curl command; returns its method, its path and the response."""
    words = shlex.split(line, comments=True)[1:]
    options = {words.pop(index): words.pop(index) for index in (words.index(o) for o in ("-X", "-d") if o in words)}
    (url,) = words
    path = url.removeprefix("127.0.0.1:4153")
    method = options.get("-X", "POST" if "-d" in options else "GET")
    data = options["-d"].encode() if "-d" in options else None
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data, method=method)) as answer:
        return method, path.partition("?")[0], json.load(answer)


def test_each_fault_over_http_has_an_example_that_works():
    done = []
    with FakeNsqd(threaded=True, faults_over_http=True) as nsqd:
        for line in CURL.findall(FAULTS):
            method, path, answer = curl(line, nsqd.faults_http_address)
            done.append((method, path))
            if path == "/faults/state":
                assert json.dumps(answer) in line

    assert {path.removeprefix("/faults/") for _, path in done} == {"/faults", "toxics", "state", *STATE_METHODS}
    assert {method for method, path in done if path == "/faults/toxics"} == {"GET", "POST", "DELETE"}
    assert [name for name in TOXICS if f'"toxic": "{name}"' not in FAULTS] == []


def documented(heading):
    """Return the arguments in a table by name; optional ones, which are in brackets, end with a star."""
    rows = re.search(rf"^\| {heading} \|.*\n\|---\|---\|\n((?:\|.*\n)+)", FAULTS, re.MULTILINE)[1]
    found = {}
    for row in rows.splitlines():
        names, arguments = row.strip("| ").split(" | ")
        given = re.findall(r"(\[?)`(\w+)`", re.sub(r"(: |; `)[^;[]*", "", arguments))
        for name in re.findall(r"`(\w+)`", names):
            found[name] = {argument + "*" * bool(bracket) for bracket, argument in given}
    return found


def arguments_of(function):
    parameters = inspect.signature(function).parameters
    given = {name + "*" * (parameter.default is not parameter.empty) for name, parameter in parameters.items()}
    return given - {"self"}


@pytest.mark.parametrize(
    ("heading", "functions"),
    [
        ("action", ACTIONS),
        ("toxic", TOXICS),
        ("state", {name: getattr(FakeNsqd, name) for name in STATE_METHODS}),
    ],
)
def test_arguments_over_http_are_documented_as_they_are(heading, functions):
    assert documented(heading) == {name: arguments_of(function) for name, function in functions.items()}


def test_emulator_example_runs(capsys):
    section = TEXT.split("Without pytest:\n")[1]
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], {})

    assert re.fullmatch(r"127\.0\.0\.1:\d+ 127\.0\.0\.1:\d+\n", capsys.readouterr().out)


def table(path):
    """Return the README's table of an options class, from the code."""
    module, name = path.rsplit(".", 1)
    found = importlib.import_module(module)
    rows = option_rows(getattr(found, name))
    lines = ["| option | default | unit | meaning |", "|---|---|---|---|"]
    lines += [f"| `{option}` | {default} | {unit} | {meaning} |" for option, default, unit, meaning in rows]
    return "\n".join(lines)


@pytest.mark.parametrize(("path", "found"), TABLES, ids=[path for path, _ in TABLES])
def test_option_tables_are_the_codes(path, found):
    assert found.strip() == table(path)


def test_all_options_have_a_table():
    assert {path.rsplit(".", 1)[1] for path, _ in TABLES} >= {
        "ConnectOptions",
        "ConnectionOptions",
        "ConsumerOptions",
        "ProducerOptions",
        "ReadOptions",
        "ReconnectOptions",
        "WriteOptions",
    }
