"""The programs in the tutorial, the guides and the pages about other clients run, and print what the pages say."""

import gevent
import pytest

from tests.docs.prose import PAGES as PAGE_NAMES
from tests.docs.prose import blocks, check_printed, programs, run, run_process


@pytest.mark.parametrize("block", programs(process=False))
def test_program(block, fakensqd, fakelookupd, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with gevent.Timeout(30):
        addresses = run(block, fakensqd, fakelookupd)

    check_printed(block, addresses.take_out(capsys.readouterr().out))


@pytest.mark.parametrize("block", programs(process=True))
def test_program_in_a_process(block, fakensqd, fakelookupd, tmp_path):
    check_printed(block, run_process(block, fakensqd, fakelookupd, tmp_path))


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_page_has_no_block_without_a_language_and_no_needless_reason(page):
    for block in blocks(page):
        assert block.notes.get("not run", "reason"), f"{page}:{block.line} has no reason"
