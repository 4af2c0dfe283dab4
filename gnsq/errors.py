"""The one exception tree, and the table from nsqd's ``E_`` codes to classes.

Owns what can go wrong and how it is called. Knows no socket and no command. Misuse by the caller is not in
here: it is ValueError or TypeError, raised before any byte is sent.
"""

from __future__ import annotations

from gnsq.texts import printable

__all__ = [
    "ERROR_CODES",
    "NSQAuthDisabled",
    "NSQAuthError",
    "NSQAuthFailed",
    "NSQAuthFirst",
    "NSQBadBody",
    "NSQBadChannel",
    "NSQBadMessage",
    "NSQBadProtocol",
    "NSQBadTopic",
    "NSQConnectionClosed",
    "NSQDPubFailed",
    "NSQErrorCode",
    "NSQException",
    "NSQFinishFailed",
    "NSQFrameError",
    "NSQHttpError",
    "NSQHttpTimeout",
    "NSQHttpUnreachable",
    "NSQIdentifyFailed",
    "NSQInvalid",
    "NSQMPubFailed",
    "NSQNoConnections",
    "NSQNotSent",
    "NSQNotSentClosed",
    "NSQNotSentTimeout",
    "NSQProtocolError",
    "NSQPubFailed",
    "NSQPutFailed",
    "NSQRequeueFailed",
    "NSQRequeueMessage",
    "NSQSocketError",
    "NSQSubFailed",
    "NSQTimeout",
    "NSQTouchFailed",
    "NSQUnauthorized",
    "NSQUnknown",
    "NSQUnknownClosed",
    "NSQUnknownTimeout",
    "make_error",
]


class NSQException(Exception):
    """Everything this library raises that is not misuse by its caller."""


class NSQRequeueMessage(NSQException):
    """Raised by a handler to give its message back to nsqd.

    Args:
        backoff: Whether this counts as a failure for backoff; None leaves it to ``backoff_on_requeue``.
    """

    def __init__(self, backoff: bool | None = None) -> None:
        super().__init__("requeue")
        self.backoff = backoff


class NSQTimeout(NSQException):
    """An answer or a connection did not come within its deadline."""


class NSQNotSent(NSQException):
    """A publish that nsqd has not executed, and will not: publishing it again can't duplicate it."""


class NSQUnknown(NSQException):
    """A publish that was sent and got no answer: nsqd may have it. Publishing it again can duplicate it, not
    publishing it again can lose it."""


class NSQNoConnections(NSQNotSent):
    """No connection to any nsqd; the text says what was tried."""


class NSQNotSentTimeout(NSQNotSent, NSQTimeout):
    """A publish whose deadline came before it was sent."""


class NSQUnknownTimeout(NSQUnknown, NSQTimeout):
    """A publish whose deadline came before nsqd's answer."""


