"""What ``gnsq ping`` says about a step that has failed: a table from the code of the error to sentences. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gnsq.addresses import is_unix
from gnsq.errors import NSQException, NSQHttpError
from gnsq.texts import printable

__all__ = ["MAY_BE_ANOTHER_SERVER", "SENTENCES", "Explanation", "Facts", "Kind", "explain", "explain_http"]

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
class Facts:
    """Facts about a server whose step has failed.

    Attributes:
        address: Its ``host:port``.
        program: ``nsqd``, whose address is that of its TCP port, or ``nsqlookupd``.
        named_by: Address of the nsqlookupd that has named it; empty if it was given.
        topic: Topic that was used.
        server_name: Name that its certificate must have.
        timeout: Limit of a step, in seconds.
        has_ca: True if the options name CAs.
        kind: What listens on the port.
        tcp_port: TCP port of the nsqd whose HTTP port this is.
        certificate_names: Names in its certificate, if they could be read.
    """

    address: str
    program: str = "nsqd"
    named_by: str = ""
    topic: str = ""
    server_name: str = ""
    timeout: float = 0.0
    has_ca: bool = False
    kind: Kind = Kind.UNKNOWN
    tcp_port: int = 4150
    certificate_names: tuple[str, ...] = ()


# Codes of errors after which it helps to know what listens on the port.
MAY_BE_ANOTHER_SERVER = {"CLOSED", "ECONNRESET", "E_BAD_PROTOCOL", "ETIMEDOUT", "NOT_NSQD", "TIMEOUT"}

_CLOSED = (
    "the server closed the connection without an answer",
    "check that {program} listens on port {port}, and not a proxy or another program; look at its log",
)
_NO_ROUTE = "there is no route to {host}", "check the network of this machine, such as a VPN"
# Errors of the network, by their codes.
_UNREACHABLE = {
    "CLOSED": _CLOSED,
    "ECONNREFUSED": (
        "nothing listens on port {port} of {host}",
        "start {program}, or correct the port; in a container, publish the port",
    ),
    "ECONNRESET": _CLOSED,
    "EHOSTUNREACH": _NO_ROUTE,
    "ENETUNREACH": _NO_ROUTE,
    "ENOENT": ("nothing listens on the unix socket {address}", "start {program}, or correct the path"),
    "EPIPE": _CLOSED,
    "ETIMEDOUT": (
        "no answer from {host} within the timeout",
        "check that the host runs, and that no firewall drops connections to port {port}",
    ),
    "HOST_UNKNOWN": (
        "this machine does not know the host {host}",
        "correct the host in --{option}, or the DNS of this machine",
    ),
}
_SECRET_REFUSED = (
    "nsqd's auth server does not accept the secret, or can't be reached ({reason})",
    "check the content of --auth-secret-file, and the auth server (nsqd's flag --auth-http-address)",
)
# All errors, by the code, or by the code and the name. For others, see the reason and the hint of the error.
SENTENCES: dict[str, Explanation] = {
    **_UNREACHABLE,
    "CERT_EXPIRED": (
        "{program}'s certificate has expired ({reason})",
        "renew it, and restart {program}; check the clock of this machine",
    ),
    "CERT_UNKNOWN_CA": (
        "{program}'s certificate is signed by a CA that this machine does not know ({reason})",
        "give the file with the CA's certificate: --tls-ca FILE; or, without any check, --tls-insecure",
    ),
    "CERT_UNKNOWN_CA ca_certs": (
        "the CA of --tls-ca has not signed {program}'s certificate ({reason})",
        "give the right CA: --tls-ca FILE",
    ),
    "CERT_WRONG_NAME": (
        "{program}'s certificate is not for {server_name}{but_for}",
        "if this is the right server, give the name in its certificate: --tls-server-name {certificate_name}",
    ),
    "E_AUTH_FAILED": _SECRET_REFUSED,
    "E_BAD_TOPIC": (
        "nsqd refuses the name of the topic ({reason})",
        "nsqd before 0.3.0 has no ephemeral topics: --topic NAME",
    ),
    "E_INVALID tls_v1": ("nsqd requires TLS ({reason})", "give --tls; with an own CA also --tls-ca FILE"),
    "E_UNAUTHORIZED": (
        "the secret does not allow this for topic {topic} ({reason})",
        "use a topic that it allows: --topic NAME; or ask the administrator of the auth server for the right",
    ),
    "E_UNAUTHORIZED auth_secret": _SECRET_REFUSED,
    "NO_NSQD": (
        "knows no nsqd",
        "start nsqd with --lookupd-tcp-address=HOST:4160, the TCP port of this nsqlookupd; nsqd's log says if it fails",
    ),
    "NOT_RECEIVED": (
        "the message was published to topic {topic}, and did not come back within {timeout:g} s",
        "see whether the topic is paused, or has other messages before this one: gnsq stats",
    ),
    "TIMEOUT": (
        "the port accepts connections, but gave no answer within {timeout:g} s",
        "check that {program} listens there, and not a proxy before a stopped {program}; look at its log and load",
    ),
    "TLS_CLOSED": (
        "{program} closed the connection during TLS",
        "if it requires a certificate of the client, give --tls-cert FILE and --tls-key FILE; see its log",
    ),
    "TLS_NOT_OFFERED": (
        "nsqd does not offer TLS",
        "leave out the --tls options, or start nsqd with --tls-cert and --tls-key",
    ),
    "TLS_REFUSED": (
        "{reason}",
        "if it requires a certificate of the client, give --tls-cert FILE and --tls-key FILE; otherwise compare the "
        "versions of TLS (nsqd's flag --tls-min-version)",
    ),
}


def explain(error: Exception, facts: Facts) -> Explanation:
    """Explain why a step with a server has failed."""
    if (found := _explain_kind(error, facts)) is not None:
        return found
    if not isinstance(error, NSQException):
        return str(error), ""
    host, _, port = facts.address.rpartition(":")
    code, name = error.code, "ca_certs" if facts.has_ca else error.name
    if code == "ECONNREFUSED" and is_unix(facts.address):
        code = "ENOENT"
    names = facts.certificate_names
    text, what = (
        sentence.format(
            **{name: getattr(facts, name) for name in ("address", "program", "server_name", "timeout", "topic")},
            host=host.strip("[]"),
            port=port,
            option=facts.program.replace("nsqlookupd", "lookupd"),
            reason=error.reason,
            but_for=f", but for {', '.join(names)}" if names else "",
            certificate_name=names[0] if names else "NAME",
        )
        for sentence in SENTENCES.get(f"{code} {name}") or SENTENCES.get(code) or ("{reason}", "")
    )
    if facts.named_by and code in _UNREACHABLE:
        what = (
            f"{facts.named_by} names this address, which is nsqd's --broadcast-address. Start nsqd with a "
            "--broadcast-address that this machine can reach, or give the address that it can reach: --nsqd HOST:PORT"
        )
        if host.startswith(("127.", "localhost", "[::1")):
            what = f"{host} is this machine itself. {what}"
    return text, what or error.hint


def _explain_kind(error: Exception, facts: Facts) -> Explanation | None:
    """Explain that another server listens on the port."""
    is_nsqd, host = facts.program == "nsqd", facts.address.rpartition(":")[0]
    match facts.kind:
        case Kind.UNKNOWN:
            return None
        case Kind.NSQD_TCP if is_nsqd:
            return None
        case Kind.LOOKUPD_HTTP if not is_nsqd:
            return None
        case Kind.NSQD_TCP:
            advice = f"give it as an nsqd: --nsqd {facts.address}"
        case Kind.NSQD_HTTP:
            advice = f"give its TCP port: --nsqd {host}:{facts.tcp_port}"
        case Kind.LOOKUPD_HTTP:
            advice = f"give it as an nsqlookupd: --lookupd {facts.address}"
        case Kind.LOOKUPD_TCP:
            advice = "give its HTTP port, usually 4161: --lookupd HOST:4161"
        case _ if is_nsqd:
            advice = "give the TCP port of an nsqd, usually 4150"
        case _:
            advice = "give the HTTP port of nsqlookupd, usually 4161; if this is a proxy, see its log"
    if facts.named_by:
        advice = f"{facts.named_by} names this port: see nsqd's flag --broadcast-tcp-port"
    status = f" ({error.reason})" if isinstance(error, NSQHttpError) and facts.kind is Kind.HTTP else ""
    return f"this is {facts.kind.value}{status}", advice


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
    if error.code == "TLS_REQUIRED":
        return f"HTTP: {error.explanation}", "give nsqd's https address with that port: --nsqd-http https://HOST:PORT"
    guess = f"the port is that of --nsqd + 1 ({address})" if is_guessed else f"the address is {address}"
    text = f"{guess}; give another one with --nsqd-http. Only statistics and the health need it"
    return f"HTTP: {error.explanation}", text
