"""The dispatcher: from the call to a link and back, stalled links, and polls for replies."""

import contextlib
import sys

import gevent
import pytest

from fakensqd import FakeAuthServer, FakeNsqd, Grant, on
from fakensqd.faults import error
from fakensqd.faults.toxics import stall
from gnsq import Producer
from gnsq.concurrency import reply_poller
from gnsq.errors import NSQUnauthorized
from gnsq.producer.deadlines import StallDetector
from gnsq.producer.publish import PendingPublish
from tests.kit import LIMIT, interrupted
from tests.producer.conftest import ListLink, dispatcher_with, stored


def publish_until(deadline, started=0.0):
    return PendingPublish("t", b"x", started, deadline)


# --- who waits


def test_switch_by_another_greenlet_confirms_nothing(nsqd, clock, producing):
    producer = producing(nsqd)
    returned = []
    with nsqd.link.add(stall(), upstream=False):
        publisher = gevent.spawn(lambda: returned.append(producer.publish("t", b"x")))
        gevent.sleep(0)
        gevent.get_hub().loop.run_callback(publisher.switch)
        clock.advance(1.0)
        assert returned == []

    clock.advance(1.0)

    assert returned == [b"OK"]
    assert producer.stats().pending == 0


def test_error_of_several_publishes_has_a_new_traceback_in_each(dispatcher, clock):
    shared = NSQUnauthorized("AUTH failed")
    depths = []

    def fail(publish):
        gevent.get_hub().loop.run_callback(dispatcher.fail, publish, shared)
        try:
            dispatcher.publish(publish, True)
        except NSQUnauthorized as raised:
            traceback, depth = raised.__traceback__, 0
            while traceback is not None:
                traceback, depth = traceback.tb_next, depth + 1
            depths.append(depth)

    for _ in range(3):
        gevent.spawn(fail, publish_until(60.0)).join()

    assert len(depths) == 3
    assert len(set(depths)) == 1


# --- topics that are not allowed


@pytest.mark.parametrize("batching", [{}, {"batch_messages": 5}], ids=["alone", "in batches"])
def test_publishes_to_a_topic_that_is_not_allowed_cost_one_connection(clock, producing, begin, batching):
    with (
        FakeAuthServer({"s": [Grant(topic="^t$")]}) as auth,
        FakeNsqd(clock=clock, record=True, auth_http_addresses=auth.http_address) as nsqd,
    ):
        producer = producing(nsqd, auth_secret=b"s", **batching)

        jobs = [begin(producer.publish, "no", b"%d" % number) for number in range(20)]
        good = [begin(producer.publish, "t", b"%d" % number) for number in range(20)]
        clock.advance(1.0)

        assert {type(job.error) for job in jobs} == {NSQUnauthorized}
        assert [job.outcome for job in good] == ["confirmed"] * 20
        assert len(nsqd.transcript.select("connect")) == 2


def test_publishes_after_a_forbidden_topic_are_refused_if_they_have_it_and_else_retried(nsqd, clock, producing, begin):
    producer = producing(nsqd)
    for topic in ("t", "u"):
        begin(producer.publish, topic, b"first")
        clock.advance(1.0)
    nsqd.add(on.command("PUB", body=b"1"), error("E_UNAUTHORIZED"))

    jobs = [begin(producer.publish, topic, b"%d" % number) for number, topic in enumerate(["t", "t", "u", "t"])]
    clock.advance(1.0)

    assert [job.outcome for job in jobs] == ["confirmed", "refused", "confirmed", "refused"]
    assert (stored(nsqd), stored(nsqd, topic="u")) == ([b"first", b"0"], [b"first", b"2"])
    assert producer.stats().pending == 0


# --- time


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "not sent"])
def test_expired_publish_that_was_sent_holds_no_bytes(dispatcher, link, clock, sent):
    running = gevent.spawn(dispatcher.deadlines.run)
    late, patient = publish_until(1.0), publish_until(50.0)
    for publish in (late, patient):
        dispatcher.submit(publish, True)
    if sent:
        link.send()

    clock.advance(1.1)

    assert (late.done, patient.done) == (True, False)
    assert (late.body == b"") is sent
    assert (late in link.sent, late in link.unsent) == (sent, False)
    running.kill()