class NSQHttpError(NSQException):
    """An HTTP endpoint answered with another status than 200, or could not be reached.

    Attributes:
        status: The HTTP status, or the one inside of an old server's answer; None if there was no answer at all.
        body: What the server sent with it; empty if there was no answer.
    """

    def __init__(self, text: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class NSQHttpUnreachable(NSQHttpError, NSQNoConnections):
    """No HTTP connection could be made; nothing was sent."""


class NSQHttpTimeout(NSQHttpError, NSQTimeout):
    """No whole HTTP answer came within the timeout; the server may have done what it was asked."""


class NSQSocketError(NSQException, OSError):
    """The operating system refused or broke a connection; has ``errno`` where the system gave one."""


class NSQConnectionClosed(NSQSocketError):
    """The connection was closed, by either side, while something waited for it."""


class NSQNotSentClosed(NSQNotSent, NSQConnectionClosed):
    """A publish that had not been sent when its connection, or the producer, was closed."""


class NSQUnknownClosed(NSQUnknown, NSQConnectionClosed):
    """A publish whose connection was lost before nsqd's answer."""


class NSQProtocolError(NSQException):
    """The peer broke the rules of the wire."""


class NSQFrameError(NSQProtocolError):
    """What came is not a frame: a size out of bounds or an unknown type."""


class NSQErrorCode(NSQException):
    """nsqd answered with an error frame.

    ``str(error)`` is fit for a log line: without control characters, and cut. ``args`` holds what nsqd sent, as bytes.

    Attributes:
        code: The first word of the frame, such as ``E_BAD_TOPIC``.
        text: The words after it, as nsqd wrote them.
        advice: What to do, where that is known; str(error) has it after nsqd's words.
        fatal: Whether nsqd closes the connection after it.
    """

    code = ""
    advice = ""
    fatal = True

    def __init__(self, text: str | bytes = "", code: str | None = None) -> None:
        self.text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
        if code is not None:
            self.code = code
        super().__init__(text)

    def __str__(self) -> str:
        words = printable(f"{self.code} {self.text}") or "error frame that says nothing"
        return f"{words} ({self.advice})" if self.advice else words

    @property
    def message_id(self) -> bytes | None:
        """Id of the message that a failed FIN, REQ or TOUCH was about; None for other errors.

        Source: nsqd protocol_v2.go, FIN: ``E_FIN_FAILED FIN ID failed REASON``.
        """
        words = self.text.split(" ")
        if self.fatal or len(words) < 2 or len(words[1]) != MESSAGE_ID_SIZE:
            return None
        return words[1].encode("utf-8", "surrogateescape")


class NSQInvalid(NSQErrorCode):
    """E_INVALID: a command that nsqd does not know, or that its state or parameters forbid."""


class NSQBadProtocol(NSQErrorCode):
    """E_BAD_PROTOCOL: the magic was not understood."""


class NSQBadBody(NSQErrorCode):
    """E_BAD_BODY: the body of an IDENTIFY, AUTH or MPUB has a bad size or content."""


class NSQBadTopic(NSQErrorCode):
    """E_BAD_TOPIC: not a topic name."""


class NSQBadChannel(NSQErrorCode):
    """E_BAD_CHANNEL: not a channel name."""


class NSQBadMessage(NSQErrorCode):
    """E_BAD_MESSAGE: a message body that is empty, too large or cut short."""


class NSQPutFailed(NSQErrorCode):
    """E_PUT_FAILED: what servers before 0.2.16 said of a failed publish."""


class NSQPubFailed(NSQErrorCode):
    """E_PUB_FAILED: nsqd could not take the message."""


class NSQMPubFailed(NSQErrorCode):
    """E_MPUB_FAILED: nsqd could not store one of the messages, and may have taken those before it; none if it says that
    it is exiting."""


class NSQDPubFailed(NSQErrorCode):
    """E_DPUB_FAILED: nsqd could not take the deferred message."""


class NSQIdentifyFailed(NSQErrorCode):
    """E_IDENTIFY_FAILED: negotiation or an upgrade failed."""


class NSQSubFailed(NSQErrorCode):
    """E_SUB_FAILED: the channel has too many consumers, or is going away."""


class NSQAuthDisabled(NSQErrorCode):
    """E_AUTH_DISABLED: AUTH was sent to a server that has no auth server."""


class NSQAuthFailed(NSQErrorCode):
    """E_AUTH_FAILED: the auth server gave no good answer."""


class NSQAuthError(NSQErrorCode):
    """E_AUTH_ERROR: nsqd could not check the authorization."""


class NSQAuthFirst(NSQErrorCode):
    """E_AUTH_FIRST: the command needs an AUTH before it."""


class NSQUnauthorized(NSQErrorCode):
    """E_UNAUTHORIZED: the secret does not allow this."""


class NSQFinishFailed(NSQErrorCode):
    """E_FIN_FAILED: the message is no longer in flight to this connection. Not fatal."""

    fatal = False


class NSQRequeueFailed(NSQErrorCode):
    """E_REQ_FAILED: the message is no longer in flight to this connection. Not fatal."""

    fatal = False


class NSQTouchFailed(NSQErrorCode):
    """E_TOUCH_FAILED: the message is no longer in flight to this connection. Not fatal."""

    fatal = False


# Source: nsqd protocol_v2.go. E_PUT_FAILED, E_FINISH_FAILED and E_REQUEUE_FAILED are older servers'.
ERROR_CODES: dict[bytes, type[NSQErrorCode]] = {
    b"E_INVALID": NSQInvalid,
    b"E_BAD_PROTOCOL": NSQBadProtocol,
    b"E_BAD_BODY": NSQBadBody,
    b"E_BAD_TOPIC": NSQBadTopic,
    b"E_BAD_CHANNEL": NSQBadChannel,
    b"E_BAD_MESSAGE": NSQBadMessage,
    b"E_PUT_FAILED": NSQPutFailed,
    b"E_PUB_FAILED": NSQPubFailed,
    b"E_MPUB_FAILED": NSQMPubFailed,
    b"E_DPUB_FAILED": NSQDPubFailed,
    b"E_IDENTIFY_FAILED": NSQIdentifyFailed,
    b"E_SUB_FAILED": NSQSubFailed,
    b"E_AUTH_DISABLED": NSQAuthDisabled,
    b"E_AUTH_FAILED": NSQAuthFailed,
    b"E_AUTH_ERROR": NSQAuthError,
    b"E_AUTH_FIRST": NSQAuthFirst,
    b"E_UNAUTHORIZED": NSQUnauthorized,
    b"E_FIN_FAILED": NSQFinishFailed,
    b"E_FINISH_FAILED": NSQFinishFailed,
    b"E_REQ_FAILED": NSQRequeueFailed,
    b"E_REQUEUE_FAILED": NSQRequeueFailed,
    b"E_TOUCH_FAILED": NSQTouchFailed,
}

# Bytes.
MESSAGE_ID_SIZE = 16
# nsqd's longest quotes a name that may fill a line of 16 KiB.
MAX_TEXT = 17 * 1024

for _code, _class in reversed(ERROR_CODES.items()):
    _class.code = _code.decode()


def make_error(data: bytes) -> NSQErrorCode:
    """Build the exception for the data of an error frame: ``CODE text``.

    A code that is not in ERROR_CODES gives a plain, fatal NSQErrorCode with that code. What is longer than any text of
    nsqd's is cut.
    """
    code, _, text = data[:MAX_TEXT].partition(b" ")
    error = ERROR_CODES.get(code, NSQErrorCode)(text, code.decode("utf-8", "backslashreplace"))
    # As in 1.0: the code stands in for words that are not there.
    error.args = (text or code,)
    return error
