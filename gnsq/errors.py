"""Exceptions of gnsq's clients, among them one class for each of nsqd's ``E_`` codes.

For an argument that is not valid, ValueError or TypeError is raised before any byte is sent.

The documentation has a table of these classes: the first paragraph of a docstring is what the error means, and the
paragraph after ``What to do:`` is the advice.
"""

from __future__ import annotations

from typing import Literal

from gnsq.texts import printable

AtFault = Literal["message", "nsqd", "setup"]


class NSQException(Exception):
    """Base of all exceptions of gnsq.

    What to do: see the class of the error and its text.

    Attributes:
        at_fault: Where the cause lies. ``"message"``: in the message, so it would be refused again, wherever it is
            sent. ``"nsqd"``: nsqd can't be reached, or can't do it now. ``"setup"``: an option, an address or a right
            must be corrected.
    """

    at_fault: AtFault = "setup"


class NSQRequeueMessage(NSQException):
    """Raised by a handler to requeue its message.

    What to do: raise it in a handler that wants its message again later, without a traceback in the log.

    Args:
        backoff: True if the requeue counts as a failure for backoff; None: the option ``backoff_on_requeue`` decides.
    """

    def __init__(self, backoff: bool | None = None) -> None:
        super().__init__("requeue")
        self.backoff = backoff


class NSQTimeout(NSQException):
    """An operation, such as a connect or a wait for a response, did not end before its deadline.

    What to do: see the text, which names the operation and its limit. Base class of all errors whose names end in
    Timeout.
    """

    at_fault: AtFault = "nsqd"


class NSQNotSent(NSQException):
    """nsqd has not executed the publish, and will not execute it. Publishing the message again makes no duplicate.

    What to do: publish the message again.
    """

    at_fault: AtFault = "nsqd"


class NSQUnknown(NSQException):
    """The publish got no response, and nsqd may have executed it.

    If the message is published again, it may be duplicated; otherwise it may be lost.

    What to do: publish the message again if a duplicate does no harm, for example since its readers drop duplicates.
    """

    at_fault: AtFault = "nsqd"


class NSQNoConnections(NSQNotSent):
    """There is no connection over which to send. The text of the error says why, if that is known.

    What to do: start nsqd, or correct the address; the text has each address with its error. Then publish again.
    """


class NSQNotSentTimeout(NSQNotSent, NSQTimeout):
    """The publish was not sent before its deadline.

    What to do: see the text: no nsqd could be reached, or the limit ``max_pending_bytes`` was reached. Then publish
    again.
    """


class NSQUnknownTimeout(NSQUnknown, NSQTimeout):
    """The deadline of the publish passed before nsqd responded.

    What to do: find out why nsqd is slow, such as a full disk; or give a longer ``timeout``. For the message, see
    NSQUnknown.
    """


