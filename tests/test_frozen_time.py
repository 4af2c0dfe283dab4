"""Tests of users freeze the time: waits with a limit still end, and what they wait for still comes."""

import pytest

from tests.kit import run_program

pytestmark = pytest.mark.subprocess

# Modules that are imported while the time stands still do not differ from others.
IMPORTS = """
import logging
import gnsq, fakensqd
from fakensqd import FakeNsqd
from gnsq import Consumer, NsqdHTTPClient, Producer
from gnsq.errors import NSQException
"""

CALLS = """
logging.disable()
for threaded in (False, True):
    with FakeNsqd(record=True).in_thread() as nsqd, Producer(nsqd.tcp_address, threaded=threaded) as producer:
        assert producer.publish("t", b"1") == b"OK"
        assert producer.publish_async("t", b"2").get(timeout=10) == b"OK"
        nsqd.assert_published("t", count=2)
        handled = []
        with Consumer("t", "c", nsqd.tcp_address, message_handler=lambda _, message: handled.append(message)):
            assert nsqd.wait_until(lambda nsqd: nsqd.depth("t", "c") + nsqd.in_flight("t", "c"), 0) == 0
        try:
            nsqd.wait_until(lambda nsqd: False, timeout=0.05)
        except AssertionError:
            pass
        else:
            raise RuntimeError
        nsqd.down()
        try:
            producer.publish("t", b"3", timeout=0.2)
        except NSQException:
            pass
        else:
            raise RuntimeError
with FakeNsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
    producer.publish("t", b"1")
    nsqd.stop_reading()
    result = producer.publish_async("t", b"2", timeout=0.05)
    result.wait(timeout=10)
    assert isinstance(result.exception, NSQException)
    try:
        NsqdHTTPClient.from_url(nsqd.http_address, timeout=0.05).ping()
    except NSQException:
        pass
    else:
        raise RuntimeError
"""


@pytest.mark.parametrize("is_first", [True, False], ids=["imported before", "imported then"])
def test_waits_end(is_first):
    body = "\n".join(f"    {line}" for line in ("" if is_first else IMPORTS).splitlines() + CALLS.splitlines())
    start = IMPORTS if is_first else ""

    done = run_program(f"{start}\nimport freezegun\nwith freezegun.freeze_time('2026-01-01'):\n{body}", flags=())

    assert (done.stderr, done.returncode) == ("", 0)
