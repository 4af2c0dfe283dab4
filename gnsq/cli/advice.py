"""Explains in words why a step of ``gnsq ping`` has failed, and what to do. Pure.

The errors of gnsq name parameters of Python; the advice here names options of the command line.
"""

from __future__ import annotations

import enum
import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from gnsq.addresses import is_unix
from gnsq.errors import (
    NSQAuthFailed,
    NSQBadProtocol,
    NSQBadTopic,
    NSQConnectionClosed,
    NSQErrorCode,
    NSQHttpError,
    NSQProtocolError,
    NSQTimeout,
    NSQUnauthorized,
)
from gnsq.texts import printable, without_address

__all__ = [
    "AuthNeeded",
    "Explanation",
    "Facts",
    "Kind",
    "NO_NSQD",
    "Server",
    "explain_http",
    "explain_lookupd",
    "explain_nsqd",
    "needs_certificate",
    "needs_kind",
    "not_received",
]

# What is wrong, and what to do; the second one may be empty.
Explanation = tuple[str, str]


class Kind(enum.Enum):
    """Kind of the server on a port."""

    UNKNOWN = "no server of NSQ that could be recognized"
    HTTP = "an HTTP server, neither nsqd's nor nsqlookupd's"
    NSQD_TCP = "the TCP port of an nsqd"
    NSQD_HTTP = "the HTTP port of an nsqd"
    LOOKUPD_TCP = "the TCP port of an nsqlookupd, for nsqds"
    LOOKUPD_HTTP = "the HTTP port of an nsqlookupd"


@dataclass(frozen=True, slots=True)
class Server:
    """The server on a port.

    Attributes:
        tcp_port: TCP port of an nsqd whose HTTP port it is; None if unknown.
    """

    kind: Kind = Kind.UNKNOWN
    tcp_port: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about an nsqd whose step has failed.

    Attributes:
        address: Its TCP address.
        named_by: Address of the nsqlookupd that has named it; empty if it was given.
        topic: Topic that was used.
        server_name: Name that its certificate must have.
        timeout: Limit of a step, in seconds.
        uses_tls: True if the options ask for TLS.
        has_ca: True if the options name CAs.
        server: What listens on the port.
        certificate_names: Names in its certificate, if they could be read.
    """

    address: str
    named_by: str = ""
    topic: str = ""
    server_name: str = ""
    timeout: float = 0.0
    uses_tls: bool = False
    has_ca: bool = False
    server: Server = Server()
    certificate_names: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """Host of the address."""
        return self.address.rpartition(":")[0].strip("[]")


class AuthNeeded(Exception):
    """nsqd requires AUTH, and no secret is given."""


NO_NSQD = (
    "knows no nsqd",
    "start nsqd with --lookupd-tcp-address=HOST:4160, the TCP port of this nsqlookupd; nsqd's log says if it fails",
)
_LOOPBACK = ("127.", "localhost", "::1")


def needs_kind(error: BaseException) -> bool:
    """Return True if the explanation of an nsqd's error depends on what listens on its port."""
    if isinstance(error, NSQErrorCode):
        return isinstance(error, NSQBadProtocol)
    return isinstance(error, (NSQProtocolError, NSQConnectionClosed, NSQTimeout))


def needs_certificate(error: BaseException) -> bool:
    """Return True if the explanation should have the names in the certificate."""
    refused = _cause(error, ssl.SSLCertVerificationError)
    return refused is not None and refused.verify_code in _WRONG_NAME


# OpenSSL's X509_V_ERR_ codes. Source: x509_vfy.h.
_EXPIRED = {10}
_UNKNOWN_CA = {18, 19, 20, 21}
_WRONG_NAME = {62, 64}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    current: BaseException | None = error
    seen: list[BaseException] = []
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


_Error = TypeVar("_Error", bound=BaseException)


def _cause(error: BaseException, kind: type[_Error]) -> _Error | None:
    return next((each for each in _causes(error) if isinstance(each, kind)), None)


# --- nsqlookupd


def explain_lookupd(error: Exception, address: str, server: Server) -> Explanation:
    """Explain why an nsqlookupd gave no usable answer.

    Args:
        address: ``host:port`` of its HTTP port.
        server: What listens there.
    """
    match server.kind:
        case Kind.LOOKUPD_TCP:
            return f"this is {server.kind.value}", "give its HTTP port, usually 4161: --lookupd HOST:4161"
        case Kind.NSQD_TCP | Kind.NSQD_HTTP:
            return f"this is {server.kind.value}", _nsqd_option(address, server)
    if isinstance(error, ValueError):
        return NO_NSQD if str(error) == NO_NSQD[0] else (str(error), "")
    if server.kind is Kind.HTTP:
        text = f"an HTTP server answers, but not as nsqlookupd: {_http_text(error, address)}"
        return text, "give the HTTP port of nsqlookupd, usually 4161; if this is a proxy, see its log"
    return _explain_connection(error, address, "nsqlookupd", "--lookupd") or (_http_text(error, address), "")


