"""A decoder of whole commands, for tests: the emulator checks between line, size and body, as nsqd does."""

from gnsq.protocol import commands

BODY_COMMANDS = frozenset([b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"])


class CommandDecoder(commands.CommandDecoder):
    """Cut what a client sends into commands."""

    __slots__ = ("_head",)

    def __init__(self):
        super().__init__()
        self._head = None

    def next_command(self):
        """Take one whole command; None while it is not all here.

        Raises:
            ValueError: If its line is too long or its body has a negative size.
        """
        if self._head is None:
            line = self.take_line()
            if line is None:
                return None
            name, *words = line.split(b" ")
            self._head = (name, tuple(words), None)
        name, words, size = self._head
        if name not in BODY_COMMANDS:
            self._head = None
            return commands.Command(name, words)
        if size is None:
            size = self.take_size()
            if size is None:
                return None
            if size < 0:
                raise ValueError(f"{name.decode()} body size {size} is negative")
            self._head = (name, words, size)
        body = self.take(size)
        if body is None:
            return None
        self._head = None
        return commands.Command(name, words, body)
