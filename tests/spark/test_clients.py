import ssl

import pytest

from gnsq import Consumer, Producer
from gnsq.spark.clients import check_addresses, connection_keywords
from gnsq.spark.options import ReadOptions, WriteOptions


def options(**changes):
    return ReadOptions(**{"topic": "t", "channel": "c", "nsqd_tcp_addresses": ("a:1",), **changes})


def test_default_options_use_no_tls_and_no_auth():
    keywords = connection_keywords(options())

    assert "tls_context" not in keywords
    assert keywords["auth_secret"] is None
    assert (keywords["snappy"], keywords["deflate"]) == (False, False)
    assert keywords["lookupd_options"] == {"timeout": 5.0}
    check_addresses(WriteOptions(nsqd_tcp_addresses=("a:1", "b"), lookupd_http_addresses=("https://x/y", "z:1")))


@pytest.mark.parametrize(("verifies", "mode"), [(True, ssl.CERT_REQUIRED), (False, ssl.CERT_NONE)])
def test_tls_checks_certificate_and_host_unless_an_option_says_otherwise(fakensqd_certificates, verifies, mode):
    given = options(tls=True, tls_ca=fakensqd_certificates.ca, tls_verify=verifies, tls_server_hostname="elsewhere")

    keywords = connection_keywords(given)

    context = keywords["tls_context"]
    assert (context.verify_mode, context.check_hostname) == (mode, verifies)
    assert keywords["server_hostname"] == "elsewhere"


@pytest.mark.parametrize("kind", [Consumer, Producer])
def test_clients_accept_the_keywords(kind, fakensqd_certificates):
    ours = fakensqd_certificates.client()
    given = options(
        tls=True, tls_ca=fakensqd_certificates.ca, tls_cert=ours.certificate, tls_key=ours.key,
        compression="deflate", auth_secret="s", lookupd_http_addresses=("https://x",),
    )  # fmt: skip

    client = kind(**connection_keywords(given), **({"topic": "t", "channel": "c"} if kind is Consumer else {}))

    # HTTPS uses the same certificates.
    assert [each["subject"] for each in client.lookupds[0].options.ssl_context.get_ca_certs()]


def test_secret_comes_from_a_file(tmp_path):
    (tmp_path / "secret").write_text("open sesame\n")

    assert connection_keywords(options(auth_secret_file=str(tmp_path / "secret")))["auth_secret"] == b"open sesame"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"auth_secret_file": "/none"}, "option authSecretFile '/none' can't be read: No such", id="secret"
        ),
        pytest.param({"auth_secret_file": "/dev/null"}, "option authSecretFile '/dev/null' is empty", id="empty"),
        pytest.param({"tls": True, "tls_ca": "/none"}, "option tlsCa '/none' can't be used: .*No such", id="CA"),
        pytest.param(
            {"tls": True, "tls_cert": __file__, "tls_key": "/no"},
            "option tlsKey '/no' .*No such",
            id="key",
        ),
    ],
)
def test_file_that_cannot_be_used_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        connection_keywords(options(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"nsqd_tcp_addresses": ("a:b",)}, "option nsqdTcpAddresses: .*a:b", id="nsqd"),
        pytest.param({"lookupd_http_addresses": ("ftp://x",)}, "option lookupdHttpAddresses: .*ftp://x", id="lookupd"),
        pytest.param({"nsqd_http_addresses": ("x:99999",)}, "option nsqdHttpAddresses: .*x:99999", id="http"),
    ],
)
def test_bad_address_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        check_addresses(options(**changes))
