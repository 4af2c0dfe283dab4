"""JSON and bytes over HTTP with requests, off the hub: a call blocks its greenlet, never the others.

Knows nothing of topics. Names, and who may be asked what, are its subclasses' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from gevent import monkey
from gevent.threadpool import ThreadPool

from gnsq.errors import NSQHttpError
from gnsq.options import USER_AGENT

if TYPE_CHECKING:
    import requests

__all__ = ["HTTPClient", "USERAGENT"]

USERAGENT = USER_AGENT

# Calls of one client under way at once. Not the hub's own pool, which resolves host names.
_POOL_SIZE = 4


class HTTPClient:
    """A client of one HTTP address.

    Args:
        host, port: Where it listens.
        useragent: What it is told we are.
        timeout: Seconds, for connecting and for each read of the answer.
        scheme: ``http`` or ``https``.
    """

    def __init__(
        self, host: str, port: int, useragent: str = USERAGENT, *, timeout: float = 60.0, scheme: str = "http"
    ) -> None:
        self.host = host
        self.port = int(port)
        self.scheme = scheme
        self.useragent = useragent
        self.timeout = timeout
        # Sessions that no call uses now. A session is not safe to share between threads, so a call takes one out.
        self._idle: list[requests.Session] = []
        self._pool: ThreadPool | None = None

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:  # Any: the constructor's own
        """Make a client from a URL or ``host[:port]``; what is missing has the class's default.

        Raises:
            ValueError: If the scheme is neither http nor https, or the port is no number.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"scheme of {url!r} must be http or https")
        if parts.hostname:
            kwargs["host"] = parts.hostname
        if parts.port:
            kwargs["port"] = parts.port
        return cls(scheme=parts.scheme, **kwargs)

    @property
    def address(self) -> str:
        """``http://host:port/``"""
        return f"{self.scheme}://{self.host}:{self.port}/"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def request(
        self, method: str, path: str, params: Mapping[str, object] | None = None, body: bytes | None = None
    ) -> Any:  # Any: whatever JSON the server sends
        """Send a request and wait for its answer.

        Returns:
            JSON as Python objects (an old server's ``data`` envelope taken off), anything else as bytes.

        Raises:
            NSQHttpError: If the status is not 200 (``status`` has it) or there was no answer (``status`` is None).
        """
        if monkey.is_module_patched("socket"):
            return self._request(method, path, params, body)
        if self._pool is None:
            self._pool = ThreadPool(_POOL_SIZE)
        answer, error = self._pool.apply(self._caught, (method, path, params, body))
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Close the connections and threads that are kept for further calls."""
        while self._idle:
            self._idle.pop().close()
        if self._pool is not None:
            self._pool.kill()
            self._pool = None

    def _caught(self, *arguments: Any) -> tuple[Any, Exception | None]:
        """Do _request() and give back what it raises: what leaves a pool's thread as an exception is printed."""
        try:
            return self._request(*arguments), None
        except Exception as error:  # noqa: BLE001  # raised again by request()
            return None, error

    def _request(self, method: str, path: str, params: Mapping[str, object] | None, body: bytes | None) -> Any:
        import requests  # slow to load: only who uses HTTP pays for it

        try:
            session = self._idle.pop()
        except IndexError:
            session = requests.Session()
            session.trust_env = False
            session.headers["User-Agent"] = self.useragent
        url = f"{self.address}{path.lstrip('/')}"
        try:
            response = session.request(method, url, params=_query(params), data=body, timeout=self.timeout)
        except requests.RequestException as error:
            session.close()
            raise NSQHttpError(f"{method} {url}: no answer: {error}") from error
        self._idle.append(session)
        return _decoded(f"{method} {url}", response)


def _query(params: Mapping[str, object] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (params or {}).items() if value is not None}


def _decoded(call: str, response: requests.Response) -> Any:
    data = None
    if response.headers.get("Content-Type", "").startswith("application/json"):
        try:
            data = response.json()
        except ValueError as error:
            raise NSQHttpError(f"{call}: body is not JSON: {response.content[:80]!r}", response.status_code) from error
    if response.status_code != 200:
        words = data.get("message") or data.get("status_txt") if isinstance(data, dict) else None
        raise NSQHttpError(
            f"{call}: http error <{response.status_code}> {words or response.reason}", response.status_code
        )
    if data is None:
        return response.content
    # Servers before 1.0 wrapped their answers.
    if isinstance(data, dict) and "status_code" in data and "data" in data:
        return data["data"]
    return data
