"""Each block of code in README.md and the pages runs in a test, or a comment before it says why not."""

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, RUN, blocks, example, hooks, page_names, page_text, pages_run_as_a_whole

# What a screen of 1280 pixels has room for; docs/pages/ruff.toml has the same.
MAX_COLUMNS = 84
# Output and logs, which are as long as programs write them: extra.css wraps text, and tables scroll.
WRAPPED = ("text", "console")


def claims():
    """Return the arguments of all calls of example() in other tests, with the defaults that they leave out."""
    found = set()
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "integration").glob("test_*.py")):
        text = path.read_text()
        if "from tests.docs.pages import" not in text or path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "example":
                values = [ast.literal_eval(argument) for argument in node.args]
                named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
                given = inspect.signature(example).bind(*values, **named)
                given.apply_defaults()
                found.add(given.args)
    return found


CLAIMS = claims()


@pytest.mark.parametrize("page", sorted({*page_names()} - pages_run_as_a_whole()))
def test_each_block_runs_or_says_why_not(page):
    found = [block for block in blocks(page) if block.language in RUN]
    left = [
        f"{page}:{block.line}"
        for block in found
        if "not run" not in block.notes and (page, block.heading, block.number, block.language) not in CLAIMS
    ]

    assert left == [], "no test calls example() for these blocks, and no comment <!-- not run: ... --> is before them"


@pytest.mark.parametrize("claim", sorted(CLAIMS), ids=str)
def test_claimed_block_exists(claim):
    assert example(*claim)


@pytest.mark.parametrize("page", page_names())
def test_each_block_has_a_language(page):
    assert [f"{page}:{block.line}" for block in blocks(page) if not block.language] == []


@pytest.mark.parametrize("page", page_names())
def test_code_fits_the_column(page):
    found = [
        f"{page}:{block.line + number}"
        for block in blocks(page)
        if block.language not in WRAPPED
        for number, line in enumerate(block.code.replace("REPOSITORY", hooks.repository()).splitlines())
        if len(line.expandtabs(4)) > MAX_COLUMNS
    ]

    assert found == []


def test_readme_is_short_and_its_links_lead_to_files():
    text = page_text("README.md")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)

    assert len(text.splitlines()) <= 150
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_readme_has_the_address_of_the_repository():
    with (ROOT / "pyproject.toml").open("rb") as file:
        address = tomllib.load(file)["project"]["urls"]["Repository"]

    assert re.findall(r"git\+(\S+?)\"", page_text("README.md")) == [address] * 3
