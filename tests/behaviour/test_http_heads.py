"""Heads of HTTP requests, as Go takes them: what is refused is not executed, and which connections are closed."""

import contextlib
import re
import socket

import pytest

from gnsq.addresses import parse_address
from tests.kit import LIMIT

PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
OK, BAD = "200 OK", "400 Bad Request"
MOVED = "301 Moved Permanently"
REDIRECT = "307 Temporary Redirect"
LARGE = "413 Request Entity Too Large"
CODING = "501 Not Implemented"
VERSION = "505 HTTP Version Not Supported: unsupported protocol version"


def post(*lines, body=b"abc", version=b"HTTP/1.1"):
    return b"\r\n".join([b"POST /pub?topic=TOPIC " + version, *lines, b"", body])


def get(line, *lines):
    return b"\r\n".join([line, b"Host: x", *lines, b"", b""])


HOST, LENGTH, CHUNKED = b"Host: x", b"Content-Length: 3", b"Transfer-Encoding: chunked"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
HEADS = {
    "two equal lengths": (post(HOST, LENGTH, LENGTH), [OK, OK]),
    "two lengths": (post(HOST, LENGTH, b"Content-Length: 4"), [BAD]),
    "a list of lengths": (post(HOST, b"Content-Length: 3, 3"), [BAD]),
    "a length with a sign": (post(HOST, b"Content-Length: +3"), [BAD]),
    "a negative length": (post(HOST, b"Content-Length: -3"), [BAD]),
    "an empty length": (post(HOST, b"Content-Length: ", body=b""), [BAD, OK]),
    "a length and chunks": (post(HOST, LENGTH, CHUNKED, body=CHUNKS), [OK, OK]),
    "chunks in capitals": (post(HOST, b"Transfer-Encoding: Chunked", body=CHUNKS), [OK, OK]),
    "a bad chunk": (post(HOST, CHUNKED, body=b"xyz\r\nabc\r\n0\r\n\r\n"), ["500 Internal Server Error"]),
    "two codings": (post(HOST, CHUNKED, CHUNKED, body=CHUNKS), [CODING]),
    "gzip": (post(HOST, b"Transfer-Encoding: gzip, chunked", body=CHUNKS), [CODING]),
    "identity": (post(HOST, LENGTH, b"Transfer-Encoding: identity"), [CODING]),
    "no host": (post(LENGTH), ["400 Bad Request: missing required Host header"]),
    "two hosts": (post(HOST, HOST, LENGTH), [BAD]),
    "a bad host": (post(b"Host: a b", LENGTH), ["400 Bad Request: malformed Host header"]),
    "an empty host": (post(b"Host:", LENGTH), [OK, OK]),
    "a blank before the colon": (post(HOST, b"Content-Length : 3"), ["400 Bad Request: invalid header name"]),
    "no colon": (post(HOST, b"foo", LENGTH), [BAD]),
    "no name": (post(HOST, b": 3", LENGTH), [BAD]),
    "a bad name": (post(HOST, b"X(A): 3", LENGTH), [BAD]),
    "a bad value": (post(HOST, b"X-A: a\x00b", LENGTH), [BAD]),
    "Latin-1": (post(HOST, b"X-A: a\xe4b", LENGTH), [OK, OK]),
    "a folded value": (post(HOST, b"X-A: 1", b"  2", LENGTH), [OK, OK]),
    "a folded first line": (post(b" Host: x", LENGTH), [BAD]),
    "line feeds only": (post(HOST, LENGTH).replace(b"\r\n", b"\n"), [OK, OK]),
    "a client that expects": (post(HOST, b"Expect: 100-continue", LENGTH), ["100 Continue", OK, OK]),
    "another expectation": (post(HOST, b"Expect: 200-ok", LENGTH), ["417 Expectation Failed"]),
    "HTTP 0.9": (b"GET /ping\r\n\r\n", [BAD]),
    "HTTP 1.2": (post(HOST, LENGTH, version=b"HTTP/1.2"), [OK, OK]),
    "HTTP 1.10": (get(b"GET /ping HTTP/1.10"), [BAD]),
    "HTTP 2.0": (post(HOST, LENGTH, version=b"HTTP/2.0"), [VERSION]),
    "another protocol": (get(b"GET /ping FOO/1.1"), [BAD]),
    "two blanks": (get(b"GET  /ping HTTP/1.1"), [BAD]),
    "a bad method": (get(b"G(T /ping HTTP/1.1"), [BAD]),
    "a whole address": (get(b"GET http://x/ping HTTP/1.1"), [OK, OK]),
    "no path": (get(b"OPTIONS * HTTP/1.1"), [OK, OK]),
    "a path without a slash": (get(b"GET ping HTTP/1.1"), [BAD]),
    "a bad escape": (get(b"GET /pi%zzng HTTP/1.1"), [BAD]),
    "a bad escape in the query": (get(b"GET /ping?x=%zz HTTP/1.1"), [OK, OK]),
    "a control character": (get(b"GET /pi\x01ng HTTP/1.1"), [BAD]),
    "200 lines": (get(b"GET /ping HTTP/1.1", *[b"A: a"] * 200), [OK, OK]),
    "70 KB": (get(b"GET /ping?x=%s HTTP/1.1" % (b"a" * 70_000)), [OK, OK]),
    "an empty first line": (b"\r\n" + PING, [BAD]),
    "another protocol's first bytes": (b"  V2IDENTIFY\n", [BAD]),
    "a bad line before the end": (post(HOST, b"foo", b"X")[:-7], [BAD]),
    "a close": (get(b"GET /ping HTTP/1.1", b"Connection: close"), [OK]),
    "a body that is too large": (post(HOST, b"Content-Length: 1100000", body=b"x" * 1_100_000), [LARGE]),
    "a body that is not wanted": (
        b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        ["404 Not Found", OK],
    ),
    "a large one": (
        b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000,
        ["404 Not Found"],
    ),
    "another case": (get(b"GET /PING HTTP/1.1"), [MOVED, OK]),
    "a last slash": (get(b"GET /ping/ HTTP/1.1"), [MOVED, OK]),
    "dots": (get(b"GET /a/..//ping HTTP/1.1"), [MOVED, OK]),
    "another case of POST": (post(HOST, LENGTH).replace(b"/pub", b"/Pub"), [REDIRECT, OK]),
    "a last slash of POST": (post(HOST, LENGTH).replace(b"/pub", b"/pub/"), [REDIRECT, OK]),
    "another case of another method": (get(b"GET /PUB HTTP/1.1"), ["404 Not Found", OK]),
}


