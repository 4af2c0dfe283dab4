"""Receivers on the hub of a thread, which are closed at the end of the test."""

import pytest

from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.receiver import Receiver


@pytest.fixture
def make(fakensqd, spool, hub, monkeypatch):
    """Make a receiver."""
    receivers = []

    def make(limits=(), write_timeout=5.0, **options):
        monkeypatch.setattr("gnsq.spark.receiver.receiver.WRITE_TIMEOUT", write_timeout)
        given = {"topic": "clicks", "channel": "archive", "nsqd_tcp_addresses": (fakensqd.tcp_address,), **options}
        receivers.append(hub.call(lambda: Receiver(ReadOptions(**given), spool, **dict(limits))))
        return receivers[-1]

    yield make
    for receiver in receivers:
        hub.call(receiver.close)


@pytest.fixture
def receive(make, hub):
    """Make a receiver and start it."""

    def receive(**given):
        receiver = make(**given)
        hub.call(receiver.start)
        return receiver

    return receive
