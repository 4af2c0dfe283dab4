"""The examples for fakensqd run, and its tables agree with the code."""

import ast
import inspect
import re

import pytest

from fakensqd import FakeCluster, FakeNsqd
from fakensqd.faults import actions, toxics
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

    names["test_a_rule_can_be_asked_whether_it_acted"](fakensqd)


@pytest.mark.parametrize(
    ("heading", "column", "functions"),
    [
        ("Actions", "action", actions.__all__),
        ("Toxics", "toxic", [name for name in toxics.__all__ if name.islower()]),
    ],
)
def test_tables_of_faults_have_every_function(heading, column, functions):
    cells = [row[0] for row in table("fakensqd/faults.md", heading, column)]

    assert {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)} == set(functions)


def test_readme_example_passes(fakensqd):
    names = run(example("README.md", "Test"), fakensqd)

    names["test_order_is_published_again_if_the_reply_is_lost"](fakensqd)
