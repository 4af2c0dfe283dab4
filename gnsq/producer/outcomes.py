"""What a publish may end as, and what is tried again. PURE."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

from gnsq.errors import (
    NSQBadTopic,
    NSQDPubFailed,
    NSQErrorCode,
    NSQException,
    NSQMPubFailed,
    NSQNotSent,
    NSQPubFailed,
    NSQPutFailed,
    NSQUnauthorized,
)

__all__ = ["Totals", "copied", "forbids", "is_about_the_nsqd", "is_about_the_topic", "leaves_open", "tries_elsewhere"]

_Error = TypeVar("_Error", bound=NSQException)

# nsqd could not take what is in order: it ends, its topic is being deleted, or its disk is full.
_ABOUT_THE_NSQD = (NSQPubFailed, NSQMPubFailed, NSQDPubFailed, NSQPutFailed)


def is_about_the_nsqd(error: object) -> bool:
    """Whether a refusal says something of the nsqd, and not of what was published."""
    return isinstance(error, _ABOUT_THE_NSQD)


def is_about_the_topic(error: object) -> bool:
    """Whether a refusal says something of the topic: so of all that is published to it."""
    return isinstance(error, (NSQUnauthorized, NSQBadTopic))


def forbids(error: object) -> bool:
    """Whether a refusal is the end of the connection, and of all that it has for the same topic.

    Source: nsqd protocol_v2.go, CheckAuth. HTTP knows no such thing.
    """
    return isinstance(error, NSQUnauthorized)


def copied(error: _Error) -> _Error:
    """Copy an error, for one of several that end with it: each is raised with a traceback of its own."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def leaves_open(error: NSQErrorCode) -> bool:
    """Whether a refused MPUB may have been taken in part: nsqd stops at the first message that it can't store. One that
    ends, and says so, has taken none.

    Source: nsqd topic.go, PutMessages; http.go, doMPUB, says EXITING of either.
    """
    return isinstance(error, NSQMPubFailed) and not error.text.endswith("exiting")


def tries_elsewhere(error: NSQErrorCode, refusals: int, nsqds: int) -> bool:
    """Whether a refused publish is tried again: each nsqd may refuse it once, a single one twice.

    It can't duplicate anything: nsqd has not taken what it refuses, unless that leaves_open(). What is wrong with the
    publish itself is wrong everywhere.

    Args:
        refusals: How often it was refused, this time included.
    """
    return is_about_the_nsqd(error) and refusals < max(nsqds, 2)


@dataclass(slots=True)
class Totals:
    """Messages by what became of them, and how often something had to be sent again."""

    confirmed: int = 0
    refused: int = 0
    not_sent: int = 0
    unknown: int = 0
    sent_again: int = 0
    repeated: int = 0

    def count(self, error: NSQException, messages: int) -> None:
        """Count what ended with an error."""
        if isinstance(error, NSQErrorCode):
            self.refused += messages
        elif isinstance(error, NSQNotSent):
            self.not_sent += messages
        else:
            self.unknown += messages
