"""Options of HTTP clients: their checks, and the arguments of gnsq 1.0."""

import ssl

import pytest
import urllib3

from gnsq.httpclient import HTTPClient, HttpOptions


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        pytest.param(None, {}, id="for ever: the default"),
        pytest.param(urllib3.Timeout(connect=2, read=3), {"timeout": 5, "connect_timeout": 2}, id="connect and read"),
        pytest.param(urllib3.Timeout(total=4), {"timeout": 4, "connect_timeout": 4}, id="total"),
        pytest.param(urllib3.Timeout(9, connect=2, read=3), {"timeout": 9, "connect_timeout": 2}, id="all three"),
    ],
)
def test_timeout_is_converted(given, converted):
    assert HttpOptions.from_keywords("X", {"timeout": given}) == HttpOptions(**converted)


@pytest.mark.parametrize(
    ("given", "retries"),
    [
        (3, 3),
        (False, 0),
        (urllib3.Retry(False), 0),
        (urllib3.Retry(total=None, connect=None, read=4), 4),
        (urllib3.Retry(total=None), HttpOptions().retries),
    ],
)
def test_retries_are_converted(given, retries):
    assert HttpOptions.from_keywords("X", {"retries": given}).retries == retries


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "CERT_REQUIRED"),
        ("CERT_NONE", "CERT_NONE"),
        (ssl.CERT_OPTIONAL, "CERT_OPTIONAL"),
    ],
)
def test_cert_reqs_are_converted(given, name):
    assert HttpOptions.from_keywords("X", {"cert_reqs": given}).cert_reqs == name


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"cert_reqs": "MAYBE"}, ValueError, "cert_reqs 'MAYBE' must be one of CERT_NONE"),
        ({"headers": {"X Y": "1"}}, ValueError, "header 'X Y' has no valid name"),
        ({"headers": {"X": "a\r\nY: b"}}, ValueError, "value of header X must be printable"),
        ({"auth": ("a",)}, TypeError, "auth must be a pair of str"),
        ({"auth": "a\nb"}, ValueError, "value of header Authorization"),
        ({"key_password": 5, "cert_file": "c"}, TypeError, "key_password must be"),
        ({"ssl_context": "no"}, TypeError, r"must be an ssl\.SSLContext"),
    ],
)
def test_wrong_option_is_named(values, error, words):
    with pytest.raises(error, match=words):
        HttpOptions.from_keywords("HTTPClient", values)


@pytest.mark.parametrize(
    ("path", "error"), [("a b", ValueError), ("a?b", ValueError), ("a\n", ValueError), (5, TypeError)]
)
def test_invalid_path_is_refused(path, error):
    with pytest.raises(error, match="path"):
        HTTPClient("h", 80, path=path)
