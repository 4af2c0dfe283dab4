"""Heads of requests that are refused; what the real nsqd answers, byte for byte."""

import pytest
from gevent import socket

from fakensqd import FakeNsqd
from fakensqd.http.server import HeadRefusal, check_head, check_request_line

BAD = "400 Bad Request"
MISSING = f"{BAD}: missing required Host header"
MALFORMED = f"{BAD}: malformed Host header"
VERSION = "505 HTTP Version Not Supported: unsupported protocol version"

GET = "GET /ping HTTP/1.1"
REFUSED = [
    pytest.param(GET, [], MISSING, id="no Host"),
    pytest.param("GET /ping HTTP/1.2", [], MISSING, id="no Host, a later version"),
    pytest.param(GET, [b"Host : a"], MISSING, id="a Host with a space behind its name"),
    pytest.param("GET http://x/ping HTTP/1.1", [], MISSING, id="a Host in the target only"),
    pytest.param(GET, [b"Host: a", b"hOST: a"], BAD, id="two Hosts"),
    pytest.param("GET /ping HTTP/1.0", [b"Host: a", b"Host: b"], BAD, id="two Hosts in 1.0"),
    pytest.param(GET, [b"Host: a b"], MALFORMED, id="a space"),
    pytest.param(GET, [b"Host: a\tb"], MALFORMED, id="a tab"),
    pytest.param(GET, [b"Host: a", b" b"], MALFORMED, id="a folded Host"),
    pytest.param(GET, [b"Host: a/b"], MALFORMED, id="a slash"),
    pytest.param(GET, [b'Host: a"b'], MALFORMED, id="a quote"),
    pytest.param(GET, [b"Host: \xc3\xa9"], MALFORMED, id="eight bits"),
    pytest.param("GET /ping HTTP/1.0", [b"Host: a b"], MALFORMED, id="a space in 1.0"),
    pytest.param(GET, [b"Host: a\x01"], BAD, id="a control character"),
    pytest.param(GET, [b"Host: a", b"A b: c"], f"{BAD}: invalid header name", id="a name with a space"),
    pytest.param(GET, [b"Host: a", b"A@b: c"], BAD, id="no name"),
    pytest.param(GET, [b"Host: a", b"foo"], BAD, id="no colon"),
    pytest.param(GET, [b" Host: a"], BAD, id="folded from the start"),
    pytest.param("GET ping HTTP/1.1", [b"Host: a"], BAD, id="no path"),
    pytest.param("G@T /ping HTTP/1.1", [b"Host: a"], BAD, id="no method"),
    pytest.param("GET  /ping HTTP/1.1", [b"Host: a"], BAD, id="two spaces"),
    pytest.param("GET /ping HTTP/11", [b"Host: a"], BAD, id="no version"),
    pytest.param("GET /ping HTTP/2.0", [], VERSION, id="2.0"),
    pytest.param(GET, [b"Host: a", b"Content-Length: x"], BAD, id="no length"),
    pytest.param(GET, [b"Host: a", b"Content-Length: -1"], BAD, id="a negative length"),
    pytest.param(GET, [b"Content-Length: 1", b"Content-Length: 2"], BAD, id="two lengths"),
    pytest.param(GET, [b"Transfer-Encoding: foo"], "501 Not Implemented", id="another encoding"),
]


def check(line, headers):
    check_request_line(f"{line}\r\n")
    check_head(f"{line}\r\n", headers)


@pytest.mark.parametrize(("line", "headers", "status"), REFUSED)
def test_a_head_is_refused(line, headers, status):
    with pytest.raises(HeadRefusal) as refusal:
        check(line, [header + b"\r\n" for header in headers])

    text = "Unsupported transfer encoding" if status.startswith("501") else status
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    assert refusal.value.answer == (head + text).encode()


TAKEN = [
    pytest.param("GET /ping HTTP/1.0", [], id="1.0 needs no Host"),
    pytest.param("CONNECT a:1 HTTP/1.1", [], id="nor does CONNECT"),
    pytest.param(GET, [b"Host:"], id="an empty Host"),
    pytest.param(GET, [b"Host: !$%&()*+,-.:;=[']_~aZ09"], id="all that a Host may have"),
    pytest.param("OPTIONS * HTTP/1.1", [b"Host: a"], id="an asterisk"),
    pytest.param(GET, [b"Host: a", b"Content-Length: 1", b"content-length: 1"], id="one length twice"),
    pytest.param(GET, [b"Host: a", b"Transfer-Encoding: chunked", b"X:\xff \t~"], id="chunks"),
]


@pytest.mark.parametrize(("line", "headers"), TAKEN)
def test_a_head_is_taken(line, headers):
    check(line, [header + b"\n" for header in headers])


def test_a_request_without_host_ends_the_connection_behind_what_was_answered():
    ping = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
    with FakeNsqd() as nsqd, socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=10) as sock:
        sock.sendall(ping + ping.replace(b"Host", b"Guest") + ping)
        answer = sock.makefile("rb").read()

    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 1
    assert answer.endswith(
        f"HTTP/1.1 {MISSING}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{MISSING}".encode()
    )
