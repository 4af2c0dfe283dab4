"""The log of commands and frames: what its lines have, and what they never have."""

import logging
import time

import pytest

import gnsq
from fakensqd import FakeAuthServer, FakeNsqd, Grant
from gnsq.logs import LogOwner
from gnsq.nsqd.wire_log import LoggedTransport, logger
from gnsq.protocol import commands
from gnsq.protocol.frames import ERROR, MESSAGE, RESPONSE, encode_frame, encode_message
from tests.kit import MemoryTransport, wait_until

ID = b"0123456789abcdef"
LOG = LogOwner("", time.monotonic).log(logger, nsqd="a:1")
SENT = [
    (b"  V2", "the protocol's version, V2"),
    (commands.identify({"client_id": "BODY"}), "IDENTIFY, 21 bytes"),
    (commands.auth(b"s"), "AUTH, 1 byte"),
    (commands.subscribe("t", "c"), "SUB t c"),
    (commands.publish("t", b"BODY"), "PUB t, 4 bytes"),
    (commands.publish("t", b"B"), "PUB t, 1 byte"),
    (commands.multipublish("t", [b"BODY", b"2"]), "MPUB t, 2 messages, 17 bytes"),
    (commands.deferpublish("t", b"BODY\nBODY", 5), "DPUB t 5, 9 bytes"),
    (commands.finish(ID), "FIN 0123456789abcdef"),
    (commands.requeue(ID, 5), "REQ 0123456789abcdef 5"),
    (commands.NOP, "NOP"),
]
RECEIVED = [
    (encode_frame(RESPONSE, b"OK"), "response OK"),
    (encode_frame(RESPONSE, b'{"a": "BODY"}'), "response, 13 bytes"),
    (encode_frame(MESSAGE, encode_message(1, 2, ID, b"BODY")), "message 0123456789abcdef, attempt 2, 4 bytes"),
    (encode_frame(ERROR, b"E_INVALID no\x1b"), "error E_INVALID no"),
]


@pytest.fixture
def lines(caplog):
    """Return the logged lines without their address, and forget them."""
    caplog.set_level(logging.DEBUG, "gnsq")

    def lines():
        found = [record.getMessage() for record in caplog.records if record.name == "gnsq.nsqd.wire_log"]
        caplog.clear()
        return [line.partition(": ")[2] for line in found]

    return lines


@pytest.mark.parametrize("size", [1, 5, 1_000_000])
def test_commands_and_frames_are_one_line_however_they_are_cut(lines, size):
    for command, text in SENT:
        transport = MemoryTransport()
        logged = LoggedTransport(transport, LOG)
        data = command + commands.NOP
        for start in range(0, len(data), size):
            logged.sendall(data[start : start + size])

        assert lines() == [f"sent {text}", "sent NOP"]
        assert transport.sent == data
    for frame, text in RECEIVED:
        data = encode_frame(RESPONSE, b"OK") + frame
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        logged = LoggedTransport(MemoryTransport(*chunks), LOG)

        assert b"".join(logged.recv(1) for _ in chunks) == data
        assert lines() == ["received response OK", f"received {text}"]


def test_line_of_a_message_has_its_fields(lines, caplog):
    LoggedTransport(MemoryTransport(encode_frame(MESSAGE, encode_message(1, 3, ID, b"BODY"))), LOG).recv(1)

    (record,) = [record for record in caplog.records if record.name == "gnsq.nsqd.wire_log"]
    assert (record.nsqd, record.message_id, record.attempt) == ("a:1", ID.decode(), 3)


LAYERS = [
    pytest.param({}, id="TCP"),
    pytest.param({"tls_v1": True}, id="TLS"),
    pytest.param({"tls_v1": True, "deflate": True}, id="TLS and deflate"),
    pytest.param({"snappy": True}, id="snappy"),
]


@pytest.mark.parametrize("options", LAYERS)
def test_commands_of_clients_are_logged_without_bodies_and_secrets(caplog, fakensqd_certificates, options):
    caplog.set_level(logging.DEBUG, "gnsq")
    certificate, key = fakensqd_certificates.server()
    options = {**options, "auth_secret": b"SECRET"}
    if "tls_v1" in options:
        options["tls_options"] = {"ca_certs": fakensqd_certificates.ca}
    bodies = []
    with (
        FakeAuthServer({"SECRET": [Grant()]}).in_thread() as auth,
        FakeNsqd(auth_http_addresses=auth.http_address, tls_cert=certificate, tls_key=key).in_thread() as nsqd,
    ):
        consumer = gnsq.Consumer("t", "c", nsqd.tcp_address, **options)
        consumer.on_message.connect(lambda _, message: bodies.append(message.body), weak=False)
        with gnsq.Producer(nsqd.tcp_address, name="pub", **options) as producer, consumer:
            producer.publish("t", b"BODY")
            wait_until(lambda: bodies)
        address = nsqd.tcp_address

    assert bodies == [b"BODY"]
    assert f"{address}: pub: sent IDENTIFY, " in caplog.text
    assert f"{address}: pub: sent AUTH, 6 bytes" in caplog.text
    assert f"{address}: pub: sent PUB t, 4 bytes" in caplog.text
    assert f"{address}: pub: received response OK" in caplog.text
    assert f"{address}: t/c: sent SUB t c" in caplog.text
    assert f"{address}: t/c: received message " in caplog.text
    assert f"{address}: t/c: sent FIN " in caplog.text
    assert "BODY" not in caplog.text
    assert "SECRET" not in caplog.text