class NSQHttpError(NSQException):
    """An HTTP call failed: the status is not 200, the body is unusable, no response came, or the client was closed.

    What to do: see the text. If status is None, nsqd may have executed a publish.

    Attributes:
        status: The HTTP status, or the status in the body of an old server's response. None if there was no response.
        body: The body of the response; empty if there was no response, or if its body was not kept.
    """

    at_fault: AtFault = "nsqd"

    def __init__(self, text: str, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class NSQHttpUnreachable(NSQHttpError, NSQNoConnections):
    """No byte of the HTTP request was sent, mostly because no connection could be made.

    What to do: start the server, or correct the address; then send the request again.
    """


class NSQHttpTimeout(NSQHttpError, NSQTimeout):
    """The HTTP response was not complete within the timeout. The server may have executed the request.

    What to do: give a longer ``timeout``. Repeat a publish only if a duplicate does no harm.
    """


class NSQSocketError(NSQException, OSError):
    """A connection failed or was lost. ``errno`` is the error number of the operating system, if there is one.

    What to do: see ``errno``; check that nsqd runs and that the port is right.
    """

    at_fault: AtFault = "nsqd"


class NSQConnectionClosed(NSQSocketError):
    """The connection was closed by either side, or its thread has ended, before the call was done.

    What to do: nothing for a Consumer or Producer, which opens a new connection by itself. Otherwise connect again.
    """


class NSQNotSentClosed(NSQNotSent, NSQConnectionClosed):
    """The connection or the producer was closed before the publish was sent.

    What to do: publish the message again, if the producer is not closed.
    """


class NSQUnknownClosed(NSQUnknown, NSQConnectionClosed):
    """The connection of the publish was lost before nsqd responded.

    What to do: nothing for the connection, which is opened again. For the message, see NSQUnknown.
    """


class NSQProtocolError(NSQException):
    """The peer broke the protocol.

    What to do: check that the address is that of an nsqd, and no proxy changes the bytes.
    """


class NSQFrameError(NSQProtocolError):
    """Received bytes are not a valid frame: its size is out of bounds, or its type is unknown, for example.

    What to do: see the text, which shows what was received. HTTP means that the port is 4151 in place of 4150.
    """


# The exception class for each known code of an error frame. Source: nsqd protocol_v2.go.
ERROR_CODES: dict[bytes, type[NSQErrorCode]] = {}


class NSQErrorCode(NSQException):
    """nsqd responded with an error frame.

    ``str(error)`` is safe for a log line: it is short and has no control characters. ``args`` has nsqd's bytes.

    What to do: see nsqd's text, and the row of the code.

    Attributes:
        code: The first word of the frame, such as ``E_BAD_TOPIC``.
        text: The words after the code, decoded; at most about MAX_ERROR_SIZE characters.
        advice: What the user can do about the error; empty if unknown. str(error) ends with it, in brackets.
        fatal: True if nsqd closes the connection after this error; assumed for an unknown code.
    """

    code = ""
    advice = ""
    fatal = True
    # The texts of nsqd that blame the message begin with this, if others of the same code do not.
    _text_of_message = ""

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        if code:
            cls.code = code
            ERROR_CODES[code.encode()] = cls

    def __init__(self, text: str | bytes = "", code: str | None = None) -> None:
        self.text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
        if code is not None:
            self.code = code
        if self._text_of_message and self.text.startswith(self._text_of_message):
            self.at_fault = "message"
        super().__init__(text)

    def __str__(self) -> str:
        words = printable(f"{self.code} {self.text}") or "error frame without a text"
        return f"{words} ({self.advice})" if self.advice else words

    @property
    def message_id(self) -> bytes | None:
        """Id of the message whose FIN, REQ or TOUCH failed; None for other errors, or if the text has no id.

        Source: nsqd protocol_v2.go, FIN: ``E_FIN_FAILED FIN ID failed REASON``.
        """
        words = self.text.split(" ")
        if self.fatal or len(words) < 2 or len(words[1]) != MESSAGE_ID_SIZE:
            return None
        return words[1].encode("utf-8", "surrogateescape")


class NSQInvalid(NSQErrorCode, code="E_INVALID"):
    """nsqd does not know the command, or refuses it for its parameters or the state of the connection.

    What to do: see nsqd's text. "TLS required" asks for ``tls_v1=True``; other texts name the command and its
    parameter.
    """

    _text_of_message = "DPUB timeout"


class NSQBadProtocol(NSQErrorCode, code="E_BAD_PROTOCOL"):
    """nsqd does not know the version of the protocol that the client sent first.

    What to do: check that the address is that of an nsqd for protocol V2, and not of nsqlookupd's TCP port (4160).
    """


class NSQBadBody(NSQErrorCode, code="E_BAD_BODY"):
    """The body of an IDENTIFY, AUTH or MPUB has a bad size or content.

    What to do: for IDENTIFY, the text has the option that nsqd's flags do not allow. For MPUB, send fewer messages at a
    time: nsqd's ``--max-body-size`` limits them.
    """

    _text_of_message = "MPUB"


class NSQBadTopic(NSQErrorCode, code="E_BAD_TOPIC"):
    """The name of the topic is not valid.

    What to do: use a name of 1 to 64 characters out of ``.a-zA-Z0-9_-``, which may end in ``#ephemeral``.
    """


class NSQBadChannel(NSQErrorCode, code="E_BAD_CHANNEL"):
    """The name of the channel is not valid.

    What to do: use a name of 1 to 64 characters out of ``.a-zA-Z0-9_-``, which may end in ``#ephemeral``.
    """


class NSQBadMessage(NSQErrorCode, code="E_BAD_MESSAGE"):
    """The body of a message is empty, too large or incomplete.

    What to do: send a smaller body, or raise nsqd's ``--max-msg-size``. The producer's option ``max_msg_size`` refuses
    such a body before it is sent.
    """

    at_fault: AtFault = "message"


class NSQPutFailed(NSQErrorCode, code="E_PUT_FAILED"):
    """The publish failed. Only servers before 0.2.16 send this code.

    What to do: see NSQPubFailed.
    """

    at_fault: AtFault = "nsqd"


class NSQPubFailed(NSQErrorCode, code="E_PUB_FAILED"):
    """nsqd could not store the message.

    What to do: look at nsqd's log and its disk; then publish again, or on another nsqd, as a Producer with several
    addresses does.
    """

    at_fault: AtFault = "nsqd"


class NSQMPubFailed(NSQErrorCode, code="E_MPUB_FAILED"):
    """nsqd could not store one of the messages.

    nsqd may have stored the messages before that one. If the text ends with "exiting", nsqd has stored none.

    What to do: look at nsqd's log and its disk; publish again if duplicates of the first messages do no harm.
    """

    at_fault: AtFault = "nsqd"


class NSQDPubFailed(NSQErrorCode, code="E_DPUB_FAILED"):
    """nsqd could not store the deferred message.

    What to do: look at nsqd's log and its disk; then publish again.
    """

    at_fault: AtFault = "nsqd"


class NSQIdentifyFailed(NSQErrorCode, code="E_IDENTIFY_FAILED"):
    """The negotiation failed, or TLS or compression could not be started.

    What to do: see nsqd's log; connect without compression to see whether that is the cause.
    """


class NSQSubFailed(NSQErrorCode, code="E_SUB_FAILED"):
    """The channel has too many subscribers, or the channel or its topic is being deleted.

    What to do: raise nsqd's ``--max-channel-consumers``, or run fewer consumers; after a deletion nothing, since a
    Consumer tries again.
    """

    at_fault: AtFault = "nsqd"


class NSQAuthDisabled(NSQErrorCode, code="E_AUTH_DISABLED"):
    """AUTH was sent, but nsqd has no auth server.

    What to do: a client of this package sends AUTH only if nsqd asks for it, except by a call of auth(); leave that
    out.
    """


class NSQAuthFailed(NSQErrorCode, code="E_AUTH_FAILED"):
    """The auth server gave no valid response.

    A Producer publishes again until the deadline, since nsqd has not executed the publish.

    What to do: check that the auth servers of nsqd (``--auth-http-address``) run, and that ``auth_secret`` is right.
    """

    at_fault: AtFault = "nsqd"


class NSQAuthError(NSQErrorCode, code="E_AUTH_ERROR"):
    """nsqd could not build or send its response to AUTH.

    What to do: see nsqd's log; connect again.
    """

    at_fault: AtFault = "nsqd"


class NSQAuthFirst(NSQErrorCode, code="E_AUTH_FIRST"):
    """AUTH must come before the command.

    What to do: give ``auth_secret``.
    """


class NSQUnauthorized(NSQErrorCode, code="E_UNAUTHORIZED"):
    """The secret does not allow the command.

    What to do: ask the administrator of the auth server for the right to this topic and channel.
    """


class NSQFinishFailed(NSQErrorCode, code="E_FIN_FAILED"):
    """nsqd refused FIN: the message is no longer in flight to this connection. Not fatal.

    What to do: raise ``msg_timeout``, send TOUCH with ``message.touch()`` or ``message.touching()``, or lower
    ``max_in_flight``. nsqd has requeued the message, so its handler must tolerate duplicates.
    """

    fatal = False


class NSQRequeueFailed(NSQErrorCode, code="E_REQ_FAILED"):
    """nsqd refused REQ: the message is no longer in flight to this connection. Not fatal.

    What to do: raise ``msg_timeout``, send TOUCH with ``message.touch()`` or ``message.touching()``, or lower
    ``max_in_flight``. nsqd has requeued the message, so its handler must tolerate duplicates.
    """

    fatal = False


class NSQTouchFailed(NSQErrorCode, code="E_TOUCH_FAILED"):
    """nsqd refused TOUCH: the message is no longer in flight to this connection. Not fatal.

    What to do: raise ``msg_timeout``, send TOUCH with ``message.touch()`` or ``message.touching()``, or lower
    ``max_in_flight``. nsqd has requeued the message, so its handler must tolerate duplicates.
    """

    fatal = False


# Older servers send these codes for the same errors.
ERROR_CODES |= {b"E_FINISH_FAILED": NSQFinishFailed, b"E_REQUEUE_FAILED": NSQRequeueFailed}

MESSAGE_ID_SIZE = 16  # bytes
# Limit of the bytes of an error frame that are kept; the rest is cut off. nsqd's longest text quotes a name of 16 KiB.
MAX_ERROR_SIZE = 17 * 1024


def make_error(data: bytes) -> NSQErrorCode:
    """Build the exception for the data of an error frame: ``CODE text``.

    If the code is not in ERROR_CODES, the class is NSQErrorCode, and the error is fatal.
    """
    code, _, text = data[:MAX_ERROR_SIZE].partition(b" ")
    error = ERROR_CODES.get(code, NSQErrorCode)(text, code.decode("utf-8", "backslashreplace"))
    # If there is no text, args has the code, as in gnsq 1.0.
    error.args = (text or code,)
    return error


__all__ = ["ERROR_CODES", "make_error", *(name for name in dir() if name.startswith("NSQ"))]
