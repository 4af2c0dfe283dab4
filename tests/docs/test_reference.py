"""The reference has every public name, option, error, metric and field of progress."""

import ast
import functools
import importlib
import re

import pytest

from gnsq.errors import ERROR_CODES
from tests.docs.pages import ROOT, hooks, page_names, page_text, table

pytest.importorskip("pyspark")  # the reference has the options and errors of gnsq.spark

REFERENCE = {page: page_text(page) for page in page_names() if page.startswith("reference/")}


@functools.cache
def classes():
    """Return all classes of gnsq, as nodes of its source."""
    paths = (ROOT / "gnsq").rglob("*.py")
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def named(path):
    """Return the object with a dotted name: a module, or an attribute of a module."""
    module, _, attribute = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), attribute)


def documented():
    """Return the names after ``:::`` in all pages, in place of a module its members, if some are chosen."""
    for block in re.split("^::: ", "\n".join(REFERENCE.values()), flags=re.MULTILINE)[1:]:
        (name,) = re.findall(r"\A[\w.]+", block)
        members = re.search(r"\A.*\n    options:\n(?:      .*\n)*?      members: \[(.*)\]", block)
        yield from (f"{name}.{member}" for member in members[1].split(", ")) if members else [name]


DOCUMENTED = sorted(documented())
MODULES = [
    "gnsq",
    *("gnsq.consumer", "gnsq.producer", "gnsq.errors", "gnsq.signals", "gnsq.stats", "gnsq.contrib.batch"),
    *("gnsq.dead_letter", "gnsq.contrib.giveup", "gnsq.contrib.health"),
    *("gnsq.contrib.prometheus", "gnsq.contrib.queue", "gnsq.contrib.sentry"),
    *("gnsq.spark", "gnsq.spark.pipeline"),
    *("fakensqd", "fakensqd.faults", "fakensqd.faults.toxics", "fakensqd.pytest_plugin"),
]
# In the page of options, or names that are the same as others.
ELSEWHERE = {
    *("ConsumerOptions", "ConsumerOptionsDict", "ProducerOptions", "ProducerOptionsDict"),
    *("__version__", "errors", "faults", "protocol", "states", "util", "Match"),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_name_exists(name):
    assert named(name)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_in_the_reference(name):
    shown = [named(path) for path in DOCUMENTED]
    public = {each: getattr(named(name), each) for each in named(name).__all__ if each not in ELSEWHERE}

    def is_shown(value):
        return value in shown or named(getattr(value, "__module__", "builtins")) in shown

    assert named(name) in shown or [each for each, value in public.items() if not is_shown(value)] == []


def test_all_options_have_a_table():
    shown = set(re.findall(r"generated: options ([\w.]+) ", REFERENCE["reference/options.md"]))
    bases = {"Options", "ConnectOptions"}
    found = {node.name for node in classes() if bases & {getattr(base, "id", "") for base in node.bases}}

    assert {path.rpartition(".")[2] for path in shown} >= found | bases - {"Options"}


def exceptions():
    """Return the names of all public subclasses of NSQException."""
    bases = {node.name: {getattr(base, "id", "") for base in node.bases} for node in classes()}
    found = {"NSQException"}
    while more := {name for name, named in bases.items() if named & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")}


def test_all_exceptions_have_a_row():
    shown = hooks.generated(REFERENCE["reference/api/errors.md"])

    assert len(exceptions()) > 40
    assert [name for name in exceptions() if f"| `{name}` " not in shown] == []
    assert [code.decode() for code in ERROR_CODES if f"| `{code.decode()}` |" not in shown] == []


def test_error_without_advice_raises():
    with pytest.raises(ValueError, match="ValueError has no paragraph"):
        hooks.error_texts(ValueError)


def test_fields_of_progress_are_those_of_the_source():
    planner = ast.parse((ROOT / "gnsq/spark/source/planner.py").read_text())
    (progress,) = [node for node in ast.walk(planner) if getattr(node, "name", "") == "progress"]
    nodes = list(ast.walk(progress))
    keys = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.slice for node in nodes if isinstance(node, ast.Subscript) and node.value.id == "backlog"]

    shown = [row[0].strip("`") for row in table("reference/metrics.md", "Pipeline", "field")]
    assert shown == [key.value for key in keys]


def test_cells_of_tables_are_escaped_and_name_their_column():
    text = hooks._table(["a", "b", "c"], [["x | *y* <z> `<b> * | c`", "y", ""]])

    assert r'| x \| \*y\* &lt;z> `<b> * \| c` | y { data-column="b" } |  |' in text
