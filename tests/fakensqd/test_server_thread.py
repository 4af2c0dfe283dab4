"""A server on a thread of its own: from plain threads, and from another hub. Runs in patched processes, too."""

import os
import threading
import urllib.error
import urllib.request

import gevent
import pytest

from fakensqd import FakeCluster, FakeLookupd, FakeNsqd, on
from fakensqd.clock import ManualClock
from fakensqd.faults import disconnect
from fakensqd.options import NsqdOptions
from fakensqd.server import ServerThread, ThreadProxy
from fakensqd.transcript import Transcript
from gnsq.concurrency.threads import CrossThreadFuture, get_hub_if_exists, get_ident, start_thread
from tests.kit import wait_until


def start_plain_thread(function):
    """Run a function on a native thread without a hub; give back how it ends."""
    outcome = CrossThreadFuture()

    def work():
        try:
            outcome.set_result(function())
        except Exception as error:  # noqa: BLE001  # raised by result()
            outcome.set_exception(error)

    start_thread(work)
    return outcome


def in_plain_thread(function):
    """Run a function on a thread without a hub; return its result or raise its exception."""
    outcome = start_plain_thread(function)
    assert outcome.wait(30)
    return outcome.result()


def get(address, target, data=None):
    with urllib.request.urlopen(f"http://{address}{target}", data=data, timeout=10) as answer:
        return answer.read()


def test_caller_on_a_plain_thread_gets_no_hub():
    def use():
        with FakeNsqd().in_thread() as nsqd:
            assert nsqd.depth("t") == 0
        return get_hub_if_exists()

    assert in_plain_thread(use) is None


def test_caller_in_a_hub_does_not_block_the_hub():
    ticks = []

    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.001)

    ticker = gevent.spawn(tick)
    with FakeNsqd().in_thread() as nsqd:
        before = len(ticks)
        # The function runs on the thread of the server, while this hub waits for the result.
        assert nsqd.wait_until(lambda _: len(ticks) - before > 5)
    ticker.kill()


def test_attributes_are_read_and_methods_called_on_the_servers_thread():
    clock = ManualClock()
    with FakeCluster(lookupds=0, clock=clock).in_thread() as cluster:
        assert isinstance(cluster.nsqds, list)
        assert cluster.nsqds[0].running is True
        topic = cluster.nsqds[0].broker.ensure_topic("t")
        topic.publish([b"x"], 0.0, delay=60.0)
        channel = topic.ensure_channel("c", 0.0)
        assert channel.deferred_count == 1

        cluster.nsqds[0].clock.advance(60.0)

        assert (channel.depth, list(topic.channels)) == (1, ["c"])
        assert repr(cluster.nsqds[0]).startswith("<proxy of <FakeNsqd 127.0.0.1:")


def test_call_runs_a_function_on_the_servers_thread():
    threaded = ServerThread(FakeNsqd())
    with threaded:
        assert threaded.call(get_ident) != get_ident()
        assert threaded.call(max, 1, 2) == 2

    with pytest.raises(RuntimeError, match="does not run"):
        threaded.call(max, 1, 2)


def test_failed_start_raises_and_leaves_no_thread():
    with FakeNsqd().in_thread() as nsqd:
        threaded = ServerThread(FakeNsqd(tcp_address=nsqd.tcp_address))
        before = set(threading.enumerate())

        with pytest.raises(OSError, match="Address already in use"):
            threaded.start()
        threaded.stop()

        assert set(threading.enumerate()) <= before


def test_fault_of_a_stop_is_raised():
    class Failing(FakeNsqd):
        def _shut_down(self):
            super()._shut_down()
            raise RuntimeError("no")

    threaded = ServerThread(Failing())
    threaded.start()

    with pytest.raises(RuntimeError, match=r"^no$"):
        threaded.stop()


# --- in_thread() ------------------------------------------------------------------------------------------------------


def test_call_is_killed_with_its_caller():
    threaded = ServerThread(FakeNsqd())
    begun, ended = threading.Event(), threading.Event()

    def wait(nsqd):
        begun.set()
        try:
            gevent.sleep(3600)
        finally:
            ended.set()

    with threaded as nsqd:
        calling = gevent.spawn(nsqd.wait_until, wait, timeout=60.0)
        wait_until(begun.is_set)
        calling.kill()

        assert ended.wait(10)


