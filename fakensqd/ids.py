"""Message ids as nsqd makes them: 16 hex digits of time, node and a sequence number, rising within a topic.

Pure. Source: nsqd guid.go: (unix ns >> 20) - 1288834974288 shifted 22, node id (10 bits) shifted 12, sequence (12
bits).
"""

from __future__ import annotations

__all__ = ["IdSource"]

_EPOCH = 1288834974288
_SEQUENCES = 4096
# The sequence is exactly the last three of the hex digits: a table makes an id in 0.05 us where formatting takes 0.25.
_ENDINGS = tuple(b"%03x" % number for number in range(_SEQUENCES))


class IdSource:
    """Make the ids of one topic.

    Args:
        node_id: 0 to 1023, the number of the nsqd.
    """

    __slots__ = ("_head", "_node_id", "_sequence", "_tick")

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._tick = 0
        self._sequence = 0
        self._head = b""

    def take(self, count: int, now_ns: int) -> list[bytes]:
        """Make that many ids. 4096 fit into a tick (1.05 ms); where nsqd waits for the next, this borrows it."""
        tick = now_ns >> 20
        if tick > self._tick:
            self._begin(tick)
        ids: list[bytes] = []
        while count:
            part = _ENDINGS[self._sequence : self._sequence + count]
            head = self._head
            ids += [head + ending for ending in part]
            count -= len(part)
            self._sequence += len(part)
            if self._sequence == _SEQUENCES:
                self._begin(self._tick + 1)
        return ids

    def _begin(self, tick: int) -> None:
        self._tick = tick
        self._sequence = 0
        self._head = b"%013x" % ((tick - _EPOCH) << 10 | self._node_id)
