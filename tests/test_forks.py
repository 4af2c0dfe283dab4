"""What a child process does with its parent's connections: nothing."""

import subprocess
import sys

from tests.helpers import channel_stats

SCRIPT = """
import os, sys
import gevent, gevent.os
from gnsq import NsqdTCPClient, Producer
from gnsq.errors import NSQException

address = sys.argv[1]
producer = Producer(address, timeout=5)
producer.start()
producer.publish("t", b"before")
host, port = address.split(":")
client = NsqdTCPClient(host, int(port), timeout=5)
client.connect()
child = gevent.os.fork()
if not child:
    try:
        # Lets whatever was inherited run.
        gevent.sleep(0.2)
        assert not client.is_connected
        try:
            producer.publish("t", b"no", timeout=2)
        except NSQException as error:
            print("child:", error)
        with Producer(address, timeout=5) as own:
            own.publish("t", b"child")
        sys.stdout.flush()
    finally:
        os._exit(0)
for _ in range(50):
    producer.publish("t", b"parent", timeout=2)
    gevent.sleep(0.01)
gevent.os.waitpid(child, 0)
client.publish("t", b"client")
client.check_ok()
client.close_stream()
producer.close()
print("parent: done")
"""


def test_child_gives_up_what_it_inherited_and_the_parent_goes_on(fakensqd):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, fakensqd.tcp_address], capture_output=True, text=True, timeout=30
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "child: producer was started before the fork; make and start a new one in this process",
        "parent: done",
    ]


def test_all_that_was_confirmed_arrived_once(fakensqd):
    from gnsq import NsqdHTTPClient

    NsqdHTTPClient.from_url(fakensqd.http_address).create_topic("t")
    NsqdHTTPClient.from_url(fakensqd.http_address).create_channel("t", "c")
    subprocess.run([sys.executable, "-c", SCRIPT, fakensqd.tcp_address], capture_output=True, check=True, timeout=30)

    assert channel_stats(fakensqd, "t", "c")["message_count"] == 53