@pytest.mark.parametrize("in_hub", [True, False], ids=["in a hub", "without a hub"])
def test_stop_ends_running_calls_with_an_error(in_hub):
    threaded = ServerThread(FakeNsqd())
    begun = threading.Event()
    errors = []

    def ask():
        with pytest.raises(RuntimeError, match="server was stopped during the call") as caught:
            threaded.call(lambda: (begun.set(), gevent.sleep(3600)))
        errors.append(caught.value)

    def ask_in_hub():
        gevent.get_hub()
        ask()
        gevent.get_hub().destroy(destroy_loop=True)

    with threaded:
        ended = start_plain_thread(ask_in_hub if in_hub else ask)
        assert begun.wait(10)
    assert ended.wait(10)

    assert len(errors) == 1


def test_server_that_does_not_start_in_time_raises_and_is_stopped():
    stopped, refused = threading.Event(), threading.Event()

    class Slow(FakeNsqd):
        def start(self):
            wait_until(refused.is_set)
            super().start()

        def _shut_down(self):
            super()._shut_down()
            stopped.set()

    threaded = ServerThread(Slow(), timeout=0.01)

    with pytest.raises(TimeoutError, match=r"did not start within 0\.01 s"):
        threaded.start()
    refused.set()

    assert stopped.wait(10)


def test_server_that_does_not_stop_in_time_raises_and_its_thread_ends():
    class Slow(FakeNsqd):
        def _shut_down(self):
            super()._shut_down()
            gevent.sleep(60)

    before = len(os.listdir("/proc/self/task"))
    threaded = ServerThread(Slow(), timeout=0.1)
    threaded.start()

    with pytest.raises(TimeoutError, match=r"did not stop within 0\.1 s"):
        threaded.stop()

    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before)


# --- proxies ----------------------------------------------------------------------------------------------------------


def test_proxy_is_an_instance_of_the_targets_class():
    nsqd = FakeNsqd(record=True).in_thread()
    with nsqd as running:
        assert type(running) is ThreadProxy
        assert isinstance(running, FakeNsqd)
        assert isinstance(nsqd, FakeNsqd)
        assert isinstance(running.transcript, Transcript)
        assert not isinstance(running, FakeLookupd)


def test_operators_of_a_proxy_are_those_of_its_target():
    with FakeCluster(lookupds=0, record=True).in_thread() as cluster:
        first, second = cluster.nsqds
        assert not first.transcript
        first.publish("t", b"1", b"2")
        (entry,) = first.transcript

        assert (len(first.transcript), bool(first.transcript)) == (1, True)
        assert (type(entry), str(entry)) == (ThreadProxy, str(first.transcript).strip("\n"))
        assert entry.bodies == (b"1", b"2")
        assert (first == cluster.nsqds[0], first == second, {first: 1}.get(cluster.nsqds[0])) == (True, False, 1)


def test_iterators_come_back_as_iterators_of_proxies():
    with FakeNsqd().in_thread() as nsqd:
        nsqd.broker.ensure_topic("t").ensure_channel("c", 0.0)

        (channel,) = nsqd.broker.channels()

        assert (type(channel), channel.name) == (ThreadProxy, "c")


def test_frozen_dataclasses_and_exceptions_come_back_as_they_are():
    with FakeNsqd().in_thread() as nsqd:
        nsqd.errors.append(ValueError("not seen: lists come back as copies"))

        assert type(nsqd.options) is NsqdOptions
        assert nsqd.errors == []


def test_proxies_among_arguments_are_the_objects_themselves():
    with FakeNsqd().in_thread() as nsqd:
        added = nsqd.add(on.reply("PUB"), disconnect(), optional=True)

        nsqd.faults.remove(added.rules)

        assert nsqd.faults.sequences == []


def test_attribute_is_set_on_the_target():
    with FakeNsqd().in_thread() as nsqd:
        nsqd.log_level = "debug"

        assert nsqd.wait_until(lambda server: server.log_level, "debug") == "debug"


def test_server_answers_calls_before_its_start_and_after_its_stop():
    nsqd = FakeNsqd().in_thread()
    nsqd.publish("t", b"1")
    with nsqd as running:
        running.publish("t", b"2")

    assert nsqd.messages("t") == running.messages("t") == [b"1", b"2"]
