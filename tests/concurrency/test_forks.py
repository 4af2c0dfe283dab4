"""Child processes do not use the connections of their parents."""

import pytest

from fakensqd import FakeLookupd
from fakensqd.faults import delay, on
from gnsq import Producer
from tests.kit import bodies, channel_stats, run_program

pytestmark = pytest.mark.subprocess


# What the scripts below have in common: how to fork and to say something.
FORKING = """
import os, sys, traceback
import gevent, gevent.os

fork = {fork}
if fork is gevent.os.fork:
    # Else gevent misses a child that ends before it is first waited for; with this it reaps all.
    gevent.get_hub().loop.install_sigchld()


def in_child(function):
    child = fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child


def say(*words):
    # In one write, since other processes write, too.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


def ended(child):
    return (gevent.os.waitpid if fork is gevent.os.fork else os.waitpid)(child, 0)[1]
"""

FORKS = [pytest.param("gevent.os.fork", id="gevent.os.fork"), pytest.param("os.fork", id="os.fork")]


def run_script(script, *words, fork):
    """Run a script; returns the lines that it printed."""
    done = run_program(f"{FORKING.format(fork=fork)}\n{script}", *words)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


# --- producers --------------------------------------------------------------------------------------------------------

# What the scripts below have in common: children that publish and say what was confirmed.
PRODUCING = """
from gnsq import NsqdTCPClient, Producer
from gnsq.errors import NSQException, NSQUnknown

address = sys.argv[1].replace("127.0.0.1", "localhost")


def publish(producer, name, count):
    for number in range(count):
        body = f"{name}-{number}"
        producer.publish("t", body.encode(), timeout=10)
        say(body)
"""


@pytest.fixture
def produce(fakensqd):
    """Run a script; returns the lines that it printed."""

    def run(script, fork):
        return run_script(f"{PRODUCING}\n{script}", fakensqd.tcp_address, fork=fork)

    return run


@pytest.mark.parametrize(
    ("fork", "threaded", "started"),
    [
        pytest.param("gevent.os.fork", False, True, id="gevent.os.fork, started"),
        pytest.param("os.fork", True, False, id="os.fork, threaded"),
    ],
)
def test_children_publish_at_once_with_their_parents_producer_and_all_that_was_confirmed_is_held(
    fakensqd, produce, fork, threaded, started
):
    said = produce(
        f"""
producer = Producer(address, threaded={threaded}, close_timeout=5)
client = NsqdTCPClient("127.0.0.1", address.split(":")[1])
client.connect()
if {started}:
    publish(producer, "before", 10)


def work():
    assert not client.is_connected
    publish(producer, os.getpid(), 50)
    assert producer.close() == []
    assert producer.stats().confirmed == 50


children = [in_child(work) for _ in range(4)]
publish(producer, "parent", 50)
assert [ended(child) for child in children] == [0] * 4
publish(producer, "after", 10)
assert producer.close() == []
client.publish("t", b"client")
client.check_ok()
client.close_stream()
say("client")
""",
        fork,
    )

    assert len(said) == 261 + 10 * started
    assert sorted(bodies(fakensqd, "t")) == sorted(line.encode() for line in said)
    # One each, and the parent's is the one from before.
    assert len(fakensqd.transcript.commands("IDENTIFY")) == 5


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
def test_publishes_without_an_answer_stay_the_parents(fakensqd, produce, threaded):
    with fakensqd.add(on.reply("PUB").nth(2), delay(0.5)):
        said = produce(
            f"""
producer = Producer(address, threaded={threaded}, close_timeout=5)
publish(producer, "before", 1)
results = [producer.publish_async("t", b"both-%d" % number) for number in range(100)]


def work():
    gevent.wait(results, timeout=10)
    wrong = [result for result in results if not isinstance(result.exception, NSQUnknown)]
    assert not wrong, wrong[0].exception
    assert "fork" in str(results[-1].exception)
    publish(producer, "child", 5)
    assert producer.stats().unknown == 0
    producer.close()


child = in_child(work)
assert [result.get(timeout=5) for result in results] == [b"OK"] * 100
assert ended(child) == 0
producer.close()
""",
            "gevent.os.fork",
        )

    held = bodies(fakensqd, "t")
    assert len(said) == 6
    assert sorted(held) == sorted([*[line.encode() for line in said], *[b"both-%d" % number for number in range(100)]])


