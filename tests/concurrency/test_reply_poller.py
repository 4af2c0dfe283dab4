"""ReplyPoller: when it polls, and when a reply is left to the event loop."""

import pytest

from gnsq.concurrency.reply_poller import MAX_RUN_SECONDS, MAX_SKIPPED, POLL_SECONDS, QUICK_REPLY, ReplyPoller


class Peer:
    """A peer whose replies take a given time. Its clock goes on by 10 us with each look at it or at the socket."""

    def __init__(self):
        self.now = 1000.0
        self.reads = 0
        self.delay = 0.0
        self._asked = 0.0
        self.poller = ReplyPoller(self.monotonic)

    def monotonic(self):
        self.now += 1e-5
        return self.now

    def _read(self):
        self.reads += 1
        self.now += 1e-5
        if self.now < self._asked + self.delay:
            raise BlockingIOError
        return b"reply"

    def ask(self, delay, work=0.0):
        """Ask the peer, whose reply takes a delay, then work. Return True if a poll brought the reply."""
        self._asked, self.delay = self.now, delay
        reply = self.poller.poll(self._read)
        if reply is None:
            self.now = max(self.now, self._asked + delay)
            self.poller.record_reply()
        self.now += work
        return reply == b"reply"


@pytest.fixture
def peer():
    return Peer()


def test_replies_are_polled_for_after_a_quick_one(peer):
    assert [peer.ask(POLL_SECONDS / 2) for _ in range(4)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("delay", "work"),
    [
        pytest.param(2 * QUICK_REPLY, 0.0, id="slow peer"),
        pytest.param(1.0, 0.0, id="idle"),
        pytest.param(POLL_SECONDS / 2, 1.1 * MAX_RUN_SECONDS, id="slow handler"),
    ],
)
def test_socket_is_not_read_in_vain(peer, delay, work):
    for _ in range(100):
        peer.ask(POLL_SECONDS / 2, work)
        peer.ask(delay, work)
        peer.reads = 0
        assert not peer.ask(delay, work)

    assert peer.reads == 0


def test_event_loop_runs_after_a_limited_time(peer):
    peer.ask(POLL_SECONDS / 2)
    began = peer.now
    while peer.ask(POLL_SECONDS / 2):
        pass

    assert MAX_RUN_SECONDS <= peer.now - began < MAX_RUN_SECONDS + 2 * POLL_SECONDS


def test_polls_end_and_become_rare_if_replies_come_just_too_late(peer):
    late = (POLL_SECONDS + QUICK_REPLY) / 2
    peer.ask(late)
    polled = []
    for _ in range(20):
        before = peer.poller.polls
        assert not peer.ask(late)
        polled.append(peer.poller.polls > before)

    assert [place for place, was in enumerate(polled) if was] == [0, 2, 6, 14]
    for _ in range(20 * MAX_SKIPPED):
        peer.ask(late)
    assert peer.poller.polls <= 4 + 10 + 20
    # One reply in time is enough to poll again.
    for _ in range(MAX_SKIPPED):
        peer.ask(POLL_SECONDS / 2)
    assert peer.ask(POLL_SECONDS / 2)


def test_error_of_the_socket_is_raised(peer):
    peer.ask(POLL_SECONDS / 2)

    def read():
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        peer.poller.poll(read)
