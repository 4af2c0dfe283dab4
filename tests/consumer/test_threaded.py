"""Consumer(threaded=True): a consumer on a thread of its own, in programs whose threads block natively."""

import textwrap
import threading

import gevent
import pytest

from gnsq import Consumer, LookupdClient
from tests.kit import run_program, wait_until

LIMIT = 20.0


def ignore(consumer, message):
    pass


def thread_names():
    return [thread.name for thread in threading.enumerate()]


class Native:
    """Handler that records bodies, for threads that block natively."""

    def __init__(self, count):
        self.bodies = []
        self.threads = set()
        self.all_handled = threading.Event()
        self._count = count

    def __call__(self, consumer, message):
        self.threads.add(threading.current_thread().name)
        self.bodies.append(message.body)
        if len(self.bodies) == self._count:
            self.all_handled.set()


def test_messages_are_handled_while_the_caller_blocks_natively(fakensqd):
    handler = Native(count=20)
    fakensqd.publish("t", *[b"%d" % number for number in range(20)])

    with Consumer("t", "c", fakensqd.tcp_address, message_handler=handler, max_in_flight=5, threaded=True) as consumer:
        assert handler.all_handled.wait(LIMIT)
        assert consumer.is_running
        assert consumer.is_healthy
        assert consumer.stats().counts.received == 20

    assert sorted(handler.bodies, key=int) == [b"%d" % number for number in range(20)]
    assert handler.threads == {"gnsq-t/c"}
    assert not consumer.is_running
    assert "gnsq-t/c" not in thread_names()
    assert fakensqd.depth("t", "c") == fakensqd.in_flight("t", "c") == 0


def test_nsqds_may_be_added_and_options_changed_from_other_threads(fakensqd):
    handler = Native(count=3)
    consumer = Consumer("t", "c", [], ["127.0.0.1:1"], message_handler=handler, threaded=True)
    with consumer:
        host, port = fakensqd.tcp_address.split(":")
        consumer.connect_to_nsqd(host, int(port))
        consumer.max_in_flight = 3
        consumer.pause()
        consumer.resume()
        fakensqd.publish("t", b"1", b"2", b"3")

        assert handler.all_handled.wait(LIMIT)
        wait_until(lambda: consumer.total_in_flight == 0, LIMIT)
        assert consumer.total_ready_count == 3


def test_options_may_be_set_and_nsqds_asked_for_after_the_end(fakensqd):
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=ignore, threaded=True)
    with consumer:
        pass

    consumer.pause()
    consumer.max_in_flight = 3
    consumer.connect_to_nsqd("127.0.0.1", 1)
    consumer.query_lookupd()

    assert consumer.max_in_flight == 3


def test_nsqlookupds_asked_by_another_thread_connect_on_the_thread_of_the_consumer(fakensqd, fakelookupd):
    handler = Native(count=1)
    consumer = Consumer("t", "c", [], fakelookupd.http_address, message_handler=handler, threaded=True)
    with consumer:
        fakensqd.publish("t", b"x")
        fakensqd.set_lookupd_tcp_addresses((fakelookupd.tcp_address,))
        wait_until(lambda: "t" in LookupdClient.from_url(fakelookupd.http_address).topics()["topics"], LIMIT)
        consumer.query_lookupd()

        assert handler.all_handled.wait(LIMIT)
    assert handler.threads == {"gnsq-t/c"}


def test_handler_that_exits_closes_the_consumer(fakensqd):
    def handle(consumer, message):
        raise SystemExit(3)

    fakensqd.publish("t", b"x")
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=handle, threaded=True)
    events = []

    @consumer.on_close.connect
    def close_again(consumer):
        consumer.close()
        events.append(consumer)

    consumer.start(block=False)
    consumer.join(LIMIT)

    assert events == [consumer]
    assert not consumer.is_running
    assert not consumer.is_ready
    consumer.close(timeout=1)
    assert "gnsq-t/c" not in thread_names()


def test_hub_itself_cannot_start_a_threaded_consumer(fakensqd):
    raised = []
    consumer = Consumer("t", "c", fakensqd.tcp_address, message_handler=ignore, threaded=True)

    def start():
        try:
            consumer.start(block=False)
        except RuntimeError as error:
            raised.append(str(error))

    gevent.get_hub().loop.run_callback(start)
    wait_until(lambda: raised, LIMIT)
    consumer.close()

    assert "let a greenlet call start()" in raised[0]


def test_interrupted_start_leaves_no_thread(fakensqd):
    silent = fakensqd.tcp_address
    fakensqd.stop_reading()
    consumer = Consumer("t", "c", silent, message_handler=ignore, threaded=True)

    with gevent.Timeout(0.05, False):
        consumer.start()
        pytest.fail("the start was not interrupted")
    fakensqd.up()
    consumer.join(LIMIT)

    assert not consumer.is_running
    wait_until(lambda: "gnsq-t/c" not in thread_names(), LIMIT)


PROGRAM = """
    import os, sys, threading
    import gevent
    from gnsq import Consumer, Producer

    begun = threading.Event()

    def say(word):
        os.write(1, f"{word}\\n".encode())  # in one write: two threads print

    def handle(consumer, message):
        say("begun")
        begun.set()
        while consumer.is_running:
            gevent.sleep(0.001)
        producer.publish("copies", message.body)
        say("handled")

    consumer = Consumer("t", "c", sys.argv[1], message_handler=handle, threaded=True)
    consumer.on_close.connect(lambda consumer: say("closed"), weak=False)
    producer = Producer(sys.argv[1], threaded=True)
    producer.start()
    consumer.start(block=False)
    begun.wait()
"""


@pytest.mark.subprocess
def test_end_of_the_program_closes_a_threaded_consumer_whose_handlers_may_publish_until_then(fakensqd):
    fakensqd.publish("t", b"x")

    done = run_program(textwrap.dedent(PROGRAM), fakensqd.tcp_address)

    assert (done.stdout.split(), done.stderr, done.returncode) == (["begun", "handled", "closed"], "", 0)
    assert fakensqd.messages("copies") == [b"x"]
    assert fakensqd.depth("t", "c") == fakensqd.in_flight("t", "c") == 0