def received(sock):
    got = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            got += data
    return bytes(got)


@pytest.mark.parametrize(("request_", "answers"), HEADS.values(), ids=HEADS)
def test_request_is_answered_as_go_does_and_executed_only_if_it_is_valid(http, nsqd, topic, request_, answers):
    with socket.create_connection(parse_address(nsqd.http_address), timeout=LIMIT) as sock:
        with contextlib.suppress(ConnectionError):  # nsqd does not read all of a large body
            sock.sendall(request_.replace(b"TOPIC", topic.encode()))
        if len(answers) > 1:
            sock.sendall(PING)
            sock.shutdown(socket.SHUT_WR)
        # nsqd itself ends the connection of the others, with a reset if it has not read all.
        got = received(sock).decode("latin-1")

    assert re.findall(r"HTTP/1\.1 (\d\d\d [^\r]*)\r\n", got) == answers
    topics = [each["topic_name"] for each in http.stats()["topics"]]
    assert (topic in topics) == (b"TOPIC" in request_ and OK in answers[:-1])


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("GET /Stats/?format=json&topic=x", "/stats?format=json&topic=x"),
        ("POST /Topic/Create?topic=x", "/topic/create?topic=x"),
        ("GET /Config/log_Level", "/config/log_Level"),
    ],
)
def test_redirect_keeps_the_query_and_the_argument(nsqd, target, location):
    with socket.create_connection(parse_address(nsqd.http_address), timeout=LIMIT) as sock:
        sock.sendall(f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        got = sock.makefile("rb").read().decode()

    assert f"\r\nLocation: {location}\r\n" in got
