"""The log level, changed while an nsqd runs."""

import logging

import pytest

from fakensqd import FakeNsqd
from tests.fakensqd.programs import FREE_PORTS, program
from tests.fakensqd.wire import request


@pytest.fixture
def logger():
    logger = logging.getLogger("fakensqd")
    level = logger.level
    yield logger
    logger.setLevel(level)


def test_the_log_level_takes_effect_until_the_stop(logger):
    logger.setLevel(logging.WARNING)
    with FakeNsqd() as nsqd:
        assert request(nsqd.http_address, "GET", "/config/log_level") == "2"
        assert logger.level == logging.WARNING

        assert request(nsqd.http_address, "PUT", "/config/log_level", b"fatal") == "5"
        assert logger.level == logging.CRITICAL
        assert request(nsqd.http_address, "PUT", "/config/log_level", b"debug") == "1"
        assert logger.level == logging.DEBUG

    assert logger.level == logging.WARNING


def test_a_log_level_is_one_of_nsqds():
    with pytest.raises(ValueError, match="log_level 'loud' must be one of debug, info, warn, error, fatal"):
        FakeNsqd(log_level="loud")


@pytest.mark.subprocess
def test_a_program_logs_what_it_is_told_to(tmp_path):
    flags = (*FREE_PORTS, f"--data-path={tmp_path}")
    with program("nsqd", *flags) as nsqd:
        http = nsqd.addresses["HTTP"]
        assert request(http, "GET", "/config/log_level") == "2"
        request(http, "PUT", "/config/nsqlookupd_tcp_addresses", b'["nowhere"]')
        request(http, "PUT", "/config/log_level", b"error")
        request(http, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
        request(http, "PUT", "/config/nsqlookupd_tcp_addresses", b'["elsewhere"]')
        nsqd.stop(15)

    log = b"".join(nsqd.lines)
    assert b"nsqlookupd nowhere: " in log
    assert b"nsqlookupd elsewhere: " not in log
