"""Exceptions of gnsq's clients, among them one class for each of nsqd's ``E_`` codes.

For an argument that is not valid, ValueError or TypeError is raised before any byte is sent.

The documentation has a table of these classes: the first paragraph of a docstring is what the error means, and the
paragraph after ``What to do:`` is the advice.
"""

from __future__ import annotations

import errno as os_errno
import re
from typing import Literal, Self

from gnsq.texts import option_text, printable

AtFault = Literal["message", "nsqd", "setup"]


class NSQException(Exception):
    """Base of all exceptions of gnsq.

    ``str(error)`` is made of these facts: ``address: reason (hint)``.

    What to do: see the class of the error and its text.

    Args:
        args: The reason, as in gnsq 1.0.
        hint: Options are in braces, as Python writes them, such as ``{tls_v1=True}``: see gnsq.texts.option_names().

    Attributes:
        at_fault: Where the cause lies. ``"message"``: in the message, so it would be refused again, wherever it is
            sent. ``"nsqd"``: nsqd can't be reached, or can't do it now. ``"setup"``: an option, an address or a right
            must be corrected.
        address: ``host:port`` of the server that the error is about, or its URL for HTTP; empty if it is about none.
        code: The failure in one word: nsqd's, such as ``E_BAD_TOPIC`` or ``TOPIC_NOT_FOUND``, the system's, such as
            ``ECONNREFUSED``, OpenSSL's, or one of gnsq, such as ``TLS_NOT_OFFERED``. Empty if there is none.
        name: The option that must be given or corrected, such as ``tls_v1``; empty if it is none, or not known.
    """

    at_fault: AtFault = "setup"
    address = ""
    code = ""
    name = ""
    _hint = ""

    def __init__(self, *args: object, address: str = "", code: str = "", name: str = "", hint: str = "") -> None:
        super().__init__(*args)
        # Facts that are not given are those of the class.
        if address or code or name or hint:
            given = {"address": address, "code": code, "name": name, "_hint": hint}
            self.__dict__.update((fact, value) for fact, value in given.items() if value)

    @classmethod
    def after(cls, error: NSQException, reason: str) -> Self:
        """Make an error that another one has led to: it has the facts of that one, and a reason of its own."""
        return cls(reason, address=error.address, code=error.code, name=error.name, hint=error._hint)

    @property
    def reason(self) -> str:
        """What went wrong, without the address and the hint."""
        return super().__str__()

    @property
    def hint(self) -> str:
        """What to do, in the words of the program: it names ``tls_v1=True``, or ``--tls``. Empty if not known."""
        return re.sub(r"{([^{}]+)}", lambda option: option_text(option[1]), self._hint)

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint

    @property
    def explanation(self) -> str:
        """The reason with the hint, for a line that begins with the address."""
        return f"{self.reason} ({self.hint})" if self._hint else self.reason

    def __str__(self) -> str:
        return f"{self.address}: {self.explanation}" if self.address else self.explanation


class NSQRequeueMessage(NSQException):
    """Raised by a handler to requeue its message.

    What to do: raise it in a handler that wants its message again later, without a traceback in the log.

    Args:
        backoff: True if the requeue counts as a failure for backoff; None: the option ``backoff_on_requeue`` decides.
    """

    def __init__(self, backoff: bool | None = None) -> None:
        super().__init__("requeue")
        self.backoff = backoff


class NSQGiveUp(NSQException):
    """Raised by a handler to give its message up at once, because no further delivery would help.

    The consumer publishes the message to ``dead_letter_topic``, sends ``on_giving_up``, and finishes it. The consumer
    does not pause, and the log has one line without a traceback.

    What to do: raise it, with the reason, in a handler that can never handle its message:
    ``raise NSQGiveUp("no such country")``.
    """

    at_fault: AtFault = "message"


class NSQTimeout(NSQException):
    """An operation, such as a connect or a wait for a response, did not end before its deadline.

    What to do: see the text, which names the operation and its limit. Base class of all errors whose names end in
    Timeout.
    """

    at_fault: AtFault = "nsqd"
    code = "TIMEOUT"


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
    """There is no connection over which to send. The text of the error says why, if that is known. If it is the same
    for all nsqds, ``code``, ``name`` and ``at_fault`` say so.

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
        request: Method and URL, with which ``str(error)`` begins in place of the address; empty if there was none.
    """

    at_fault: AtFault = "nsqd"

    def __init__(
        self, text: str, status: int | None = None, body: bytes = b"", *, request: str = "", **facts: str
    ) -> None:
        super().__init__(text, **facts)
        self.request = request
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return f"{self.request}: {self.explanation}" if self.request else super().__str__()


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

    def __init__(self, *args: object, **facts: str) -> None:
        super().__init__(*args, **facts)
        if not self.code and self.errno is not None:
            self.code = os_errno.errorcode.get(self.errno, "")

    @property
    def reason(self) -> str:
        """What went wrong, without the number of the error, which says no more than the words."""
        return self.strerror or super().reason


