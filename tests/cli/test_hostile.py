"""Servers whose every text has escape sequences for the terminal: no command lets one through."""

import itertools
import json

import pytest

from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, encode_frame
from tests.kit import peer
from tests.kit.commands import invoke

EVIL = "x\x1b]0;title\x07\x9b31m\u202e\r\nERROR: y"


def http(port):
    """Answer as nsqd and nsqlookupd do, or with an error."""
    stats = {
        "version": EVIL,
        "health": EVIL,
        "topics": [{"topic_name": EVIL, "channels": [{"channel_name": EVIL}]}],
    }
    nsqd = {"broadcast_address": "127.0.0.1", "tcp_port": port, "hostname": EVIL, "version": EVIL}
    answers = {
        "/stats": stats,
        "/info": {**nsqd, "http_port": 4151},
        "/lookup": {"channels": [EVIL], "producers": [nsqd, {**nsqd, "broadcast_address": EVIL}]},
        "/nodes": {"producers": [nsqd]},
    }

    def answer(sock):
        while request := sock.recv(65536):
            path = request.split()[1].decode().partition("?")[0]
            body = json.dumps(answers[path]) if path in answers else EVIL
            status = "200 OK" if path in answers else f"500 {EVIL.replace(chr(10), '')}"
            kind = "application/json" if path in answers else "text/plain"
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n\r\n"
            sock.sendall((head + body).encode())

    return peer(answer)


def tcp(sock):
    """Answer as nsqd does, but refuse PUB and FIN."""
    numbers = itertools.count()
    replies = {
        b"IDENTIFY": lambda: encode_frame(RESPONSE, json.dumps({"version": EVIL, "max_rdy_count": 2500}).encode()),
        b"SUB refused": lambda: encode_frame(ERROR, f"E_BAD_TOPIC {EVIL}".encode()),
        b"SUB t": lambda: encode_frame(RESPONSE, b"OK"),
        b"CLS": lambda: encode_frame(RESPONSE, b"CLOSE_WAIT"),
        b"RDY": lambda: encode_frame(MESSAGE, bytes(8) + b"\0\1" + b"%016x" % next(numbers) + b"{}"),
        b"FIN": lambda: encode_frame(ERROR, f"E_FIN_FAILED {EVIL}".encode()),
        b"PUB": lambda: encode_frame(ERROR, f"E_BAD_MESSAGE {EVIL}".encode()),
        b"MPUB": lambda: encode_frame(ERROR, f"E_BAD_MESSAGE {EVIL}".encode()),
    }
    while data := sock.recv(65536):
        for line in data.split(b"\n"):
            for name, reply in replies.items():
                if line.removeprefix(b"  V2").startswith(name):
                    sock.sendall(reply())


@pytest.mark.parametrize(
    "arguments",
    [
        "tail t -n 1 --meta",
        "tail t -n 1 --json",
        "tail refused",
        "to-file refused -d DIRECTORY",
        "stats",
        "stats --lookupd",
        "ping",
        "ping --lookupd",
        "copy t u --idle 0.1",
        "to-file t -d DIRECTORY -n 1",
        "requeue-dead t --all --idle 0.1 --dry-run",
        "pub t README.md",
    ],
)
def test_text_of_a_server_is_shown_without_control_characters(tmp_path, monkeypatch, arguments):
    monkeypatch.delenv("COLUMNS", raising=False)  # a narrow table has more lines
    with peer(tcp) as nsqd, http(int(nsqd.rpartition(":")[2])) as server:
        words = arguments.replace("DIRECTORY", str(tmp_path)).split()
        servers = [server] if words[-1] == "--lookupd" else ["--nsqd", nsqd, "--nsqd-http", server]
        result = invoke(*words, *servers, "--timeout", "0.5", "-vv")

    shown = result.stdout + result.stderr
    assert shown
    assert [line for line in shown.split("\n") if not line.isprintable() or line.startswith("ERROR: y")] == []
