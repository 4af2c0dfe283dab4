"""The programs in the tutorial, the guides and the pages about other clients run, and print what the pages say."""

import re
import sys

import gevent
import pytest

from fakensqd import on
from fakensqd.faults import drop
from tests.docs.pages import blocks, page_text
from tests.docs.prose import PAGES, Addresses, check_printed, programs, run, run_process
from tests.kit import child, wait_until


@pytest.mark.parametrize("block", programs(process=False))
def test_program(block, fakensqd, fakelookupd, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for library in re.findall(r"^import (msgspec|pydantic)$", block.code, re.MULTILINE):
        pytest.importorskip(library)

    with gevent.Timeout(30):
        addresses = run(block, fakensqd, fakelookupd)

    check_printed(block, addresses.take_out(capsys.readouterr().out))


@pytest.mark.parametrize("block", programs(process=True))
def test_program_in_a_process(block, fakensqd, fakelookupd, tmp_path):
    if block.page.startswith("pipeline/"):
        pytest.importorskip("pyspark")

    check_printed(block, run_process(block, fakensqd, fakelookupd, tmp_path))


@pytest.mark.subprocess
def test_kill_of_the_program_that_copies_loses_no_message(fakensqd, fakelookupd, tmp_path):
    (block,) = [block for block in blocks("coming-from/nsq-utilities.md") if '"copies"' in block.code]
    path = tmp_path / "program.py"
    path.write_text(Addresses(fakensqd, fakelookupd).put_in(block.code))
    bodies = {b'{"country": "NO", "id": %d}' % number for number in range(1000)}
    fakensqd.publish("orders", *bodies)
    # After the first copies, no publish is executed or answered any more.
    stopped = on.command("MPUB", where=lambda _: fakensqd.messages("copies")).always()

    with fakensqd.add(stopped, drop()) as rule, child(sys.executable, str(path)):
        wait_until(lambda: rule.fired and len(fakensqd.transcript.finished("orders")))

    copied = set(fakensqd.messages("copies"))
    assert 0 < len(copied) < len(bodies)
    assert copied | set(fakensqd.messages("orders", "copy")) == bodies


# Pages with files and commands that other modules of tests write and run.
WITH_FILES = (
    "tutorial.md",
    "guides/forks-and-gunicorn.md",
    "guides/kubernetes.md",
    "guides/systemd.md",
    "guides/web-frameworks.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_runs_or_says_why_not(page):
    text = page_text(page)
    left = [
        block.line
        for block in blocks(page)
        if "not run" not in block.notes and (block.title or block.language == "sh") and page not in WITH_FILES
    ]

    assert left == []
    assert [block.line for block in blocks(page) if block.notes.get("not run") == ""] == []
    # A comment with another word, or one that is not right before a block, would have no effect.
    assert sum(len(block.notes) for block in blocks(page)) == text.count("<!-- ") - text.count("<!-- generated: ")
    assert sum(block.printed is not None for block in blocks(page)) == text.count(" prints:\n")