@pytest.mark.parametrize("is_read", [True, False], ids=["response waits in the socket", "no response"])
def test_response_is_read_before_its_connection_is_closed_as_silent(dispatcher, link, clock, is_read):
    running = gevent.spawn(dispatcher.deadlines.run)
    dispatcher.submit(publish_until(6.0), True)
    (late,) = link.send()
    clock.advance(6.0)  # as if the hub was blocked: nothing was read meanwhile
    assert (late.done, link.aborts) == (True, [])

    if is_read:
        link.sent.remove(late)
    clock.advance(1.0)

    assert len(link.aborts) == (0 if is_read else 1)
    running.kill()


def test_stall_detector_starts_anew_for_a_link_that_was_left_out():
    detector = StallDetector()
    link, other = ListLink("nsqd:4150"), ListLink("other:4150")
    link.sent.append(publish_until(60.0))
    detector.partition([link, other], 0.0)

    detector.partition([other], 1.0)

    assert detector.partition([link, other], 6.0) == ([link, other], [])
    assert detector.partition([link, other], 11.0) == ([other], [link])


# --- polling for the response


class QuickLink(ListLink):
    """A link whose nsqd responds while a publish is polled for."""

    def poll_reply(self):
        super().poll_reply()
        sent = self.send()
        if sent:
            sent[0].owner.confirm(sent)


def test_publish_that_is_alone_and_confirmed_at_once_needs_no_event_loop(clock):
    link = QuickLink("nsqd:4150")
    dispatcher = dispatcher_with(clock, link)

    with gevent.Timeout(0):
        for _ in range(3):
            dispatcher.publish(publish_until(60.0), True)

    assert (dispatcher.pending, dispatcher.pending_bytes) == (0, 0)


def test_response_is_polled_for_only_if_no_other_publish_is_pending(clock, link):
    dispatcher = dispatcher_with(clock, link)

    waiting = [gevent.spawn(dispatcher.publish, publish_until(60.0), True) for _ in range(2)]
    gevent.sleep(0)

    assert link.polls == 1
    gevent.killall(waiting)


def test_response_is_not_polled_for_while_other_callers_are_to_be_woken(clock, link):
    dispatcher = dispatcher_with(clock, link)

    def publish_twice():
        dispatcher.publish(publish_until(60.0), True)
        dispatcher.publish(publish_until(60.0), True)

    waiting = [gevent.spawn(publish_twice) for _ in range(3)]
    gevent.sleep(0)
    polls = link.polls
    gevent.get_hub().loop.run_callback(dispatcher.confirm, link.send())
    gevent.sleep(0)

    assert (len(link.unsent), dispatcher.pending) == (3, 3)
    assert link.polls == polls
    gevent.killall(waiting)


@pytest.mark.parametrize(
    ("links", "options"), [(0, {}), (1, {"batch_messages": 10})], ids=["waits for a connection", "waits for a batch"]
)
def test_response_is_not_polled_for_before_the_publish_is_sent(clock, link, links, options):
    dispatcher = dispatcher_with(clock, *[link][:links], **options)

    waiting = gevent.spawn(dispatcher.publish, publish_until(60.0), True)
    gevent.sleep(0)

    assert link.polls == 0
    waiting.kill()


# --- signal handlers that raise


def raise_interrupt():
    raise KeyboardInterrupt


def publish_interrupted(producer, line):
    with (
        contextlib.suppress(KeyboardInterrupt),
        interrupted(line, raise_interrupt, "gnsq.", only=gevent.getcurrent()),
    ):
        producer.publish("t", b"x", timeout=LIMIT)


@pytest.mark.parametrize("line", range(1, 150, 3))
def test_publish_that_a_signal_handler_interrupts_gets_no_response_of_a_later_one(fakensqd, monkeypatch, line):
    # The publish is polled for, however slow the lines are.
    monkeypatch.setattr(reply_poller, "QUICK_REPLY", 1.0)
    monkeypatch.setattr(reply_poller, "MAX_RUN_SECONDS", 1.0)
    monkeypatch.setattr(reply_poller, "POLL_SECONDS", 0.1)
    with Producer(fakensqd.tcp_address, reconnect_initial=0.001) as producer:
        producer.publish("t", b"x", timeout=LIMIT)
        # In a greenlet that ends: CPython 3.11 takes an exception of a trace function in a handler of exceptions for
        # one that is handled still, until the frames of this greenlet are gone.
        gevent.spawn(publish_interrupted, producer, line).join(LIMIT)

        assert sys.exception() is None
        assert producer.publish("t", b"x", timeout=LIMIT) == b"OK"
