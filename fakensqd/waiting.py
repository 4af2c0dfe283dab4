"""Wait until a question is answered as expected; say how far it came if it is not.

A shell: it waits in the hub, for entries of a transcript and a little real time.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gevent.event import Event

from fakensqd.transcript import Transcript

__all__ = ["NotAnswered", "difference", "wait_for"]

_Value = TypeVar("_Value")
# What no transcript tells of (depths, timeouts) is looked at so often.
_PACE = 0.005
_SHOWN = 40


class NotAnswered(AssertionError):
    """A question was not answered as expected within its limit.

    Attributes:
        transcript: The end of what happened, shown below the text; empty where it is shown elsewhere.
    """

    def __init__(self, text: str, transcript: str = "") -> None:
        super().__init__(text)
        self.transcript = transcript

    def __str__(self) -> str:
        return "\n".join(filter(None, [super().__str__(), self.transcript]))


def wait_for(
    question: Callable[[], _Value], expected: object = True, *, limit: float, transcript: Transcript | None = None
) -> _Value:
    """Wait until the answer is as expected, and give it back.

    Args:
        expected: A value; True: anything that is true.
        limit: Seconds of real time.
        transcript: Looked at whenever something is recorded, and shown in a failure.

    Raises:
        NotAnswered: If it has not come so far within the limit.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + limit
    happened = Event()
    nearest: _Value | None = None
    near = -1.0
    before = transcript.on_entry if transcript is not None else None
    if transcript is not None:
        transcript.on_entry = happened.set
    try:
        while True:
            answer = question()
            if answer == expected or (expected is True and answer):
                return answer
            if (nearness := _nearness(answer, expected)) >= near:
                near, nearest = nearness, answer
            if time.monotonic() > deadline:
                break
            happened.clear()
            happened.wait(_PACE)
    finally:
        if transcript is not None:
            transcript.on_entry = before
    text = f"not so within {limit:g} s: {difference(expected, nearest)}"
    raise NotAnswered(text, transcript.text(_SHOWN) if transcript is not None else "")


def difference(expected: object, nearest: object) -> str:
    """Say in words how an answer differs from what was expected; of lists, line by line."""
    head = f"expected {expected!r}, nearest was {nearest!r}"
    if not isinstance(expected, (list, tuple)) or not isinstance(nearest, (list, tuple)):
        return head
    lines = difflib.ndiff([repr(item) for item in expected], [repr(item) for item in nearest])
    return "\n".join([head, *(line for line in lines if not line.startswith("?"))])


def _nearness(answer: object, expected: object) -> float:
    """How near it comes, from 0 to 1."""
    if isinstance(answer, (int, float)) and isinstance(expected, (int, float)):
        return 1 / (1 + abs(expected - answer))
    if isinstance(answer, Sequence) and isinstance(expected, Sequence):
        return difflib.SequenceMatcher(None, list(map(repr, answer)), list(map(repr, expected))).ratio()
    return 0.0
