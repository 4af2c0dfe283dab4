"""ChannelWatch: creates a query's channel, asks its depth now and then, and says when nobody receives it.

What is connected runs on a hub thread; its methods are called from another one.
"""

from __future__ import annotations

import logging
import time

import gevent

from gnsq.concurrency.hub_thread import HubThread
from gnsq.errors import NSQException
from gnsq.spark.channel import ChannelClient
from gnsq.spark.drain import Depth, Unattended
from gnsq.spark.options import ReadOptions

__all__ = ["ChannelWatch"]

logger = logging.getLogger(__name__)

# Seconds between two looks by itself, and at least between two that somebody asks for.
REPORT = 2.0
ASK = 0.2


class ChannelWatch:
    """Nothing happens before start().

    Args:
        options: The query's.
        location: Its spool, for people.

    Attributes:
        depth: What was said last; None if nobody has said anything.
        asked_at: When that was asked for, in seconds of time.monotonic().
    """

    def __init__(self, hub: HubThread, options: ReadOptions, location: str) -> None:
        self.depth: Depth | None = None
        self.asked_at = 0.0
        self._hub = hub
        self._options = options
        self._location = location
        self._failed = False
        self._client = hub.call(ChannelClient, options)

    @property
    def can_ask(self) -> bool:
        """Whether there is any address to ask."""
        return self._client.can_ask

    def start(self) -> None:
        """Create the channel if it is missing, and begin to watch."""
        if self.can_ask:
            self._hub.call(self._start)

    def ask(self, interval: float = ASK) -> Depth | None:
        """Ask now; None if nobody answers, or somebody asked in the last seconds."""
        if not self.can_ask or time.monotonic() - self.asked_at < interval:
            return None
        return self._hub.call(self._read)

    def close(self) -> None:
        """Close the connections."""
        self._hub.call(self._client.close)

    # --- in the hub

    def _start(self) -> None:
        try:
            self._client.create()
        except NSQException as error:
            # The consumer's SUB will create it; until then it is not seen in the depth.
            logger.warning("channel %s not created: %s", self._options.source, error)
        gevent.spawn(self._watch).name = f"gnsq-depth-{self._options.source}"

    def _read(self) -> Depth | None:
        asked_at = time.monotonic()
        try:
            self.depth = self._client.depth(partial=True)
        except NSQException as error:
            # Once, not at each look.
            level = logging.DEBUG if self._failed else logging.WARNING
            logger.log(level, "depth of %s unknown: %s", self._options.source, error)
            self.depth = None
        self.asked_at = asked_at
        self._failed = self.depth is None
        return self.depth

    def _watch(self) -> None:
        unattended = Unattended(time.monotonic())
        while True:
            depth = self._read()
            if not self._options.receives_here and unattended.is_due(depth, time.monotonic()):
                self._warn()
            gevent.sleep(REPORT)

    def _warn(self) -> None:
        options = self._options
        remedy = "start receivers: python -m gnsq.spark.receiver --help"
        if options.receiver_count:
            remedy = "has the application cores for its receivers, do they fail? See its log, or use receivers=driver"
        logger.warning(
            "channel %s has messages waiting and no consumer, the spool %s gets nothing: %s",
            options.source,
            self._location,
            remedy,
        )
