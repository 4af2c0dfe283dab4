"""The generated parts, the links and the table of loggers. `make docs` builds all, with all warnings as errors."""

import re
import tomllib

import pytest

from tests.docs.pages import ROOT, hooks, page_names, page_text

PAGES = {page: page_text(page) for page in page_names() if page != "README.md"}
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


@pytest.mark.parametrize("page", PAGES)
def test_marks_of_a_page_are_replaced(page):
    if any("gnsq.spark" in words or words in hooks._SPARK_METRICS for _, words in hooks.MARK.findall(PAGES[page])):
        pytest.importorskip("pyspark")

    assert hooks.MARK.findall(hooks.generated(PAGES[page])) == []
    assert len(hooks.MARK.findall(PAGES[page])) == PAGES[page].count("<!-- generated:")


def test_unknown_mark_raises():
    with pytest.raises(KeyError):
        hooks.generated("<!-- generated: nothing x -->")


def test_changes_are_those_of_the_changelog_with_links_to_the_pages():
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert hooks.generated(PAGES["changes.md"]).strip() == changelog.replace("](docs/pages/", "](").strip()


def test_links_out_of_the_pages_lead_to_the_repository():
    text = "[a](../../../gnsq/errors.py#x), [b](../index.md), [c](#d), REPOSITORY"

    found = hooks.with_repository_links(text, "pipeline/guide.md")

    assert found == f"[a]({REPOSITORY}/blob/main/gnsq/errors.py#x), [b](../index.md), [c](#d), {REPOSITORY}"


def test_link_to_a_missing_file_of_the_repository_warns(caplog):
    hooks.with_repository_links("[a](../../nothing.py)", "index.md")

    assert "index.md: there is no file ../../nothing.py" in caplog.text


def test_addresses_of_other_hosts_are_found():
    html = """<script src="https://x.example/a.js"> <link rel="stylesheet" href="//x.example/a.css">
        <a href="https://x.example/"> <img src="../a.svg">"""
    css = "@import 'https://x.example/a.css'; a { background: url(https://x.example/a.png), url(data:image/png;AA//) }"

    assert hooks.foreign_addresses(html, css=False) == ["https://x.example/a.js", "//x.example/a.css"]
    assert hooks.foreign_addresses(css, css=True) == ["https://x.example/a.css", "https://x.example/a.png"]


def test_navigation_has_every_page():
    nav = (ROOT / "docs/mkdocs.yml").read_text().partition("\nnav:\n")[2]

    assert sorted(re.findall(r"[\w/.-]+\.md", nav)) == sorted(PAGES)


NAMED = re.compile(r"getLogger\((?:__name__|f?\"(gnsq[\w.{} ]*)\"|name or f\"(gnsq\.[^\"]*)\")\)")


def loggers():
    found = set()
    for path in (ROOT / "gnsq").rglob("*.py"):
        if not {"cli", "spark"} & {*path.parts}:  # programs, which set up their own logs
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for literal, formatted in NAMED.findall(path.read_text()):
                found.add(literal or formatted.replace("{topic}.{channel}", "TOPIC.CHANNEL") or module)
    return found


def test_table_has_all_loggers():
    text = page_text("guides/logging.md")
    rows = text.split("| logger | lines about |\n|---|---|\n")[1].split("\n\n")[0]

    assert set(re.findall(r"^\| `([\w.]+)`", rows, re.M)) == loggers()
