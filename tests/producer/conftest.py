"""nsqds and producers in one hub, on a clock that the test turns."""

import threading
import time

import gevent
import pytest

from gnsq import Producer
from gnsq.errors import NSQErrorCode, NSQNoConnections, NSQNotSent, NSQUnknown
from gnsq.logs import LogOwner
from gnsq.producer.dispatcher import Dispatcher
from gnsq.producer.options import ProducerOptions
from gnsq.producer.publish import PublishCounts
from gnsq.producer.routing import round_robin
from tests.kit import LIMIT, wait_until


@pytest.fixture
def producing(clock):
    """Start producers that are closed at the end."""
    made = []

    def start(*nsqds, **options):
        options = {"max_backoff_duration": 1.0, **options}
        producer = Producer([nsqd.tcp_address for nsqd in nsqds], clock=clock, **options)
        starting = gevent.spawn(producer.start)
        clock.advance(0.0)
        made.append((producer, starting))
        return producer

    yield start
    for producer, starting in made:
        closing = gevent.spawn(producer.close, 1.0)
        clock.advance(3.0)
        assert closing.ready()
        starting.kill()


class Job:
    """Publishes in a greenlet. Outcome: "confirmed", "refused", "not sent", "unknown"; None while it is pending."""

    def __init__(self, function, *arguments, **options):
        self.body = arguments[1]
        self.outcome: str | None = None
        self.error: Exception | None = None
        self._greenlet = gevent.spawn(self._publish, function, *arguments, **options)

    def kill(self):
        """Do not wait any longer."""
        self._greenlet.kill()

    def _publish(self, function, *arguments, **options):
        try:
            assert function(*arguments, **options) == b"OK"
        except NSQErrorCode as error:
            self.outcome, self.error = "refused", error
        except NSQNotSent as error:
            self.outcome, self.error = "not sent", error
        except NSQUnknown as error:
            self.outcome, self.error = "unknown", error
        else:
            self.outcome = "confirmed"


@pytest.fixture
def begin():
    """Call something that publishes in a greenlet of its own, and let it come as far as it can at once."""
    jobs = []

    def begin(function, *arguments, **options):
        job = Job(function, *arguments, **options)
        gevent.sleep(0)
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.kill()


def plain(function):
    """A function as it is: the thread has no hub."""
    return function()


def with_hub(function):
    """Call a function in a greenlet of the thread's own hub, which must go on running."""
    ticks = []

    def tick():
        while True:
            ticks.append(None)
            gevent.sleep(0.001)

    ticking = gevent.spawn(tick)
    try:
        return gevent.spawn(function).get()
    finally:
        ticking.kill()
        gevent.get_hub().destroy(destroy_loop=True)


KINDS = [pytest.param(plain, id="plain threads"), pytest.param(with_hub, id="threads with hubs")]


class Threads:
    """OS threads that run beside the test's hub."""

    def __init__(self):
        self.outcomes = []
        self._threads = []

    def start(self, function, kind=plain, count=1):
        for number in range(count):
            self._threads.append(threading.Thread(target=self._run, args=(function, kind, number)))
            self._threads[-1].start()

    def _run(self, function, kind, number):
        try:
            self.outcomes.append(kind(lambda: function(number)))
        except Exception as error:  # noqa: BLE001  # it is the test's
            self.outcomes.append(error)

    def wait(self):
        """Wait for all, while this thread's hub runs; give back what they returned or raised."""
        wait_until(lambda: not any(thread.is_alive() for thread in self._threads), LIMIT)
        return self.outcomes


@pytest.fixture
def threads():
    made = Threads()
    yield made
    made.wait()


def stored(*nsqds, topic="t"):
    """Messages that nsqds have stored, in the order of each."""
    return [body for nsqd in nsqds for body in nsqd.messages(topic)]


class ListLink:
    """A link that keeps its publishes in lists; the test acts as nsqd."""

    def __init__(self, address):
        self.address = address
        self.writer = self
        self.pending = self
        self.due = 0.0
        self.unsent = []
        self.sent = []
        self.withdrawals = []
        self.submit = self.unsent.append
        self.polls = 0
        self.last_read = 0.0
        self.aborts = []
        self.abort = self.aborts.append  # the test itself decides what becomes of the publishes

    def poll_reply(self):
        """No response comes within microseconds."""
        self.polls += 1

    def __len__(self):
        return len(self.unsent) + len(self.sent)

    def send(self):
        """Send all; gives that."""
        sent = list(self.unsent)
        self.sent += sent
        self.unsent.clear()
        return sent

    def expire_unsent(self, now):
        for publish in self.cancel_unsent([publish for publish in self.unsent if publish.deadline <= now]):
            publish.on_overdue(now)
        self.due = min([publish.deadline for publish in self.unsent], default=float("inf"))

    def cancel_unsent(self, publishes):
        taken = [publish for publish in self.unsent if publish in publishes]
        self.unsent[:] = [publish for publish in self.unsent if publish not in taken]
        self.withdrawals.append(taken)
        return taken


@pytest.fixture
def link():
    return ListLink("nsqd:4150")


@pytest.fixture
def dispatcher(clock, link):
    """A producer's, with that link."""
    return dispatcher_with(clock, link)


def dispatcher_with(clock, *links, **options):
    made = Dispatcher(
        ProducerOptions(**options),
        clock,
        round_robin(),
        PublishCounts(),
        nsqd_count=lambda: 1,
        no_connection_error=lambda limit: NSQNoConnections(limit),
        owner=LogOwner("producer", time.monotonic),
    )
    for link in links:
        made.add(link)
    return made