class NSQConnectionClosed(NSQSocketError):
    """The connection was closed by either side, or its thread has ended, before the call was done.

    What to do: nothing for a Consumer or Producer, which opens a new connection by itself. Otherwise connect again.
    """

    code = "CLOSED"


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
        fatal: True if nsqd closes the connection after this error; assumed for an unknown code.
    """

    fatal = True

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        if code:
            cls.code = code
            ERROR_CODES[code.encode()] = cls

    def __init__(self, text: str | bytes = "", code: str | None = None, *, address: str = "") -> None:
        super().__init__(text, address=address, code=code or "")
        self.text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
        self._read_text()

    def _read_text(self) -> None:
        """Set the facts that only the text tells, where nsqd has one code for several causes."""

    @property
    def reason(self) -> str:
        """The code and the text."""
        return printable(f"{self.code} {self.text}") or "error frame without a text"

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

    # Nanoseconds. Source: nsqd before 1.1.0, protocol_v2.go REQ.
    _REQ_REFUSED = re.compile(r"REQ timeout [0-9]+ out of range 0-([0-9]{1,19})")

    def _read_text(self) -> None:
        if self.text.startswith("DPUB timeout"):
            self.at_fault = "message"
            self.hint = "the limit of a delay, in ms, is nsqd's --max-req-timeout"
        elif "TLS required" in self.text:
            self.name, self.hint = "tls_v1", "nsqd runs with --tls-required: give {tls_v1=True}"
        elif refused := self._REQ_REFUSED.fullmatch(self.text):
            limit = int(refused[1]) // 1_000_000
            self.hint = (
                f"requeue with at most {limit} ms, nsqd's --max-req-timeout; nsqd from 1.1.0 on cuts more to that"
            )


class NSQBadProtocol(NSQErrorCode, code="E_BAD_PROTOCOL"):
    """nsqd does not know the version of the protocol that the client sent first.

    What to do: check that the address is that of an nsqd for protocol V2, and not of nsqlookupd's TCP port (4160).
    """


class NSQBadBody(NSQErrorCode, code="E_BAD_BODY"):
    """The body of an IDENTIFY, AUTH or MPUB has a bad size or content.

    What to do: for IDENTIFY, the text has the option that nsqd's flags do not allow. For MPUB, send fewer messages at a
    time: nsqd's ``--max-body-size`` limits them.
    """

    # A value of an option. Source: nsqd client_v2.go, Set*().
    _OPTION_REFUSED = re.compile(r"IDENTIFY ([a-z ]+) \((-?[0-9]{1,19})\) is invalid")
    # By nsqd's words for the option: its unit here, how many of nsqd's units that is, and the flags that limit it.
    _LIMITS = {
        "msg timeout": ("s", 1000, "--max-msg-timeout (default 15 min)"),
        "heartbeat interval": ("s", 1000, "--max-heartbeat-interval (default 1 min)"),
        "output buffer timeout": ("ms", 1, "--min-output-buffer-timeout and --max-output-buffer-timeout"),
        "output buffer size": ("bytes", 1, "--max-output-buffer-size (default 64 KiB)"),
    }

    def _read_text(self) -> None:
        if self.text.startswith("MPUB"):
            self.at_fault = "message"
            if "too big" in self.text:
                self.hint = "the limit is nsqd's --max-body-size: publish fewer messages in one call"
        refused = self._OPTION_REFUSED.fullmatch(self.text)
        if refused is not None and refused[1] in self._LIMITS:
            unit, per_unit, flags = self._LIMITS[refused[1]]
            self.name = refused[1].replace(" ", "_")
            self.hint = (
                f"the option {self.name} is {int(refused[2]) / per_unit:.15g} {unit}; nsqd limits it by {flags}, so "
                "correct the option or nsqd's flags"
            )


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

    def _read_text(self) -> None:
        if "too big" in self.text:
            self.hint = "the limit is nsqd's --max-msg-size"


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

    Attributes:
        may_be_partially_stored: False if nsqd has stored none of the messages. Source: nsqd topic.go, PutMessages.
    """

    at_fault: AtFault = "nsqd"

    def _read_text(self) -> None:
        self.may_be_partially_stored = not self.text.endswith("exiting")


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
    name = "auth_secret"
    _hint = "check {auth_secret}, and nsqd's auth server"


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

    def _read_text(self) -> None:
        if "no authorizations" in self.text:  # the answer to AUTH, and not to SUB or a publish
            self.name = "auth_secret"


class _AnswerRefused(NSQErrorCode):
    """nsqd refused the answer: the message is no longer in flight to this connection. Not fatal.

    What to do: raise ``msg_timeout``, send TOUCH with ``message.touch()`` or ``message.touching()``, or lower
    ``max_in_flight``. nsqd has requeued the message, so its handler must tolerate duplicates.
    """

    fatal = False


class NSQFinishFailed(_AnswerRefused, code="E_FIN_FAILED"):
    __doc__ = _AnswerRefused.__doc__


class NSQRequeueFailed(_AnswerRefused, code="E_REQ_FAILED"):
    __doc__ = _AnswerRefused.__doc__


class NSQTouchFailed(_AnswerRefused, code="E_TOUCH_FAILED"):
    __doc__ = _AnswerRefused.__doc__


# Older servers send these codes for the same errors.
ERROR_CODES |= {b"E_FINISH_FAILED": NSQFinishFailed, b"E_REQUEUE_FAILED": NSQRequeueFailed}

MESSAGE_ID_SIZE = 16  # bytes
# Limit of the bytes of an error frame that are kept; the rest is cut off. nsqd's longest text quotes a name of 16 KiB.
MAX_ERROR_SIZE = 17 * 1024


def make_error(error_code: bytes, address: str = "") -> NSQErrorCode:
    """Build the exception for the data of an error frame.

    Args:
        error_code: The data: ``CODE text``.
        address: Address of the nsqd.

    If the code is not in ERROR_CODES, the class is NSQErrorCode, and the error is fatal.
    """
    code, _, text = error_code[:MAX_ERROR_SIZE].partition(b" ")
    error = ERROR_CODES.get(code, NSQErrorCode)(text, code.decode("utf-8", "backslashreplace"), address=address)
    # If there is no text, args has the code, as in gnsq 1.0.
    error.args = (text or code,)
    return error


__all__ = ["ERROR_CODES", "make_error", *(name for name in dir() if name.startswith("NSQ"))]
