"""Options of the emulated nsqd that depend on each other."""

import pytest

from fakensqd import FakeLookupd
from fakensqd.options import NsqdOptions, TlsRequired

TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({"tls_required": False}, TlsRequired.NOBODY),
        ({"tls_required": True}, TlsRequired.TCP_AND_HTTP),
        ({"tls_required": "true"}, TlsRequired.TCP_AND_HTTP),
        ({"tls_required": "tcp-https"}, TlsRequired.TCP),
        ({"tls_client_auth_policy": "anything"}, TlsRequired.TCP_AND_HTTP),
        ({"tls_client_auth_policy": "require", "tls_required": "tcp-https"}, TlsRequired.TCP),
    ],
)
def test_tls_policy_follows_tls_required_and_client_auth_policy(given, policy):
    assert NsqdOptions(**TLS, **given).tls_policy is policy


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tls_cert": "cert.pem"}, "tls_cert and tls_key must be given together"),
        ({"tls_required": True}, "there is no tls_cert and tls_key"),
        ({"tls_client_auth_policy": "require"}, "there is no tls_cert and tls_key"),
        ({**TLS, "tls_required": "yes"}, "tls_required 'yes' must be one of false, f, 0, tcp-https, true, t, 1"),
        ({"max_deflate_level": 10}, "max_deflate_level 10 must be within 1 to 9"),
    ],
)
def test_option_out_of_bounds_is_refused(given, text):
    with pytest.raises(ValueError, match=text):
        NsqdOptions(**given)


def test_switch_is_a_bool():
    with pytest.raises(TypeError, match="snappy must be bool, not 'false'"):
        NsqdOptions(snappy="false")


def test_options_are_those_of_the_daemon():
    with pytest.raises(TypeError, match="FakeLookupd has no option lifetime"):
        FakeLookupd(lifetime=1)
