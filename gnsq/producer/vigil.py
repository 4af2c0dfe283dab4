"""Vigil: the event loop does not fall asleep over the answer to a publish that its caller sends one after another.

A processor that sleeps takes longer to wake, 30 to 60 us on a virtual machine, than an nsqd near by takes to answer. So
behind a lone publish the loop asks for events without waiting, for a little while, and serves everything else
meanwhile. Go's scheduler does the same. It costs up to the processor's time that would have been slept, and is left
where it is in vain: where publishes come one by one, or answers from far away.
"""

from __future__ import annotations

import time

import gevent

from gnsq.producer.publish import Publish

__all__ = ["Vigil"]

# How long the loop stays awake for one answer, and how soon behind another one a publish must begin, seconds.
AWAKE, IN_A_ROW = 0.0001, 0.0003
# Behind an answer that came later none is waited for so, for one publish, then three, seven ... up to this number.
MOST_LEFT_OUT = 1000


class Vigil:
    """Of one hub, the caller's.

    Attributes:
        rounds: How often the loop was kept from sleeping.
    """

    def __init__(self) -> None:
        self.rounds = 0
        # An idle watcher, as long as it runs, makes each round of the loop one that does not wait.
        self._idle = gevent.get_hub().loop.idle(ref=False)
        self._awake = False
        self._end = 0.0
        self._began = 0.0
        self._publish: Publish | None = None
        self._left_out = self._to_leave_out = 0

    def keep(self, publish: Publish) -> None:
        """Take note that this publish alone was sent; stay awake for its answer if that makes sense."""
        # Not the producer's clock: a manual one would stand still meanwhile.
        now = time.monotonic()
        in_a_row, self._began = now - self._began < IN_A_ROW, now
        if not in_a_row:
            return
        if self._to_leave_out:
            self._to_leave_out -= 1
            return
        self._publish = publish
        self._end = now + AWAKE
        if not self._awake:
            self._awake = True
            self._idle.start(self._look)

    def close(self) -> None:
        """Sleep from now on."""
        self._awake = True  # so nothing starts it again
        self._idle.stop()
        self._idle.close()

    def _look(self) -> None:
        self.rounds += 1
        if time.monotonic() < self._end:
            return
        self._awake = False
        self._idle.stop()
        if self._publish is None or self._publish.done:
            self._left_out = 0
        else:
            self._left_out = self._to_leave_out = min(2 * self._left_out + 1, MOST_LEFT_OUT)
        self._publish = None
