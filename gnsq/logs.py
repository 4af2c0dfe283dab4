"""Log lines of a Consumer or Producer (their owner): how they begin, their fields, and a limit for similar lines.

A line names its subject, for people: the server, the owner, the message. The record has the same as fields, for
programs: ``client``, ``topic``, ``channel``, ``nsqd``, ``nsqlookupd``, ``message_id`` and ``attempt``, as far as they
are known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gnsq.texts import counted, id_text

__all__ = ["INTERVAL", "ClientLog", "LogOwner", "message_fields"]

# Seconds in which only the first lines of a kind, by default one line, are logged at their level.
INTERVAL = 60.0
# Number of remembered kinds at which the kinds whose interval is over are forgotten, with their counts.
MAX_KINDS = 1000


class LogOwner:
    """Stands for the Consumer or Producer that log lines name. All parts of a client share one LogOwner.

    Args:
        label: Name of the Consumer or Producer in log lines; empty: the lines name none.
        now: Returns monotonic seconds, for the rate limits.
        fields: Fields of all its lines, such as the topic.
    """

    def __init__(self, label: str, now: Callable[[], float], **fields: str) -> None:
        self.label = label
        self.now = now
        self.fields = {"client": label, **fields} if label else fields
        # By logger and kind: end of the interval, lines logged at their level in it, lines logged at DEBUG and not yet
        # told.
        self.kinds: dict[tuple[str, str], tuple[float, int, int]] = {}

    def log(self, logger: logging.Logger, **server: str) -> ClientLog:
        """Return the log of a module for lines about the client, or about a server: ``nsqd="host:port"``."""
        return ClientLog(logger, self, **server)


class LoggedMessage(Protocol):
    """What a line about a message shows of it."""

    @property
    def id(self) -> bytes: ...
    @property
    def attempts(self) -> int: ...
    @property
    def nsqd(self) -> str | None: ...


def message_fields(message: LoggedMessage) -> dict[str, object]:
    """Return the fields of a line about a message."""
    return {"nsqd": message.nsqd, "message_id": id_text(message.id), "attempt": message.attempts}


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Logs lines about one subject. All methods take ``message=``, for a line about a message. A line whose level is
    off costs one call: neither the text nor the fields are made.

    Args:
        server: Field and address of the server that the lines are about, if any.
    """

    def __init__(self, logger: logging.Logger, owner: LogOwner, **server: str) -> None:
        super().__init__(logger)
        self._fields = {**owner.fields, **server}
        self._owner = owner
        self._subjects = [*server.values(), owner.label] if owner.label else [*server.values()]

    def log(  # type: ignore[override]  # fewer arguments by name
        self,
        level: int,
        msg: str,
        *args: object,
        message: LoggedMessage | None = None,
        extra: Mapping[str, object] | None = None,
        stacklevel: int = 1,
        **kwargs: Any,  # Any: exc_info
    ) -> None:
        """Log a line, which begins with the subject. ``extra`` has further fields."""
        if not self.logger.isEnabledFor(level):
            return
        subjects, fields = self._subjects, {**self._fields, **(extra or {})}
        if message is not None:
            of = "" if "nsqd" in fields else f" of {message.nsqd}"
            subjects = [*subjects, f"message {message.id!r}{of}"]
            fields |= message_fields(message)
        if subjects:
            subject = ": ".join(subjects)
            msg, args = (f"%s: {msg}", (subject, *args)) if args else ("%s: %s", (subject, msg))
        self.logger.log(level, msg, *args, extra=fields, stacklevel=stacklevel + 1, **kwargs)

    def limited(
        self, level: int, kind: str, msg: str, *args: object, burst: int = 1, since: float = -math.inf, **kwargs: Any
    ) -> None:
        """Log a line of some kind; if there were too many of this kind, log the line at DEBUG, and count it.

        The next line of the kind at its level, after INTERVAL, tells how many were logged at DEBUG meanwhile. All
        logs of a module and an owner have their limit together.

        Args:
            burst: Number of lines of this kind that are logged at their level in one INTERVAL.
            since: Start a new interval if the current one began before this time, monotonic seconds.
            kwargs: Of log().
        """
        kinds, key = self._owner.kinds, (self.logger.name, kind)
        due, said, unsaid = kinds.get(key, (0.0, 0, 0))
        now = self._owner.now()
        if key not in kinds or now >= due or due - INTERVAL < since:
            due, said = now + INTERVAL, 0
        if said >= burst:
            kinds[key] = (due, said, unsaid + 1)
            self.log(logging.DEBUG, msg, *args, stacklevel=2, **kwargs)
            return
        if len(kinds) >= MAX_KINDS:
            self._owner.kinds = kinds = {known: entry for known, entry in kinds.items() if now < entry[0]}
        kinds[key] = (due, said + 1, 0)
        if unsaid:
            msg, args = msg + " (and %d like it since the last such line)", (*args, unsaid)
        self.log(level, msg, *args, stacklevel=2, **kwargs)

    def is_due(self, kind: str, *, burst: int = 1) -> bool:
        """Return True if limited() logs a line of this kind at its level now. If not, a long text need not be built."""
        due, said, _ = self._owner.kinds.get((self.logger.name, kind), (0.0, 0, 0))
        return said < burst or self._owner.now() >= due

    def limited_rest(self, level: int, kind: str, noun: str, msg: str, *, at_once: bool = False) -> None:
        """Log how many lines of a kind were logged at DEBUG and not yet told, if any and the interval is over.

        Args:
            noun: Noun after the number, in the singular.
            msg: Format of the line, with a %s for the number with the noun.
            at_once: Log also if the interval is not over.
        """
        due, said, unsaid = self._owner.kinds.get((self.logger.name, kind), (0.0, 0, 0))
        if unsaid and (at_once or self._owner.now() >= due):
            self._owner.kinds[self.logger.name, kind] = (due, said, 0)
            self.log(level, msg, counted(unsaid, noun), stacklevel=2)
