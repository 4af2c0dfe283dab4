"""gnsq.run(): starts the clients of a program, and drains them at its end; and the signals that end it."""

import inspect
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gevent
import pytest

import gnsq
from fakensqd import on
from fakensqd.faults import drop
from gnsq.running import StopSignals
from tests.kit import LIMIT, child, peer, wait_until


@pytest.fixture
def consumer(fakensqd):
    """Make consumers of the topic t; each gets what run() needs to end soon."""

    def make(handler=lambda consumer, message: None, topic="t", **options):
        options = {"close_timeout": 5.0, **options}
        return gnsq.Consumer(topic, "c", fakensqd.tcp_address, message_handler=handler, **options)

    return make


def stop(number=signal.SIGTERM):
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


# --- start and end


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_consumers_and_then_producers(fakensqd, consumer, threaded, number):
    producer = gnsq.Producer(fakensqd.tcp_address, threaded=threaded)
    fakensqd.publish("t", b"1")

    def handle(consumer, message):
        stop(number)
        wait_until(lambda: not consumer.is_running)
        producer.publish("copies", message.body)

    gnsq.run(consumer(handle, threaded=threaded), producer)

    assert len(fakensqd.transcript.finished("t")) == 1
    assert fakensqd.messages("copies") == [b"1"]
    assert producer.stats().state == "closed"


def test_run_continues_until_the_last_consumer_has_closed(fakensqd, consumer):
    fakensqd.publish("first", b"1")
    second = consumer(lambda consumer, message: consumer.close(), "second")
    first = consumer(lambda consumer, message: consumer.close(), "first")
    first.on_close.connect(lambda consumer: fakensqd.publish("second", b"2"), weak=False)

    gnsq.run(first, second)

    assert (len(fakensqd.transcript.finished("first")), len(fakensqd.transcript.finished("second"))) == (1, 1)


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
def test_client_with_a_silent_nsqd_does_not_delay_the_others(fakensqd, consumer, threaded):
    fakensqd.publish("t", b"1")
    # The start of each waits for a second: one after another, all would take longer than the limit.
    with peer(lambda sock: gevent.sleep(LIMIT)) as silent, gevent.Timeout(LIMIT / 2):
        options = {"message_handler": lambda consumer, message: None, "threaded": threaded}
        waiting = [gnsq.Consumer("u", "c", silent, **options) for _ in range(5)]
        waiting.append(gnsq.Producer(silent, threaded=threaded))
        gnsq.run(*waiting, consumer(lambda consumer, message: stop()))

    assert len(fakensqd.transcript.finished("t")) == 1


# --- on_ready


def test_on_ready_is_called_once_when_all_clients_are_ready(fakensqd, consumer):
    calls = []
    first, second = consumer(), consumer(topic="u", threaded=True)

    def note():
        calls.append((first.is_ready, second.is_ready))
        gevent.spawn_later(0.1, stop)

    gnsq.run(first, second, on_ready=note)

    assert calls == [(True, True)]


def test_on_ready_is_not_called_before_an_nsqd_is_connected(fakensqd, consumer):
    fakensqd.down()
    calls = []
    waiting = consumer(reconnect_initial=0.01)
    gevent.spawn_later(0.1, lambda: (calls.append(waiting.is_ready), fakensqd.up()))

    gnsq.run(waiting, on_ready=lambda: (calls.append(waiting.is_ready), stop()))

    assert calls == [False, True]


# --- what fails


def test_close_of_a_consumer_that_raises_keeps_no_producer_open(fakensqd):
    class Failing(gnsq.Consumer):
        def close(self, timeout=None):
            super().close(timeout)
            raise ZeroDivisionError

    consumer = Failing("t", "c", fakensqd.tcp_address, message_handler=lambda consumer, message: None)
    producer = gnsq.Producer(fakensqd.tcp_address)
    with pytest.raises(ZeroDivisionError):
        gnsq.run(consumer, producer, on_ready=consumer.close)

    assert consumer.is_closed
    assert producer.is_closed


def test_client_that_does_not_start_drains_the_others(fakensqd, consumer):
    first, second, third = consumer(), gnsq.Consumer("t", "c", fakensqd.tcp_address), consumer()

    with pytest.raises(RuntimeError, match="consumer has no handler"):
        gnsq.run(first, second, third)

    assert [client.stats().state for client in (first, second, third)] == ["closed"] * 3


