"""FakeAuthServer: the HTTP server that an nsqd with auth_http_addresses asks about secrets.

Owns an HTTP port. Does not check the answers that it sends: nsqd checks them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl

from fakensqd.effects import HttpResponse
from fakensqd.nsqd.auth import Grant
from fakensqd.ports import HttpPort
from fakensqd.router import JSON_TYPE, Request
from fakensqd.server import Server
from gnsq.concurrency.greenlets import check_is_failure
from gnsq.tracebacks import clears_locals

__all__ = ["AuthAnswer", "AuthQuery", "FakeAuthServer"]

_REFUSAL = {"message": "NOT_AUTHORIZED"}
# An answer to a query: Grants, a whole JSON document, the bytes of a body, or the HTTP status of a refusal. None: 403.
AuthAnswer = Iterable[Grant] | Mapping[str, object] | bytes | int | None


@dataclass(frozen=True, slots=True)
class AuthQuery:
    """A query of an nsqd.

    Attributes:
        secret: Body of the client's AUTH; bytes that are not UTF-8 become surrogates.
        remote_ip: IP address of the client.
        common_name: Common name of the client's certificate; empty without a certificate.
        tls: True if the client uses TLS.
        accept: The content type that nsqd accepts.
        parameters: All parameters of the URL.
    """

    secret: str
    remote_ip: str
    common_name: str
    tls: bool
    accept: str
    parameters: Mapping[str, str]


class FakeAuthServer(Server):
    """Answers requests for ``/auth`` in the hub in which start() was called. Call start() or use ``with``.

    Args:
        grants: Answer for each secret: Grants, a whole JSON document, the bytes of a body, or an HTTP status.
        answer: Function for secrets that are not in grants: gets the AuthQuery, returns such an answer or None for 403.
        http_address: Where to listen; port 0 takes a free port.
        ttl: Seconds for which nsqd keeps an answer that is made of Grants.
        identity: Identity of the client in an answer that is made of Grants; default: the client's secret.

    Attributes:
        grants: The current answers, which the server's thread may change. Other threads must use set_grants().
        queries: All queries so far, in order.
        errors: Exceptions that answer() has raised.
    """

    @clears_locals
    def __init__(
        self,
        grants: Mapping[str, AuthAnswer] | None = None,
        *,
        answer: Callable[[AuthQuery], AuthAnswer] | None = None,
        http_address: str = "127.0.0.1:0",
        ttl: int = 3600,
        identity: str | None = None,
    ) -> None:
        self.grants: dict[str, AuthAnswer] = dict(grants or {})
        self.queries: list[AuthQuery] = []
        self.errors: list[BaseException] = []
        self._answer = answer
        self._ttl = ttl
        self._identity = identity
        self._port = HttpPort(http_address)

    def start(self) -> Self:
        if not self.running:
            self._port.bind()
            self._port.serve(self._application)
        return self

    def _shut_down(self) -> None:
        self._port.stop()

    @property
    def running(self) -> bool:
        """True if the server listens."""
        return self._port.is_serving

    @property
    def http_address(self) -> str:
        """``host:port`` for nsqd's auth_http_addresses. The first start replaces port 0 by the port that was taken."""
        return self._port.address

    @property
    def http_port(self) -> int:
        """The port of http_address."""
        return self._port.port

    def set_grants(self, secret: str, answer: AuthAnswer) -> None:
        """Set the answer for a secret; None removes the secret."""
        if answer is None:
            self.grants.pop(secret, None)
        else:
            self.grants[secret] = answer

    def _application(self, request: Request) -> HttpResponse:
        status, document = self._respond(request) if request.path == "/auth" else (404, {})
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return HttpResponse(status, body, (JSON_TYPE,))

    def _respond(self, request: Request) -> tuple[int, object]:
        parameters = dict(parse_qsl(request.query_string, keep_blank_values=True, errors="surrogateescape"))
        query = AuthQuery(
            secret=parameters.get("secret", ""),
            remote_ip=parameters.get("remote_ip", ""),
            common_name=parameters.get("common_name", ""),
            tls=parameters.get("tls") == "true",
            accept=request.header("accept"),
            parameters=parameters,
        )
        self.queries.append(query)
        answer = self.grants.get(query.secret)
        if answer is None and self._answer is not None:
            try:
                answer = self._answer(query)
            except BaseException as error:  # noqa: BLE001  # the top of a request
                check_is_failure(error)
                self.errors.append(error)
                return 500, {}
        match answer:
            case None:
                return 403, _REFUSAL
            case int():
                return answer, _REFUSAL
            case Mapping() | bytes():
                return 200, answer
            case _:
                return 200, self._document(query.secret, answer)

    def _document(self, secret: str, grants: Iterable[Grant]) -> dict[str, object]:
        return {
            "ttl": self._ttl,
            "identity": secret if self._identity is None else self._identity,
            "identity_url": "",
            "authorizations": [
                {"topic": grant.topic, "channels": grant.channels, "permissions": grant.permissions} for grant in grants
            ],
        }
