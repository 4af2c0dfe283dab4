"""The examples for fakensqd run, and its tables agree with the code."""

import ast
import inspect
import json
import re
import shlex
import urllib.error
import urllib.request

import pytest

from fakensqd import FakeCluster, FakeNsqd
from fakensqd.faults.actions import ACTIONS
from fakensqd.faults.http import STATE_METHODS
from fakensqd.faults.toxics import TOXICS
from tests.docs.pages import example, run, table


@pytest.mark.parametrize("server", [FakeNsqd, FakeCluster])
def test_methods_of_the_table_for_tests_take_its_arguments(server):
    rows = table("reference/api/fakensqd.md", "Fixtures", "method")
    calls = [ast.parse(code, mode="eval").body for row in rows for code in re.findall(r"`(\w+\(.*?\))`", row[0])]

    for call in calls:
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        inspect.signature(getattr(server, call.func.id)).bind(server, *call.args, **arguments)
    assert {call.func.id for call in calls} == {"publish", "messages", "assert_published", "depth", "in_flight"}


def test_faults_example_passes(fakensqd):
    names = run(example("fakensqd/faults.md", "Rules"), fakensqd)

    names["test_an_order_is_published_again_when_its_reply_is_lost"](fakensqd)


def test_links_example_runs():
    exec(example("fakensqd/clock.md", "A clock that tests set"), {})


@pytest.mark.parametrize(
    ("heading", "column", "functions"),
    [
        ("Actions", "action", ACTIONS),
        ("Toxics", "toxic", TOXICS),
    ],
)
def test_tables_of_faults_have_every_function(heading, column, functions):
    cells = [row[0] for row in table("fakensqd/faults.md", heading, column)]

    assert {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)} == set(functions)


CURL = re.compile(r"^curl (?:[^'\n#]|'[^']*')*", re.MULTILINE)
CURLS = example("fakensqd/other-languages.md", "Requests", language="sh").replace("\\\n", "")


def curl(line, address):
    """Send the request of a curl command; returns its method, its path and the response."""
    words = shlex.split(line, comments=True)[1:]
    options = {words.pop(index): words.pop(index) for index in (words.index(o) for o in ("-X", "-d") if o in words)}
    (url,) = words
    path = url.removeprefix("127.0.0.1:4153")
    method = options.get("-X", "POST" if "-d" in options else "GET")
    data = options["-d"].encode() if "-d" in options else None
    try:
        answer = urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data, method=method))
    except urllib.error.HTTPError as error:
        if (error.code, path) != (409, "/faults/reset"):
            raise
        answer = error  # the rule of the page has not acted when the server is reset
    with answer:
        return method, path.partition("?")[0], json.load(answer)


def test_each_fault_over_http_has_an_example_that_works():
    done = []
    nsqd = FakeNsqd(faults_over_http=True).in_thread().start()
    for line in CURL.findall(CURLS):
        method, path, answer = curl(line, nsqd.faults_http_address)
        done.append((method, path))
        if path == "/faults/state":
            assert json.dumps(answer) in CURLS.replace("\n# ", " ")

    nsqd.stop()
    assert {path.removeprefix("/faults/") for _, path in done} == {"/faults", "toxics", "state", *STATE_METHODS}
    assert {method for method, path in done if path == "/faults/toxics"} == {"GET", "POST", "DELETE"}
    assert [name for name in TOXICS if f'"toxic": "{name}"' not in CURLS] == []


def documented(column):
    """Return the arguments in a table by name; optional ones, which are in brackets, end with a star."""
    found = {}
    for names, arguments in table("fakensqd/other-languages.md", "Faults for tests in other languages", column):
        given = re.findall(r"(\[?)`(\w+)`", re.sub(r"(: |; `)[^;[]*", "", arguments))
        for name in re.findall(r"`(\w+)`", names):
            found[name] = {argument + "*" * bool(bracket) for bracket, argument in given}
    return found


def arguments_of(function):
    parameters = inspect.signature(function).parameters
    given = {name + "*" * (parameter.default is not parameter.empty) for name, parameter in parameters.items()}
    return given - {"self"}


@pytest.mark.parametrize(
    ("column", "functions"),
    [
        ("action", ACTIONS),
        ("toxic", TOXICS),
        ("state", {name: getattr(FakeNsqd, name) for name in STATE_METHODS}),
    ],
)
def test_arguments_over_http_are_documented_as_they_are(column, functions):
    assert documented(column) == {name: arguments_of(function) for name, function in functions.items()}


def test_emulator_example_runs(capsys):
    exec(example("reference/api/fakensqd.md", "Without pytest"), {})

    assert re.fullmatch(r"127\.0\.0\.1:\d+ 127\.0\.0\.1:\d+\n", capsys.readouterr().out)


def test_readme_example_passes(fakensqd):
    names = run(example("README.md", "Test"), fakensqd)

    names["test_order_is_published_again_if_the_reply_is_lost"](fakensqd)
