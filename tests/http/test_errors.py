"""Errors of requests, urllib3 and ssl become NoResponse, with a text, and whether a retry is safe."""

import http.client
import socket
import ssl

import pytest
import requests
import urllib3

from gnsq.http.connections import NoResponse


class Progress:
    """Stands for a call: whether it has sent bytes, and made the connection itself."""

    def __init__(self, *, sent=False, connected=True):
        self.sent, self.connected = sent, connected


def certificate_error():
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


def wrapped(error):
    """Wrap an error as requests and urllib3 do."""
    reason = urllib3.exceptions.SSLError(error)
    return requests.exceptions.SSLError(urllib3.exceptions.MaxRetryError(None, "/x", reason))


@pytest.mark.parametrize(
    ("error", "words", "final"),
    [
        pytest.param(wrapped(certificate_error()), "self-signed certificate (give the CA", True, id="certificate"),
        pytest.param(wrapped(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")), "(is it plain http", True, id="plain"),
        pytest.param(
            wrapped(ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")),
            "cert_file and key_file",
            True,
            id="mtls",
        ),
        pytest.param(wrapped(ssl.SSLError(1, "[SSL: NO_CIPHERS]")), "TLS failed: [SSL: NO_CIPHERS]", True, id="tls"),
        pytest.param(wrapped(ssl.SSLEOFError(8, "EOF occurred")), "if it always does", False, id="tls ended"),
        pytest.param(
            requests.ConnectionError(urllib3.exceptions.ProtocolError("x", http.client.BadStatusLine("\0"))),
            "answer is not HTTP",
            True,
            id="not http",
        ),
        pytest.param(
            requests.ConnectionError(
                urllib3.exceptions.ProtocolError("Aborted", http.client.RemoteDisconnected("Remote end closed"))
            ),
            "Remote end closed",
            False,
            id="closed",
        ),
        pytest.param(requests.ConnectionError(socket.gaierror(-2, "Name unknown")), "Name unknown", False, id="name"),
        pytest.param(
            requests.ConnectionError(ConnectionResetError(104, "Reset by peer")),
            "Reset by peer (is it nsqd's TCP port",
            False,
            id="reset",
        ),
        pytest.param(requests.ReadTimeout(TimeoutError("timed out")), "timed out", False, id="time"),
        pytest.param(ValueError("odd\nsecond line"), "odd", False, id="anything"),
        pytest.param(ValueError(), "ValueError", False, id="nothing said"),
    ],
)
def test_error_has_a_text_with_a_hint(error, words, final):
    failure = NoResponse(error, Progress())

    assert words in str(failure)
    assert "\n" not in str(failure)
    assert (failure.final, failure.sent, failure.reused) == (final, False, False)


def test_server_text_is_cut_and_printable():
    failure = NoResponse(http.client.UnknownProtocol("HTTP/\x1b[0m" + "1" * 1000), Progress())

    assert str(failure) == "HTTP/ [0m" + "1" * 191 + "..."


@pytest.mark.parametrize(
    ("sent", "connected", "reused"),
    [(True, False, True), (True, True, False), (False, True, False), (False, False, False)],
)
def test_failure_after_sending_over_a_kept_connection_is_known(sent, connected, reused):
    failure = NoResponse(
        ConnectionResetError(104, "Connection reset by peer"), Progress(sent=sent, connected=connected)
    )

    assert (failure.sent, failure.reused) == (sent, reused)


def test_timeout_is_known():
    assert NoResponse(requests.ReadTimeout(TimeoutError("timed out")), Progress()).timed_out
