"""A receiver as a process that is killed, and the next receiver after it."""

import signal
import sys

from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.receiver import Receiver
from tests.spark.helpers import is_empty, running, wait_for

TOPIC, CHANNEL = "clicks", "archive"


def receiver_process(nsqd, spool, point="never"):
    """Run dying_receiver.py; a context manager that yields the process."""
    module = "tests.spark.dying_receiver"
    addresses = [nsqd.tcp_address, nsqd.http_address]
    return running([sys.executable, "-m", module, point, spool.location, TOPIC, CHANNEL, *addresses])


def run_until_killed(point, nsqd, spool):
    """Run a receiver until it has killed itself."""
    with receiver_process(nsqd, spool, point) as process:
        assert process.wait() == -signal.SIGKILL


def drain(nsqd, spool, hub, limit=30.0):
    """Receive until the channel is empty, also of messages that a killed receiver had in flight."""
    options = ReadOptions(topic=TOPIC, channel=CHANNEL, nsqd_tcp_addresses=(nsqd.tcp_address,))
    receiver = hub.call(Receiver, options, spool)
    hub.call(receiver.start)
    wait_for(lambda: is_empty(nsqd, TOPIC, CHANNEL), limit)
    hub.call(receiver.close)