@pytest.mark.parametrize("threaded", [False, True], ids=["own hub", "threaded"])
def test_message_that_is_not_answered_in_time_is_requeued_and_the_status_is_1(fakensqd, consumer, threaded, lines):
    fakensqd.publish("t", b"1")

    def handle(consumer, message):
        stop()
        gevent.sleep(LIMIT)

    with pytest.raises(SystemExit) as ended:
        gnsq.run(consumer(handle, threaded=threaded, close_timeout=0.1))

    assert ended.value.code == 1
    assert lines(logging.ERROR) == ["t/c: 1 message was not answered, and will be delivered again"]
    assert len(fakensqd.transcript.requeued("t")) == 1


def test_publish_that_is_not_confirmed_in_time_is_logged_and_the_status_is_1(fakensqd, lines):
    producer = gnsq.Producer(fakensqd.tcp_address, close_timeout=0.1, name="orders")

    def publish():
        producer.publish_async("t", b"1")
        stop()

    with fakensqd.add(on.reply("PUB"), drop()), pytest.raises(SystemExit) as ended:
        gnsq.run(producer, on_ready=publish)

    assert ended.value.code == 1
    assert lines(logging.ERROR) == ["orders: 1 message was not confirmed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_finished", [False, True], ids=["unanswered", "all answered"])
def test_thread_that_ends_ends_run_with_status_1(fakensqd, consumer, lines, is_finished):
    fakensqd.publish("t", b"1")

    def handle(consumer, message):
        if is_finished:
            message.finish()
            wait_until(lambda: len(fakensqd.transcript.finished("t")))
        sys.exit("done")

    other = consumer(topic="other")
    with pytest.raises(SystemExit) as ended:
        gnsq.run(consumer(handle, threaded=True), other)

    assert ended.value.code == 1
    assert other.stats().state == "closed"
    # The thread logs its own end, perhaps later than run().
    wait_until(lambda: len(lines(logging.ERROR)) == 2)
    assert [line for line in lines(logging.ERROR) if "t/c: its thread has ended" in line]


def test_handler_that_blocks_its_thread_ends_run_with_status_1(fakensqd, consumer, lines):
    fakensqd.publish("t", b"1")
    released = threading.Event()

    def handle(consumer, message):
        stop()
        released.wait(LIMIT)

    with pytest.raises(SystemExit) as ended:
        gnsq.run(blocked := consumer(handle, threaded=True, close_timeout=0.0))
    released.set()
    blocked.join(LIMIT)

    assert ended.value.code == 1
    (line,) = lines(logging.ERROR)
    assert line.startswith("t/c: not closed within 3 s")
    assert line.endswith("a handler or other code blocks it")


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["while it runs", "during the drain"])
def test_handler_that_ends_the_program_drains_and_gives_its_message_back(fakensqd, consumer, is_stopped, end):
    fakensqd.publish("t", b"1", b"2")

    def handle(consumer, message):
        if is_stopped:
            stop()
            wait_until(lambda: not consumer.is_running)
        raise end

    one = consumer(handle, max_in_flight=2)
    with pytest.raises(type(end)) as ended:
        gnsq.run(one)

    assert ended.value is end
    assert one.stats().state == "closed"
    assert (fakensqd.depth("t", "c"), fakensqd.in_flight("t", "c")) == (2, 0)


def test_run_without_a_client_or_with_a_list_raises(consumer):
    with pytest.raises(ValueError, match=r"run\(\) has no client"):
        gnsq.run()
    with pytest.raises(TypeError, match=r"run\(\) takes Consumers and Producers, one per argument"):
        gnsq.run([consumer()])


# --- signals


def test_run_in_another_thread_raises(consumer):
    with pytest.raises(ValueError, match="only the main thread can receive signals: call this there"):
        gevent.get_hub().threadpool.apply(gnsq.run, (consumer(),))


def test_signal_that_does_not_interrupt_the_wait_of_the_hub_wakes_it():
    # A signal that comes right before the wait does not interrupt it, nor does one that another thread receives.
    def send():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with StopSignals() as signals:
            thread = threading.Thread(target=send)
            thread.start()
            began = time.monotonic()
            signals.requested.wait(LIMIT)
            waited = time.monotonic() - began
            thread.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    assert waited < LIMIT / 2


def test_wakeup_file_descriptor_is_set_back():
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        with StopSignals():
            pass
    finally:
        after = signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)

    assert after == write


