"""Certificates: that TLS takes them, for the names they are made for."""

import ssl

import pytest

from tests.kit import run_program


def trusted(certificates, files, name):
    """Do a handshake in memory with a server that has these files; give back the certificate that its client sees."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files)
    client = ssl.create_default_context(cafile=certificates.ca)
    # The default of Python 3.13.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    seeing = client.wrap_bio(to_client, to_server, server_hostname=name)
    ends = [seeing, server.wrap_bio(to_server, to_client, server_side=True)]
    while ends:
        end = ends.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            ends.append(end)
    return seeing.getpeercert()


def test_server_certificate_is_valid_for_its_names(certificates):
    files = certificates.server(["nsqd.example", "127.0.0.1", "::1"])

    for name in ("nsqd.example", "127.0.0.1", "::1"):
        assert trusted(certificates, files, name)["subject"] == ((("commonName", "nsqd.example"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        trusted(certificates, files, "other.example")
    assert trusted(certificates, certificates.server("other.example"), "other.example")


def test_server_certificate_without_a_name_is_refused(certificates):
    with pytest.raises(ValueError, match="at least 1 name"):
        certificates.server([])


def test_each_certificate_has_its_own_files(certificates):
    files = {*certificates.client("a"), *certificates.client("b", expired=True), *certificates.server()}

    assert len(files) == 6


@pytest.mark.subprocess
def test_missing_cryptography_names_the_package_to_install():
    result = run_program("import sys; sys.modules['cryptography'] = None; from fakensqd import Certificates")

    assert "ImportError: certificates need cryptography: pip install 'gnsq[fakensqd]'" in result.stderr
