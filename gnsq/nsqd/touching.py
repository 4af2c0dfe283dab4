"""Toucher: keeps one message from timing out while somebody works on it.

Owns the greenlet that sends TOUCH. Asks the message how much time is left, and reads no wire.
"""

from __future__ import annotations

import logging

import gevent

from gnsq.clock import Clock
from gnsq.errors import NSQException
from gnsq.message import Message

__all__ = ["Toucher"]

logger = logging.getLogger(__name__)

# However little time is left, it does not hurry more than this, seconds: nsqd looks for timeouts every 0.1 s.
SHORTEST_PAUSE = 0.1


class Toucher:
    """Touches a message until it is stopped, the message is answered, its connection is gone or TOUCH is of no use.

    Belongs to the hub that calls start().

    Args:
        interval: Seconds between two touches. One comes earlier than that when half of the time left has passed.
        clock: What to sleep by.
        subject: How log lines begin: which nsqd has delivered the message, and to which consumer.
    """

    def __init__(self, message: Message, interval: float, clock: Clock, subject: str) -> None:
        self._message = message
        self._subject = subject
        self._interval = interval
        self._clock = clock
        self._greenlet: gevent.Greenlet | None = None
        self._stopped = False
        self._asleep = False

    def start(self) -> None:
        """Begin; once, and never behind stop()."""
        if self._greenlet is None and not self._stopped:
            self._greenlet = gevent.spawn(self._run)
            self._greenlet.name = f"gnsq-touch-{self._message.id!r}"

    def stop(self) -> None:
        """Send no more TOUCH from here on. Does not wait; may be repeated; for any greenlet of the hub."""
        self._stopped = True
        # Only out of its sleep: a send must not be cut short.
        if self._greenlet is not None and self._asleep:
            self._greenlet.kill(block=False)

    @property
    def ended(self) -> bool:
        """Whether it has been started and no greenlet of it is left."""
        return self._greenlet is not None and bool(self._greenlet.dead)

    def _run(self) -> None:
        try:
            self._touch_on()
        except NSQException as error:
            # Answered in this very moment, or the connection is gone; both are told elsewhere.
            logger.debug("%s: message %s: not touched any more: %s", self._subject, self._message.id, error)
        except Exception:  # top of a greenlet: a receiver of on_touch may raise anything
            logger.exception("%s: message %s: not touched any more", self._subject, self._message.id)

    def _touch_on(self) -> None:
        message = self._message
        while not self._stopped:
            self._asleep = True
            self._clock.sleep(self._pause())
            self._asleep = False
            if self._stopped or message.has_responded():
                return
            if message.touchable_for == 0:
                logger.warning(
                    "%s: message %s: TOUCH can't keep it any longer, max_msg_timeout has passed since its delivery: "
                    "nsqd takes it back and delivers it again, while the work on it still goes on here; the answer to "
                    "this delivery will fail",
                    self._subject,
                    message.id,
                )
                return
            message.touch()

    def _pause(self) -> float:
        """Decide how long to wait before the next touch, or for the end of what touching can do."""
        left, longest = self._message.time_left, self._message.touchable_for
        pause = self._interval
        # Half: work may begin long after the arrival. At the end of max_msg_timeout a touch adds nothing, and is sent
        # by the interval only, to learn whether the connection is still there.
        if left is not None and (longest is None or left < longest):
            pause = min(pause, max(left / 2, SHORTEST_PAUSE))
        return pause if longest is None else min(pause, longest)
