"""The tables of options agree with the code."""

import importlib
import re

import pytest

from tests.docs.pages import page_text
from tests.helpers import option_rows

TABLES = re.findall(r"<!-- options ([\w.]+) -->\n(.*?)(?=\n\n[^|]|\n\n\Z)", page_text("README.md"), re.DOTALL)


def table(path):
    """Return the table of an options class, from the code."""
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
