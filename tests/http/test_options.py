"""Options of HTTP clients: their checks, and the arguments of gnsq 1.0."""

import ssl

import pytest
import urllib3

from gnsq.httpclient import HTTPClient, HttpOptions


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        pytest.param(5, {"timeout": 5}, id="number"),
        pytest.param(None, {}, id="for ever: the default"),
        pytest.param(urllib3.Timeout(connect=2, read=3), {"timeout": 5, "connect_timeout": 2}, id="connect and read"),
        pytest.param(urllib3.Timeout(total=4), {"timeout": 4, "connect_timeout": 4}, id="total"),
        pytest.param(urllib3.Timeout(9, connect=2, read=3), {"timeout": 9, "connect_timeout": 2}, id="all three"),
        pytest.param(urllib3.Timeout(connect=2), {"connect_timeout": 2}, id="connect"),
        pytest.param(urllib3.Timeout(), {}, id="nothing given"),
    ],
)
def test_timeout_is_converted(given, converted):
    assert HttpOptions.from_keywords("X", {"timeout": given}) == HttpOptions(**converted)


@pytest.mark.parametrize(
    ("given", "retries"),
    [
        (3, 3),
        (0, 0),
        (False, 0),
        (None, HttpOptions().retries),
        (urllib3.Retry(5), 5),
        (urllib3.Retry(False), 0),
        (urllib3.Retry(total=None, connect=2), 2),
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
        ("REQUIRED", "CERT_REQUIRED"),
        (ssl.CERT_OPTIONAL, "CERT_OPTIONAL"),
        (0, "CERT_NONE"),
    ],
)
def test_cert_reqs_are_converted(given, name):
    assert HttpOptions.from_keywords("X", {"cert_reqs": given}).cert_reqs == name


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"timeout": 0}, ValueError, "timeout 0 must be at least 0.001 s"),
        ({"timeout": "soon"}, TypeError, "timeout must be float"),
        ({"retries": -1}, ValueError, "retries -1 must be at least 0"),
        ({"maxsize": 0}, ValueError, "maxsize 0 must be at least 1"),
        ({"max_response_size": 0}, ValueError, "max_response_size 0"),
        ({"cert_reqs": "MAYBE"}, ValueError, "cert_reqs 'MAYBE' must be one of CERT_NONE"),
        ({"headers": {"X": 1}}, TypeError, "headers must be a dict of str to str"),
        ({"headers": {"X Y": "1"}}, ValueError, "header 'X Y' has no valid name"),
        ({"headers": {"X": "a\r\nY: b"}}, ValueError, "value of header X must be printable"),
        ({"auth": ("a",)}, TypeError, "auth must be a pair of str"),
        ({"auth": "a\nb"}, ValueError, "value of header Authorization"),
        ({"key_password": 5, "cert_file": "c"}, TypeError, "key_password must be"),
        ({"assert_hostname": "x"}, TypeError, "has no option assert_hostname; options are auth, ca_certs"),
    ],
)
def test_wrong_option_is_named(values, error, words):
    with pytest.raises(error, match=words):
        HttpOptions.from_keywords("HTTPClient", values)


SECRET = "sesame"


@pytest.mark.parametrize(
    "values",
    [
        {"auth": ("user", SECRET, "x")},
        {"auth": ("user", f"{SECRET}\n"), "timeout": -1},
        {"auth": f"Bearer {SECRET}\n"},
        {"headers": {"X-Token": f"{SECRET}\n"}},
        {"headers": {"X-Token": [SECRET]}},
        {"key_password": [SECRET]},
    ],
)
def test_no_error_shows_a_secret(values):
    with pytest.raises((TypeError, ValueError)) as caught:
        HttpOptions.from_keywords("HTTPClient", values)

    assert SECRET not in str(caught.value)


def test_options_show_no_secret():
    options = HttpOptions(
        auth=("user", SECRET),
        headers={"X": SECRET},
        key_password=SECRET,
    )

    assert SECRET not in repr(options)


def test_scheme_is_http_or_https():
    with pytest.raises(ValueError, match="scheme 'ftp' must be"):
        HTTPClient("h", 80, scheme="ftp")


@pytest.mark.parametrize(
    ("path", "error"), [("a b", ValueError), ("a?b", ValueError), ("a\n", ValueError), (5, TypeError)]
)
def test_invalid_path_is_refused(path, error):
    with pytest.raises(error, match="path"):
        HTTPClient("h", 80, path=path)