def test_signal_that_the_program_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            stop(signal.SIGINT)
            gevent.sleep(0)
            first = signals.number
            stop(signal.SIGTERM)
            signals.requested.wait(LIMIT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert (first, signals.number) == (None, signal.SIGTERM)


def test_second_signal_right_after_the_first_one_is_the_same():
    with StopSignals() as signals:
        stop(signal.SIGINT)
        stop(signal.SIGINT)
        signals.requested.wait(LIMIT)

    assert signals.number is signal.SIGINT


def test_thread_that_does_not_run_its_hub_sees_the_signal():
    with StopSignals() as signals:
        before = signals.is_set(), signals.wait(0)
        stop(signal.SIGTERM)

        assert (before, signals.is_set(), signals.wait(LIMIT)) == ((False, False), True, True)


def test_later_signal_after_the_block_is_for_the_handler_before_it():
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(time.monotonic()))
    try:
        with StopSignals() as signals:
            began = time.monotonic()
            stop(signal.SIGINT)
            signals.requested.wait(LIMIT)
        stop(signal.SIGINT)
        wait_until(lambda: stop(signal.SIGINT) or received)
    finally:
        signal.signal(signal.SIGINT, before)

    assert received[0] - began >= 0.25


def test_many_blocks_that_a_signal_has_ended_leave_one_handler():
    depths = []
    before = signal.signal(signal.SIGINT, lambda *_: depths.append(len(inspect.stack(0))))
    try:
        for blocks in (1, 5):
            for _ in range(blocks):
                with StopSignals() as signals:
                    stop(signal.SIGINT)
                    signals.requested.wait(LIMIT)
            wait_until(lambda blocks=blocks: stop(signal.SIGINT) or len(depths) > blocks // 5)
    finally:
        signal.signal(signal.SIGINT, before)

    assert depths[0] == depths[1]


@pytest.mark.subprocess
def test_signal_right_after_the_first_one_does_not_end_the_end_of_the_program(fakensqd):
    # Python sets the actions of signals back after its atexit functions, before it clears the modules.
    code = """
        import atexit, os, signal, sys
        import gnsq

        class SignalledAtTheEnd:
            def __del__(self, kill=os.kill, pid=os.getpid(), write=os.write):
                write(1, b"end")
                kill(pid, 15)

        def stop():
            os.kill(os.getpid(), signal.SIGTERM)

        last = SignalledAtTheEnd()
        atexit.register(stop)
        gnsq.run(gnsq.Producer(sys.argv[1]), on_ready=stop)
    """
    with child(sys.executable, "-c", textwrap.dedent(code), fakensqd.tcp_address) as process:
        out, err = process.communicate()

    assert (out, err, process.returncode) == ("end", "", 0)


PROGRAM = """
    import logging, sys, time
    import gnsq

    def handle(consumer, message):
        print("handling", flush=True)
        print("unflushed", end="")
        time.sleep(60)

    logging.basicConfig(level=logging.INFO)
    gnsq.run(gnsq.Consumer("t", "c", sys.argv[1], message_handler=handle))
"""


# Python buffers what the programs write to stdout, also if the environment of the tests says otherwise.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.subprocess
def test_second_signal_ends_the_process_at_once_though_its_handler_blocks_the_hub(fakensqd):
    fakensqd.publish("t", b"1")
    with child(sys.executable, "-c", textwrap.dedent(PROGRAM), fakensqd.tcp_address, env=BUFFERED) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        # If it has noticed the first one late, another one counts as the second.
        wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
        out, err = process.communicate()

    assert process.returncode == 130
    assert out == "unflushed"
    assert "SIGINT for the second time: ended at once" in err
    assert "Traceback" not in err


@pytest.mark.subprocess
def test_second_signal_does_not_wait_for_the_reader_of_stdout():
    code = """
        import sys
        from gnsq.running import StopSignals

        with StopSignals() as signals:
            sys.stdout.write("x" * 1000)  # below the size of its buffer
            sys.stderr.write("begun\\n")
            signals.requested.wait(60)
            sys.stderr.write("first\\n")
            while True:
                pass
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:  # fill the pipe
        try:
            os.write(write, b"x" * 65536)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    with child(sys.executable, "-c", textwrap.dedent(code), stdout=write, env=BUFFERED) as process:
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)

        assert process.wait() == 130
    os.close(read)
    os.close(write)