def test_child_of_a_producer_that_closes_has_a_closed_one(fakensqd, produce):
    said = produce(
        """
producer = Producer(address)
producer.start()
children = []


def work():
    producer.join(5)
    say("child", producer.stats().state)


producer.publish_async("t", b"x")
closer = gevent.spawn(producer.close)
gevent.sleep(0)
children.append(in_child(work))
closer.get()
say("parent", producer.stats().state, ended(children[0]))
""",
        "os.fork",
    )

    assert sorted(said) == ["child closed", "parent closed 0"]
    assert bodies(fakensqd, "t") == [b"x"]


# --- consumers --------------------------------------------------------------------------------------------------------

# What the scripts below have in common: how to wait.
PRELUDE = """
import logging
from gevent.event import Event
from gnsq import Consumer

logging.getLogger("gnsq").setLevel(logging.ERROR)  # on a busy machine there are warnings that something takes long

nsqd, lookupd = sys.argv[1:3]


def wait_until(condition):
    with gevent.Timeout(10):
        while not condition():
            gevent.sleep(0.001)
"""


@pytest.fixture
def run(fakensqd):
    """Run a script with an nsqd that has a hundred messages; returns the lines that it printed."""

    def run(script, fork="gevent.os.fork"):
        with Producer(fakensqd.tcp_address) as producer:
            producer.multipublish("t", [b"x"] * 100)
        with FakeLookupd().in_thread() as lookupd:
            lookupd.record()
            return run_script(f"{PRELUDE}\n{script}", fakensqd.tcp_address, lookupd.http_address, fork=fork)

    return run


def test_consumer_made_before_a_fork_and_started_after_it_works_in_each_child(fakensqd, run):
    said = run(
        """
got = []


def handle(consumer, message):
    got.append(message)
    if len(got) == 10:
        consumer.pause()  # leaves some for the others


consumer = Consumer("t", "c", nsqd, lookupd, message_handler=handle, max_in_flight=5)


def work():
    consumer.start(block=False)
    wait_until(lambda: len(got) >= 10)
    consumer.close()
    consumer.join(10)
    say("child", consumer.is_running, len(got) >= 10)


say(*[ended(child) for child in [in_child(work), in_child(work)]])
consumer.start(block=False)
wait_until(lambda: len(got) >= 10)
consumer.close(timeout=10)
say("parent", consumer.is_running)
""",
        "os.fork",
    )

    assert sorted(said) == ["0 0", "child False True", "child False True", "parent False"]
    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["in_flight_count"], stats["requeue_count"], stats["client_count"]) == (0, 0, 0)
    assert stats["depth"] <= 70


RUNNING = """
before, release, done = [], Event(), []
parent = os.getpid()


def handle(consumer, message):
    if os.getpid() != parent:
        say("begun in the child")
    before.append(message)
    release.wait()
    if os.getpid() != parent:
        say("continued in the child")
    done.append(message)


consumer = Consumer(
    "t",
    "c",
    nsqd,
    lookupd,
    message_handler=handle,
    max_in_flight=10,
    concurrency=5,
    lookupd_poll_interval=0.01,
    reconnect_initial=0.01,
)
consumer.on_close.connect(lambda consumer: say("closed", os.getpid() == parent), weak=False)
consumer.start(block=False)
wait_until(lambda: len(before) == 5 and consumer.total_in_flight == 10)


def child():
    inherited = repr(consumer)
    with gevent.Timeout(5):
        consumer.join()
        consumer.close(timeout=3)
        consumer.start()
    release.set()
    for _ in range(100):
        gevent.sleep(1e-6)  # lets inherited greenlets run; not 0: the loop looks at its sockets
    living = [task for task in consumer._greenlets._loops if not task.dead]
    say("child", consumer.is_running, consumer.is_healthy, consumer.total_in_flight, len(done), len(before), living)
    say(inherited)
"""