def _nsqd_option(address: str, server: Server) -> str:
    host = address.rpartition(":")[0]
    if server.kind is Kind.NSQD_TCP:
        return f"give it as an nsqd: --nsqd {address}"
    return f"give its TCP port: --nsqd {host}:{server.tcp_port or 4150}"


def _http_text(error: Exception, address: str) -> str:
    text = without_address(error, address)
    return text.partition(": ")[2] if text.startswith("GET /") else text


# --- nsqd


def explain_nsqd(error: Exception, facts: Facts) -> Explanation:
    """Explain why a step with an nsqd's TCP port has failed."""
    if isinstance(error, AuthNeeded):
        return "nsqd requires AUTH, and no secret is given", "give the file with the secret: --auth-secret-file FILE"
    if (refused := _cause(error, ssl.SSLCertVerificationError)) is not None:
        return _explain_certificate(refused, facts)
    if isinstance(error, NSQErrorCode) and not isinstance(error, NSQBadProtocol):
        return _explain_code(error, facts)
    if (found := _explain_kind(facts)) is not None:
        return found
    if (found := _explain_tls(error, facts)) is not None:
        return found
    if (found := _explain_address(error, facts)) is not None:
        return found
    return without_address(error, facts.address), ""


def _explain_kind(facts: Facts) -> Explanation | None:
    """Explain that another server listens on the port."""
    server = facts.server
    match server.kind:
        case Kind.UNKNOWN | Kind.NSQD_TCP:
            return None
        case Kind.NSQD_HTTP:
            advice = _nsqd_option(facts.address, server)
        case Kind.LOOKUPD_HTTP:
            advice = f"give it as an nsqlookupd: --lookupd {facts.address}"
        case Kind.LOOKUPD_TCP:
            advice = (
                "give its HTTP port, usually 4161, as --lookupd, or the TCP port of an nsqd, usually 4150, as --nsqd"
            )
        case _:
            advice = "give the TCP port of an nsqd, usually 4150"
    if facts.named_by:
        advice = f"{facts.named_by} names this port: see nsqd's flag --broadcast-tcp-port"
    return f"this is {server.kind.value}", advice


def _explain_certificate(refused: ssl.SSLCertVerificationError, facts: Facts) -> Explanation:
    reason = refused.verify_message.rstrip(".")
    if refused.verify_code in _UNKNOWN_CA:
        if facts.has_ca:
            return (
                f"the CA of --tls-ca has not signed nsqd's certificate ({reason})",
                "give the right CA: --tls-ca FILE",
            )
        return (
            f"nsqd's certificate is signed by a CA that this machine does not know ({reason})",
            "give the file with the CA's certificate: --tls-ca FILE; or, without any check, --tls-insecure",
        )
    if refused.verify_code in _WRONG_NAME:
        names = ", ".join(facts.certificate_names)
        name = facts.certificate_names[0] if facts.certificate_names else "NAME"
        text = f"nsqd's certificate is not for {facts.server_name}" + (f", but for {names}" if names else "")
        return text, f"if this is the right server, give the name in its certificate: --tls-server-name {name}"
    if refused.verify_code in _EXPIRED:
        return "nsqd's certificate has expired", "renew it, and restart nsqd; check the clock of this machine"
    return f"nsqd's certificate was not accepted: {reason}", ""


def _explain_code(error: NSQErrorCode, facts: Facts) -> Explanation:
    """Explain an error frame of nsqd."""
    text = printable(f"{error.code} {error.text}")
    if "TLS required" in error.text:
        return f"nsqd requires TLS ({text})", "give --tls; with an own CA also --tls-ca FILE"
    # Source: nsqd protocol_v2.go, AUTH and CheckAuth.
    if isinstance(error, NSQAuthFailed) or "no authorizations" in error.text:
        return (
            f"nsqd's auth server does not accept the secret, or can't be reached ({text})",
            "check the content of --auth-secret-file, and the auth server (nsqd's flag --auth-http-address)",
        )
    if isinstance(error, NSQUnauthorized):
        return (
            f"the secret does not allow this for topic {facts.topic} ({text})",
            "use a topic that it allows: --topic NAME; or ask the administrator of the auth server for the right",
        )
    if isinstance(error, NSQBadTopic):
        return f"nsqd refuses the name of the topic ({text})", "nsqd before 0.3.0 has no ephemeral topics: --topic NAME"
    return text, error.advice


