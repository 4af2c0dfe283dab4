"""A proxy before an S3 endpoint that behaves as stores do which lack something."""

import contextlib
import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.spark.s3server import S3Endpoint

EXPIRED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ExpiredToken</Code>'
    b"<Message>The provided token has expired.</Message></Error>"
)
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class S3Proxy(ThreadingHTTPServer, S3Endpoint):
    """Attributes: has_conditional_put: False ignores If-None-Match and If-Match; has_expired: True refuses each
    request; refuses: how many of the next requests get 503; loses: how many of the next PUTs and POSTs are done, and
    get 503; credentials: the key, region and token of each request."""

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.port = self.server_port
        self.has_conditional_put = True
        self.has_expired = False
        self.refuses = self.loses = 0
        self.credentials = set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self):
        body = self._body()
        key, _, region = re.search(r"Credential=([^/]+)/(\d+)/([^/]+)/", self.headers["Authorization"]).groups()
        self.server.credentials.add((key, region, self.headers.get("x-amz-security-token")))
        if self.server.has_expired:
            self._answer(403, [("Content-Type", "application/xml")], EXPIRED)
            return
        if self.server.refuses:
            self.server.refuses -= 1
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
            return
        dropped = {"host", "expect", "transfer-encoding"} | (
            set() if self.server.has_conditional_put else {"if-none-match", "if-match"}
        )
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=30)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            hop = {"connection", "transfer-encoding"}
            found = [(name, value) for name, value in response.getheaders() if name.lower() not in hop]
            content = response.read()
            if self.server.loses and self.command in ("PUT", "POST"):
                self.server.loses -= 1
                self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
            else:
                self._answer(response.status, found, content)

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

    def _answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def s3_proxy(target):
    """Run a proxy before the endpoint on a port until the end of the block."""
    with S3Proxy(target) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join(10)