@pytest.mark.parametrize("fork", FORKS)
def test_consumer_that_runs_across_a_fork_does_nothing_in_the_child(fakensqd, run, fork):
    said = run(
        RUNNING
        + """
import logging
logging.disable()
child = in_child(child)
gevent.sleep(0.1)  # lookups go on here
say(ended(child))
release.set()
wait_until(lambda: len(done) == 100)
consumer.close(timeout=10)
say("parent", len(done), consumer.is_running)
""",
        fork,
    )

    assert said == [
        "child False False 0 0 5 []",
        "<Consumer t/c closed, 0 connections, 0 messages in flight>",
        "0",
        "closed True",
        "parent 100 False",
    ]
    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0, 0)
    # The parent's connection, and no other: neither of the child, nor a second one of the parent.
    assert fakensqd.transcript.commands("SUB") == ["SUB"]


def test_consumer_on_a_thread_of_its_own_does_nothing_in_the_child_and_goes_on_in_the_parent(fakensqd, run):
    said = run(
        """
import threading
begun, release, done = threading.Event(), threading.Event(), []


def handle(consumer, message):
    begun.set()
    while not release.is_set():
        gevent.sleep(0.001)
    done.append(message)


def child():
    consumer.close(timeout=5)
    consumer.join(5)
    say("child", consumer.is_running, len(done))


consumer = Consumer("t", "c", nsqd, message_handler=handle, max_in_flight=5, threaded=True)
consumer.start(block=False)
begun.wait(10)
say(ended(in_child(child)))
release.set()
wait_until(lambda: len(done) == 100)
consumer.close(timeout=10)
say("parent", len(done), consumer.is_running)
""",
        "gevent.os.fork",
    )

    assert said == ["child False 0", "0", "parent 100 False"]
    assert fakensqd.transcript.commands("SUB") == ["SUB"]


def test_child_of_a_handler_may_go_on_as_a_program(fakensqd, run):
    """start() returns in the child, whose handler ends without FIN or REQ."""
    said = run(
        """
import logging
logging.disable()
parent, forked, done = os.getpid(), [], []


def handle(consumer, message):
    if not forked:
        forked.append(fork())
    if os.getpid() == parent:
        done.append(message)
    if len(done) == 100:
        consumer.close()


consumer = Consumer("t", "c", nsqd, message_handler=handle, max_in_flight=5)
consumer.start()
if os.getpid() != parent:
    say("child", consumer.is_running)
    sys.stdout.flush()
    os._exit(0)
say(ended(forked[0]), len(done))
"""
    )

    assert sorted(said) == ["0 100", "child False"]
    stats = channel_stats(fakensqd, "t", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_child_is_held_up_by_no_thread_of_its_parent_and_makes_its_own(produce):
    said = produce(
        """
from gnsq.concurrency.hub_thread import HubThread

gevent.get_hub().threadpool.apply(lambda: gevent.get_hub().threadpool.apply(lambda: None))
hub = HubThread("test")
producer = Producer(address)
producer.start()


def work():
    hub.stop()
    for use in (hub.call, hub.call_soon):
        try:
            use(int)
        except RuntimeError as error:
            say(error)
    with HubThread("own") as own:
        say(own.call(int), hub.is_current)


say(ended(in_child(work)), hub.call(int))
producer.close()
hub.stop()
""",
        "os.fork",
    )

    refused = "thread test was started before the fork; make a new one in this process"
    assert said == [refused, refused, "0 False", "0 0"]