def _explain_tls(error: Exception, facts: Facts) -> Explanation | None:
    text = str(error)
    if "does not offer it" in text:
        return "nsqd does not offer TLS", "leave out the --tls options, or start nsqd with --tls-cert and --tls-key"
    refused = _cause(error, ssl.SSLError)
    if refused is not None and "ALERT" in text:
        return (
            f"nsqd refused TLS ({refused.reason})",
            "if nsqd requires a certificate of the client, give --tls-cert FILE and --tls-key FILE; "
            "otherwise compare the versions of TLS (nsqd's flag --tls-min-version)",
        )
    if facts.uses_tls and "inside TLS" in text:
        return (
            "nsqd closed the connection during TLS",
            "if nsqd requires a certificate of the client, give --tls-cert FILE and --tls-key FILE; see nsqd's log",
        )
    return None


def _explain_address(error: Exception, facts: Facts) -> Explanation | None:
    """Explain that a host or a port can't be reached."""
    if isinstance(error, NSQTimeout) and "no connection" not in str(error) and "not resolved" not in str(error):
        return (
            f"the port accepts connections, but gave no answer within {facts.timeout:g} s",
            "check that nsqd listens there, and not a proxy before a stopped nsqd; look at nsqd's log and load",
        )
    found = _explain_connection(error, facts.address, "nsqd", "--nsqd")
    if found is None or not facts.named_by:
        return found
    text, _ = found
    advice = (
        f"{facts.named_by} names this address, which is nsqd's --broadcast-address. Start nsqd with a "
        "--broadcast-address that this machine can reach, or give the address that it can reach: --nsqd HOST:PORT"
    )
    if facts.host.startswith(_LOOPBACK):
        advice = f"{facts.host} is this machine itself. {advice}"
    return text, advice


def _explain_connection(error: Exception, address: str, program: str, option: str) -> Explanation | None:
    host, _, port = address.rpartition(":")
    cause = next((each for each in _causes(error) if _is_named(each)), error)
    if isinstance(cause, (socket.gaierror, UnicodeError)):
        return (
            f"this machine does not know the host {host}",
            f"correct the host in {option}, or the DNS of this machine",
        )
    number = cause.errno if isinstance(cause, OSError) else None
    if is_unix(address) and number in (errno.ECONNREFUSED, errno.ENOENT):
        return f"nothing listens on the unix socket {address}", f"start {program}, or correct the path"
    if number == errno.ECONNREFUSED:
        return (
            f"nothing listens on port {port} of {host}",
            f"start {program}, or correct the port; in a container, publish the port",
        )
    if isinstance(error, NSQTimeout) or isinstance(cause, TimeoutError) or number == errno.ETIMEDOUT:
        return (
            f"no answer from {host} within the timeout",
            f"check that the host runs, and that no firewall drops connections to port {port}",
        )
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"there is no route to {host}", "check the network of this machine, such as a VPN"
    if isinstance(error, NSQConnectionClosed) or number in (errno.ECONNRESET, errno.EPIPE):
        return (
            "the server closed the connection without an answer",
            f"check that {program} listens on port {port}, and not a proxy or another program; look at its log",
        )
    return None


def _is_named(error: BaseException) -> bool:
    return isinstance(error, (socket.gaierror, UnicodeError)) or (
        isinstance(error, OSError) and (error.errno is not None or type(error) is TimeoutError)
    )


def not_received(topic: str, timeout: float) -> Explanation:
    """Explain that a published message did not come back."""
    return (
        f"the message was published to topic {topic}, and did not come back within {timeout:g} s",
        "see whether the topic is paused, or has other messages before this one: gnsq stats",
    )


# --- nsqd's HTTP port


def explain_http(error: NSQHttpError, address: str, *, is_guessed: bool) -> Explanation:
    """Explain why nsqd's HTTP port gave no answer, or said that nsqd is not healthy.

    Args:
        address: URL of the port.
        is_guessed: True if the port is the TCP port + 1.
    """
    if error.status == 500:
        return (
            f"nsqd is not healthy: {printable(error.body)}",
            "look at nsqd's log and its disk; nsqd says this after a failed write",
        )
    text = f"HTTP: {_http_text(error, address)}"
    if "TLS_REQUIRED" in str(error):
        return text, "give nsqd's https address with that port: --nsqd-http https://HOST:PORT"
    guess = f"the port is that of --nsqd + 1 ({address})" if is_guessed else f"the address is {address}"
    return text, f"{guess}; give another one with --nsqd-http. Only statistics and the health need it"
