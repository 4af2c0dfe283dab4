"""Log of the programs: levels, and pipes without a reader."""

import logging
import os

import pytest

from fakensqd import logs


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def logger():
    logger = logging.getLogger("fakensqd")
    before = (logger.handlers, logger.propagate, logger.level)
    yield logger
    logger.handlers, logger.propagate, level = before
    logger.setLevel(level)


def test_log_has_lines_from_its_level_on(pipe, logger):
    logs.configure("info", pipe[1])

    logger.debug("not this")
    logger.info("TCP: listening on %s", "127.0.0.1:1")
    logging.getLogger("fakensqd.nsqd.server").critical("no")

    lines = os.read(pipe[0], 1000).decode().splitlines()
    assert lines[0].endswith(" INFO: TCP: listening on 127.0.0.1:1")
    assert lines[1].endswith(" CRITICAL: no")
    assert len(lines) == 2


def test_full_pipe_does_not_block_the_log(pipe, logger):
    logs.configure("info", pipe[1])

    for _ in range(100):
        logger.info("x" * 10000)

    os.set_blocking(pipe[0], False)
    assert len(os.read(pipe[0], 10**7)) >= 4096


def test_pipe_without_a_reader_is_no_error(logger):
    reader, writer = os.pipe()
    stream = logs.configure("info", writer)
    os.close(reader)

    assert stream.write("x") == 1

    os.close(writer)
